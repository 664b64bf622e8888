"""A fault to plant: where, which kernel path's cases have to find it, and how small the case has to shrink."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.plant import Edit

#: (tables, bags, lookups)
SMALL = (2, 3, 6)


@dataclass(frozen=True)
class Fault:
    """One fault: in `file`, `old` (there once) becomes `new`, and `more` edits. `path`: whose strategy finds it."""

    name: str
    file: str
    old: str
    new: str
    path: str
    size: tuple[int, int, int] = SMALL
    more: tuple[Edit, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Everything that `plant` has to change."""
        return (Edit(self.file, self.old, self.new), *self.more)
