"""No path's result depends on how the programs of a launch interleave, or on when their writes become visible.

The cases are those of `test_contract`; for paths whose programs meet, those with several programs, and exact values.
Where sums are exact, every launch whose programs share memory is run under many schedules, and all have to leave the
same numbers; other cases are judged as usual under one schedule.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.case import Case
from oracles import interpreter
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.check import Status, Sweep, check
from oracles.relations.prerequisites import exact_values
from oracles.shrink import shrink_and_report
from strategies.cases import cases
from tbe_kernels.paths import PATHS, KernelPath
from tests.programs.explore import explore
from tests.quota import least

#: Of the examples of a profile, one in so many is interleaved here, each under so many schedules.
SHARE = 8
EACH = 12
#: Paths whose programs meet in memory.
MEET = ("backward.long_run.atomic", "backward.long_run.fused")


def meeting(path: KernelPath) -> KernelPath:
    """The path, where more than one program walks the long runs."""
    knobs = {**path.needs.knobs, "long_run_programs": (2, 5)}
    return replace(path, needs=replace(path.needs, knobs=knobs))


@pytest.mark.needs_device("cpu")  # schedules live in the interpreter
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_schedules(path: KernelPath, device: torch.device) -> None:
    interpreter.install()
    from oracles.interpreter.concurrency.schedules import schedules

    profile = settings.get_profile(settings.get_current_profile_name())
    drawn = met = 0
    aimed = cases(path=meeting(path)).map(exact_values) if path.name in MEET else cases(path=path)

    @settings(profile, max_examples=max(1, profile.max_examples // SHARE))
    @given(aimed, st.integers(0, 2**16))
    def holds(case: Case, seed: int) -> None:
        nonlocal drawn, met
        drawn += 1
        if case.values.mode == "exact":
            explored = explore(case, schedules(seed, EACH))
            verdict, met = explored.verdict, met + (explored.launches > 0)
        else:
            (schedule,) = schedules(seed, 1)
            verdict = check(replace(case, schedule=schedule), IMPLEMENTATION, device, Sweep.OWN, journal=True)
        if verdict.status is Status.FAILED:
            pytest.fail(shrink_and_report(verdict, IMPLEMENTATION, device), pytrace=False)

    holds()
    if path.name in MEET:
        assert met >= least(1 / 3, drawn, profile.derandomize), f"programs met in {met} of {drawn} examples"
