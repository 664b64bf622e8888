"""What is known of a routing knob, in one row: its default and menu, and what tests and the compile gate make of it.

`KernelConfig` has a row for each of its fields. The strategies draw from it, a sweep turns it, the ahead-of-time gate
compiles its axis: a knob is named nowhere else, but where the kernels read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Whose knob it is: a forward does not know how the backward is split; of one small table, which is counted; all else.
FORWARD, BACKWARD, SMALL_TABLE, BOTH = "forward", "backward", "small table", "both"


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A routing knob.

    `default`: on every target that `targets` does not name. `menu`: the values that it takes; None for any integer from
    1 up. `stage`: FORWARD, BACKWARD, SMALL_TABLE or BOTH. `drawn`: the values that small cases can reach, the first is
    what shrinks to; the menu unless given. `seldom`: drawn now and then, its default otherwise; that of a small table
    always where a case has one. `gpu`: the values drawn on a GPU, where each is a compilation. `turns`: values that the
    routings of a sweep take one after the other; none where a sweep has a rule of its own. `constant`: each value is a
    compilation of its own, so on a GPU a sweep leaves it alone. `axis`: the values that the gate compiles, the usual
    one first; none where the compiled code does not depend on it. `moves_tiles`: it only moves the sizes of tiles,
    which the axes "D" and those of gather widths vary.
    """

    default: int | str
    menu: tuple[int | str, ...] | None = None
    stage: str
    drawn: tuple[int | str, ...] = ()
    seldom: bool = False
    gpu: tuple[int | str, ...] = ()
    turns: tuple[int | str, ...] = ()
    constant: bool = False
    axis: tuple[int | str, ...] = ()
    moves_tiles: bool = False
    targets: Mapping[str, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for value in (self.default, *self.drawn, *self.gpu, *self.turns, *self.targets.values()):
            if not self.takes(value):
                raise ValueError(f"expected {self.expected()}, got {value!r}")

    def takes(self, value: object) -> bool:
        """Whether it may have this value; True and 1 are two values."""
        if self.menu is None:
            return isinstance(value, int) and not isinstance(value, bool) and value >= 1
        return value in self.menu and isinstance(value, bool) == isinstance(self.menu[0], bool)

    def expected(self) -> str:
        """The values that it takes, in words."""
        return "an integer from 1 up" if self.menu is None else f"one of {', '.join(map(repr, self.menu))}"


def knob(default: Any, stage: str, **row: Any) -> Any:
    """A dataclass field with this default and `Knob` row. Raises ValueError for a value that the knob does not take."""
    return dataclasses.field(default=default, metadata={"knob": Knob(default=default, stage=stage, **row)})


def rows(config: Any) -> dict[str, Knob]:
    """The row of each field of a dataclass made of `knob`s."""
    return {f.name: f.metadata["knob"] for f in dataclasses.fields(config)}
