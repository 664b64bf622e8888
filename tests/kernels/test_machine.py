"""The module as a state machine: whatever people do with it, in any order, it is what its plain twin says. And it sees:
faults of every kind in reach are found within 2,000 rules."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machine.faults import STATE_FAULTS, StateFault
from tests.machine.machine import STEPS, Machine, seek
from tests.mutants.plant import plant
from tests.profiles import FULL_SWEEP

pytestmark = pytest.mark.needs_device("cpu")
#: How many runs of the machine, by profile: 1,500 rules in CI, 20,000 at night.
RUNS = {"dev": 12, "ci": 50, "nightly": 667, "replay": 20}
#: Within how many rules a fault has to be found.
MOST = 2000


def test_the_module_is_what_its_twin_says() -> None:
    runs = RUNS.get(settings.get_current_profile_name(), RUNS["dev"])
    run_state_machine_as_test(Machine, settings=settings(max_examples=runs, stateful_step_count=STEPS))


@pytest.mark.parametrize("fault", STATE_FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_of_the_module_is_found(fault: StateFault) -> None:
    if not fault.in_short and settings.get_current_profile_name() not in FULL_SWEEP:
        pytest.skip("for the night")
    found, steps = seek(plant(*fault.edits), MOST)
    assert found is not None, f"nothing found in {steps} rules"
