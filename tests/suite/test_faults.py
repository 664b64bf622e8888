"""Every planted fault is found by the strategy of the path it sits on, and shrinks small."""

from __future__ import annotations

import pytest

from oracles.adapters.kernels import TbeKernels
from oracles.check import Sweep
from tests.mutants import FAULTS
from tests.mutants.fault import Fault
from tests.mutants.plant import plant
from tests.mutants.search import Search, aimed, by_routing, search
from tests.programs.hunt import hunt

CONTROL = Fault("no fault at all", "spec.py", "MAX_D = 2**20", "MAX_D = 2 * 2**19", "backward.plan")


def test_a_copy_without_a_fault_passes() -> None:
    """The control: what the other tests find is the fault, not the planting."""
    found = search(aimed(CONTROL.path), TbeKernels(plant(*CONTROL.edits)), by_routing(Sweep.SOME), 40)
    assert found == Search(None, tried=40, ran=found.ran)
    assert found.ran[CONTROL.path] >= 20


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault_is_found_and_shrinks(fault: Fault) -> None:
    hunt(fault, TbeKernels(plant(*fault.edits)))
