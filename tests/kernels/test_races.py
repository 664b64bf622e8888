"""No launch of any path has a race, whichever way its programs are run: first to last, or last to first.

The cases and the judge are those of `test_contract`; the race detector watches every launch of each case's own routing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings

from corpus.case import Case
from oracles import interpreter
from oracles.check import check
from oracles.kernels import TbeKernels
from strategies.cases import cases
from tbe_kernels.paths import PATHS, KernelPath
from tests.failures import shrink_and_report

#: Of the examples of a profile, one in so many is watched here.
SHARE = 4
#: Paths whose programs meet in memory, so that a detector which sees nothing is noticed.
MEET = ("backward.long_run.atomic", "backward.long_run.fused")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_no_races(path: KernelPath, device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("the race detector lives in the interpreter")
    interpreter.install()
    from oracles.interpreter import races

    profile = settings.get_profile(settings.get_current_profile_name())
    launches = met = 0

    @contextmanager
    def forwards() -> Iterator[None]:
        nonlocal launches, met
        with races.watching() as watch:
            yield
        launches, met = launches + watch.launches, met + watch.shared

    @contextmanager
    def backwards() -> Iterator[None]:
        with races.watching(backwards=True):
            yield

    both = TbeKernels(watch=forwards), TbeKernels(watch=backwards)

    @settings(profile, max_examples=profile.max_examples // SHARE)
    @given(cases(path=path))
    def holds(case: Case) -> None:
        for implementation in both:
            verdict = check(case, implementation, device, "own", journal=True)
            if verdict.status == "failed":
                pytest.fail(shrink_and_report(verdict, implementation, device), pytrace=False)

    holds()
    assert launches
    assert met or path.name not in MEET
