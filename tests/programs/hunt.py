"""Looks for a planted fault with its path's strategy until somebody sees it, and shrinks the case."""

from __future__ import annotations

import time

from oracles.adapters.kernels import TbeKernels
from oracles.check import Status, Sweep, Verdict
from oracles.report import size
from oracles.shrink import shrink
from tests.mutants.fault import Fault
from tests.mutants.search import CPU, aimed, by_routing, search

#: Examples of one path; the `ci` profile draws as many and more over all paths, of which several meet a fault.
MOST = 260


def hunt(fault: Fault, implementation: TbeKernels, guard: str | None = None) -> Verdict:
    """The shrunk verdict of the first example that `guard` objects to (None: whoever does; "": the oracle of values),
    as small as the fault says. On the drawn routing, or on several where it takes two to see the fault."""
    begin = time.perf_counter()
    found = search(
        aimed(fault.path, fault.optimizers, fault.case),
        implementation,
        by_routing(Sweep.RACED if guard == "races" else Sweep.SOME if fault.across else Sweep.OWN),
        MOST,
        counts=lambda v: guard is None or v.findings[0].guard == guard,
    )
    verdict = found.verdict
    assert verdict is not None, f"not seen by {guard or 'anybody'} in {found.tried} examples"
    assert not verdict.findings[0].raised, verdict.findings[0].headline  # a wrong result, not a crash
    seen = time.perf_counter()
    small = shrink(verdict, implementation, CPU)
    assert small.status is Status.FAILED
    print(
        f"\n{fault.name}: {found.tried} examples, {seen - begin:.1f} s, shrunk in {time.perf_counter() - seen:.1f} s "
        f"to {size(small.case)}: {small.findings[0].headline.splitlines()[0]}\n  {small.case}"
    )
    assert guard is None or small.findings[0].guard == guard
    assert all(have <= most for have, most in zip(size(small.case), fault.size, strict=True)), size(small.case)
    return small
