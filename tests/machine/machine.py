"""The whole machine, for the kernels or for a copy of them with a fault, and how it is run."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

from hypothesis import Phase, settings
from hypothesis.errors import HypothesisException
from hypothesis.stateful import run_state_machine_as_test

from tests.independent import BACKEND
from tests.machine.refusing import Refusing
from tests.machine.storing import Storing
from tests.machine.turning import Turning

#: Rules in a row.
STEPS = 30


class Machine(Turning, Storing, Refusing):
    """All rules, over the kernels as they are."""


def machine_of(package: ModuleType) -> type[Machine]:
    """The machine over a copy of the package, with a count of its own."""
    return type("Planted", (Machine,), {"package": package, "steps": Counter()})


def seek(package: ModuleType, most: int) -> tuple[Exception | None, int]:
    """What the machine finds wrong with a package within about so many steps, or None; and how many it took."""
    machine = machine_of(package)
    search = settings(
        max_examples=-(-most // STEPS),
        stateful_step_count=STEPS,
        phases=(Phase.generate,),
        derandomize=True,
        database=None,
        backend=BACKEND,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=(),
    )
    try:
        run_state_machine_as_test(machine, settings=search)
    except HypothesisException:
        raise
    except Exception as found:
        return found, machine.steps["all"]
    return None, machine.steps["all"]
