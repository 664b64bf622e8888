"""Looks for a planted fault with its path's strategy until the guard meant for it sees it, and shrinks the case."""

from __future__ import annotations

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


class FoundError(Exception):
    """Ends the search."""


def hunt(fault: Fault, implementation: TbeKernels, guard: str | None = None) -> Verdict:
    """The shrunk verdict of the first example, among those of the `ci` profile, that `guard` objects to (default: the
    fault's own)."""
    guard = fault.guard if guard is None else guard
    found: list[Verdict] = []
    tried = 0

    @settings(settings.get_profile("ci"), phases=(Phase.generate,))
    @given(cases(path=next(p for p in PATHS if p.name == fault.path)))
    def look(case: Case) -> None:
        nonlocal tried
        tried += 1
        verdict = check(case, implementation, CPU)
        if verdict.status == "failed" and verdict.findings[0].guard == guard:
            assert not verdict.findings[0].raised, verdict.findings[0].headline
            found.append(verdict)
            raise FoundError

    try:
        look()
    except FoundError:
        small = shrink(found[0], implementation, CPU)
        assert small.status == "failed"
        print(f"\n{fault.name}: {tried} examples, {size(small.case)}: {small.findings[0].headline}\n  {small.case}")
        assert small.findings[0].guard == guard
        assert all(have <= most for have, most in zip(size(small.case), fault.size, strict=True)), size(small.case)
        return small
    raise AssertionError(f"not seen by {guard or 'the oracle of values'} in {tried} examples")
