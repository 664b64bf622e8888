"""The property: on every drawn case, over every routing, the kernels do what the contract says.

One test a kernel path, so that each path is aimed at and processes share the work. A failure is made small, saved to
the corpus's inbox and reported with the command that replays it.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import event, given, seed, settings, target

from corpus.case import Case
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.check import Status, check
from oracles.shrink import shrink_and_report
from strategies.cases import cases
from strategies.routing import GPU, INTERPRETER
from tbe_kernels.paths import PATHS, KernelPath
from tests.quota import least
from tests.record import Record


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_contract(path: KernelPath, part: tuple[int, int], device: torch.device, sweep: str, record: Record) -> None:
    reported: dict[Case, str] = {}
    drawn = ran = 0
    met: set[str] = set()
    number, parts = part
    profile = settings.get_profile(settings.get_current_profile_name())

    @settings(profile, max_examples=-(-profile.max_examples // parts))
    @given(cases(path=path, limits=INTERPRETER if device.type == "cpu" else GPU))
    def holds(case: Case) -> None:
        nonlocal drawn, ran
        begin = time.perf_counter()
        verdict = check(case, IMPLEMENTATION, device, sweep, journal=True)
        record.add(verdict, time.perf_counter() - begin)
        drawn += 1
        if path.name in verdict.paths:
            ran += 1
            met.add(case.optimizer.name)
        _tell_hypothesis(verdict)
        if verdict.status is Status.FAILED:
            if case not in reported:
                reported[case] = shrink_and_report(verdict, IMPLEMENTATION, device)
            pytest.fail(reported[case], pytrace=False)

    # Parts of a derandomised profile would all draw the same examples.
    (seed(number)(holds) if parts > 1 and profile.derandomize else holds)()
    settled = profile.derandomize and parts == 1
    assert ran >= least(1 / 2, drawn, settled), f"only {ran} of {drawn} examples ran {path.name}"
    if settled:
        assert met == set(path.optimizers), f"{path.name} ran with {sorted(met)}"


def _tell_hypothesis(verdict: Any) -> None:
    """Statistics for `--hypothesis-show-statistics`, and in the nightly profile something to climb towards."""
    event(f"paths: {len(verdict.paths)}")
    bounded = [s.worst for s in verdict.sharpness.values() if s.bounded]
    if bounded:
        target(max(bounded), label="largest error / bound")
