"""Looks for a planted fault with its path's strategy until somebody sees it, and shrinks the case."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from hypothesis import Phase, given, settings

from corpus.case import Case
from oracles.check import Verdict, check
from oracles.kernels import TbeKernels
from oracles.report import size
from strategies.cases import cases
from tbe_kernels.paths import PATHS
from tests.failures import shrink
from tests.mutants.fault import Fault

CPU = torch.device("cpu")
#: Examples of one path; the `ci` profile draws as many and more over all paths, of which several meet a fault.
MOST = 260


class FoundError(Exception):
    """Ends the search."""


def search(
    fault: Fault,
    implementation: TbeKernels,
    sweep: str = "some",
    most: int = MOST,
    counts: Callable[[Verdict], bool] = lambda verdict: True,
) -> tuple[Verdict | None, int]:
    """The first failure that `counts` among `most` derandomised examples for the fault's path, and how many were tried.
    The examples are aimed at what the fault names: optimizers, values of other axes."""
    path = next(p for p in PATHS if p.name == fault.path)
    optimizers = fault.optimizers or path.needs.optimizers
    path = replace(path, needs=replace(path.needs, optimizers=optimizers, case={**path.needs.case, **fault.case}))
    found: list[Verdict] = []
    tried = 0

    @settings(settings.get_profile("ci"), phases=(Phase.generate,), max_examples=most)
    @given(cases(path=path))
    def look(case: Case) -> None:
        nonlocal tried
        tried += 1
        verdict = check(case, implementation, CPU, sweep)
        if verdict.status == "failed" and counts(verdict):
            found.append(verdict)
            raise FoundError

    try:
        look()
    except FoundError:
        return found[0], tried
    return None, tried


def hunt(
    fault: Fault, implementation: TbeKernels, guard: str | None = None, sweeps: tuple[str, ...] = ("some",)
) -> Verdict:
    """The shrunk verdict of the first example that `guard` objects to (None: whoever does; "": the oracle of values),
    as small as the fault says. `sweeps`: the routings of each example, tried in turn."""
    begin = time.perf_counter()
    for sweep in sweeps:
        verdict, tried = search(
            fault, implementation, sweep, counts=lambda v: guard is None or v.findings[0].guard == guard
        )
        if verdict is not None:
            break
    assert verdict is not None, f"not seen by {guard or 'anybody'} in {tried} examples"
    assert not verdict.findings[0].raised, verdict.findings[0].headline  # a wrong result, not a crash
    found = time.perf_counter()
    small = shrink(verdict, implementation, CPU)
    assert small.status == "failed"
    print(
        f"\n{fault.name}: {tried} examples, {found - begin:.1f} s, shrunk in {time.perf_counter() - found:.1f} s to "
        f"{size(small.case)}: {small.findings[0].headline.splitlines()[0]}\n  {small.case}"
    )
    assert guard is None or small.findings[0].guard == guard
    assert all(have <= most for have, most in zip(size(small.case), fault.size, strict=True)), size(small.case)
    return small
