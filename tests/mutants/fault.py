"""A fault to plant: where, which kernel path's cases have to find it, and how small the case has to shrink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.mutants.plant import Edit

#: (tables, bags, lookups)
SMALL = (2, 3, 6)


@dataclass(frozen=True)
class Fault:
    """One fault: in `file`, `old` (there once) becomes `new`, and `more` edits. `path`: whose strategy finds it.

    `optimizers` and `case` (axes as in `Eligibility.case`): what to aim at, where only some can show it. The `ci`
    profile draws each a hundred times and more.
    `guard`: which guard of the interpreter has to see it ("" for the oracle of values). `across`: it takes two routings
    to see.
    """

    name: str
    file: str
    old: str
    new: str
    path: str
    size: tuple[int, int, int] = SMALL
    more: tuple[Edit, ...] = ()
    guard: str = ""
    optimizers: tuple[str, ...] = ()
    case: Mapping[str, tuple[Any, ...]] = field(default_factory=dict, hash=False)
    across: bool = False

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Everything that `plant` has to change."""
        return (Edit(self.file, self.old, self.new), *self.more)
