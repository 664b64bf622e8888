"""The property without a reference: what two runs of the kernels have to say about each other.

One test a relation of `oracles.relations.relate`, over cases drawn for all kernel paths. A relation that hardly ever
applied has shown nothing, so each counts.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from corpus.case import Case
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.check import Status
from oracles.relations.relate import RELATIONS, relate
from oracles.shrink import shrink_and_report
from strategies.cases import cases
from strategies.routing import GPU, Limits
from tbe_kernels.paths import PATHS
from tests.quota import least

#: A relation gets this share of the examples of a kernel path. Its cases are smaller: places matter here, not sizes.
SHARE = 1 / 5
SMALL = Limits(steps=60)
#: What is said of the bounds check too, and so of cases that are aimed at it.
OF_REFUSALS = ("integers", "layout", "twice")


@pytest.mark.parametrize("relation", RELATIONS)
def test_relation_holds(relation: str, device: torch.device) -> None:
    profile = settings.get_profile(settings.get_current_profile_name())
    paths = [path for path in PATHS if path.stage != "check" or relation in OF_REFUSALS]
    limits = SMALL if device.type == "cpu" else GPU
    drawn = applied = 0

    @settings(profile, max_examples=round(SHARE * profile.max_examples))
    @given(st.sampled_from(paths).flatmap(lambda path: cases(path=path, limits=limits)))
    def holds(case: Case) -> None:
        nonlocal drawn, applied
        verdict = relate(relation, case, IMPLEMENTATION, device, journal=True)
        drawn, applied = drawn + 1, applied + (verdict.status is not Status.NOT_CHECKED)
        event(verdict.reason or verdict.status)
        if verdict.status is Status.FAILED:
            pytest.fail(shrink_and_report(verdict, IMPLEMENTATION, device), pytrace=False)

    holds()
    assert applied >= least(1 / 3, drawn, profile.derandomize), f"applied to {applied} of {drawn} examples"
    print(f"{relation}: applied to {applied} of {drawn} examples")
