"""No launch of any path has a race, whichever way its programs are run: first to last, or last to first.

The cases and the judge are those of `test_contract`; the race detector watches every launch of each case's own routing.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from corpus.case import Case
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.check import Status, Sweep, check
from oracles.shrink import shrink_and_report
from strategies.cases import cases
from tbe_kernels.paths import PATHS, KernelPath
from tests.quota import least

#: Of the examples of a profile, one in so many is watched here.
SHARE = 4
#: Paths whose programs meet in memory, so that a detector which sees nothing is noticed.
MEET = ("backward.long_run.atomic", "backward.long_run.fused")


@pytest.mark.needs_device("cpu")  # the race detector lives in the interpreter
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_no_races(path: KernelPath, device: torch.device) -> None:
    profile = settings.get_profile(settings.get_current_profile_name())
    drawn = watched = met = 0

    @settings(profile, max_examples=profile.max_examples // SHARE)
    @given(cases(path=path))
    def holds(case: Case) -> None:
        nonlocal drawn, watched, met
        verdict = check(case, IMPLEMENTATION, device, Sweep.RACED, journal=True)
        drawn, watched, met = drawn + 1, watched + verdict.watched, met + (verdict.met > 0)
        if verdict.status is Status.FAILED:
            pytest.fail(shrink_and_report(verdict, IMPLEMENTATION, device), pytrace=False)

    holds()
    assert watched
    if path.name in MEET:
        assert met >= least(1 / 5, drawn, profile.derandomize), f"programs met in {met} of {drawn} examples"
