"""The module as a state machine: whatever people do with it, in any order, it is what its plain twin says."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machine.machine import STEPS, Machine

pytestmark = pytest.mark.needs_device("cpu")
#: How many runs of the machine, by profile: 1,500 rules in CI, 20,000 at night.
RUNS = {"dev": 12, "ci": 50, "nightly": 667, "replay": 20}


def test_the_module_is_what_its_twin_says() -> None:
    runs = RUNS[settings.get_current_profile_name()]
    run_state_machine_as_test(Machine, settings=settings(max_examples=runs, stateful_step_count=STEPS))
