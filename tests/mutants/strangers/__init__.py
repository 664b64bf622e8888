"""Banks of faults by strangers: readers of `tbe_kernels` who had seen neither the suite nor its faults.

Each bank is a file of JSON, kept as it was found: a fault's name, its class, its edits (`old`, there once, becomes
`new`), whether a CPU can show it or only a GPU, and the smallest input that does. They are looked for as our own are,
on the paths that run a file which is changed: `python -m tests.mutants --bank first`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tbe_kernels.paths import PATHS
from tests.mutants.bank import Mutant, Reach
from tests.mutants.plant import Edit

ROOM = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in ROOM.glob("*.json")))


def faults(name: str) -> list[dict[str, Any]]:
    """A bank as it was written."""
    return list(json.loads((ROOM / f"{name}.json").read_text()))


def bank(name: str) -> list[Mutant]:
    """A bank's faults as mutants, those that only a GPU shows among them; `operator` is the fault's class."""
    reach = Reach()
    return [_mutant(fault, reach) for fault in faults(name)]


def only_on_a_gpu(name: str) -> set[str]:
    """The names of those that a CPU cannot show."""
    return {fault["name"] for fault in faults(name) if fault["shows"] == "gpu"}


def _mutant(fault: dict[str, Any], reach: Reach) -> Mutant:
    edits = tuple(Edit(edit["file"], edit["old"], edit["new"]) for edit in fault["edits"])
    running = set[str]().union(*(reach.of_file(edit.file) for edit in edits))
    return Mutant(fault["name"], fault["class"], edits, tuple(p.name for p in PATHS if p.name in running))
