"""Every planted fault is found by the strategy of the path it sits on, within the `ci` profile, and shrinks small."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, settings

from corpus.case import Case
from oracles.check import Verdict, check
from oracles.kernels import TbeKernels
from oracles.report import size
from strategies.cases import cases
from tbe_kernels.paths import PATHS
from tests.failures import shrink
from tests.mutants import FAULTS
from tests.mutants.fault import Fault
from tests.mutants.plant import plant

#: Examples of one path; the `ci` profile draws as many and more over all paths, of which several meet a fault.
MOST = 260
CONTROL = Fault("no fault at all", "spec.py", "MAX_D = 2**20", "MAX_D = 2 * 2**19", "backward.plan")


class FoundError(Exception):
    """Ends the search."""


def search(
    implementation: TbeKernels, path: str, most: int, optimizers: tuple[str, ...] = (), sweep: str = "own"
) -> tuple[Verdict | None, int]:
    """The first failure among `most` derandomised examples for a path, and how many were tried."""
    failed: list[Verdict] = []
    tried = 0
    aimed = next(p for p in PATHS if p.name == path)
    if optimizers:
        aimed = replace(aimed, needs=replace(aimed.needs, optimizers=optimizers))

    @settings(settings.get_profile("ci"), phases=(Phase.generate,), max_examples=most)
    @given(cases(path=aimed))
    def look(case: Case) -> None:
        nonlocal tried
        tried += 1
        verdict = check(case, implementation, torch.device("cpu"), sweep)
        if verdict.status == "failed":
            failed.append(verdict)
            raise FoundError

    try:
        look()
    except FoundError:
        return failed[0], tried
    return None, tried


def test_a_copy_without_a_fault_passes() -> None:
    """The control: what the other tests find is the fault, not the planting."""
    implementation = TbeKernels(plant(*CONTROL.edits))
    verdict, tried = search(implementation, CONTROL.path, 40, sweep="some")
    assert (verdict, tried) == (None, 40)


#: Found late, or only by two routings: up to two minutes each. `pytest tests/suite/test_faults.py -m slow` runs them.
SLOW = {
    "the noise depends on the program",
    "long runs round with noise of their own",
    "subnormal numbers are rounded as coarsely as they are small",
    "the largest finite number becomes infinite",
    "rounding is stochastic where nobody asked",
    "lanes beyond D divide by zero",
    "LARS leaves the decay out of its divisor",
    "the norm of a row is bounded before the step",
    "gradients are clipped after their per-sample weights",
    "the sum of a run's gradients is clipped",
    "the psw gradient is of gradients not clipped",
    "clipping turns NaN into the bound",
    "NONE numbers the runs of a long merge among themselves",
    "a count beyond 2048 is taken for fp16",
    "small gradients beside large ones are taken for fp16",
    "a NaN gradient reaches rows that its bag does not name",
    "counted gradients are not divided by the mean's count",
    "rows that nobody names are stepped",
    "the last partial sum is lost",
    "the counts kept are those of the last window",
}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=pytest.mark.slow if f.name in SLOW else ()) for f in FAULTS],
    ids=lambda fault: fault.name.replace(" ", "-"),
)
def test_fault_is_found_and_shrinks(fault: Fault) -> None:
    implementation = TbeKernels(plant(*fault.edits))
    begin = time.perf_counter()
    verdict, tried = search(implementation, fault.path, MOST, fault.optimizers)
    if verdict is None:  # a fault that takes two routings to see, or one that is drawn seldom
        verdict, tried = search(implementation, fault.path, MOST, fault.optimizers, "some")
    assert verdict is not None, f"not found in {tried} examples"
    assert not verdict.findings[0].raised, verdict.findings[0].headline  # a wrong result, not a crash
    found = time.perf_counter()
    small = shrink(verdict, implementation, torch.device("cpu"))
    assert small.status == "failed"
    tables, bags, lookups = size(small.case)
    print(
        f"\n{fault.name}: {tried} examples, {found - begin:.1f} s, shrunk in {time.perf_counter() - found:.1f} s to "
        f"{tables} tables, {bags} bags, {lookups} lookups: {small.findings[0].headline.splitlines()[0]}\n  {small.case}"
    )
    assert tables <= fault.size[0]
    assert bags <= fault.size[1]
    assert lookups <= fault.size[2]
