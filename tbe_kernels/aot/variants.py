"""What the kernels can be compiled as, as data: the axes that decide it, and the `Variants` that stand beside a kernel.

No signature is written by hand. An axis is something that a user of the module chooses, or a knob; a setting has one
value of each; `tbe_kernels.aot.launches` runs the module on a setting and keeps what its wrappers launch. So the
compiled forms are the ones that really run, and a kernel says only which axes its forms depend on: its file holds
`VARIANTS = {"the_kernel": Variants(axes=(...))}`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tbe_kernels.config import KNOBS
from tbe_kernels.optimizers import OPTIMIZERS

#: The menu of each axis, its usual value first. What a value stands for: `tbe_kernels.aot.launches`.
AXES: Mapping[str, tuple[Any, ...]] = {
    "weights": ("float32", "float16", "bfloat16"),
    "output": ("float32", "float16", "bfloat16"),
    "indices": ("int64", "int32"),
    "offsets": ("int64", "int32"),
    "lookups": ("SUM", "WEIGHTED", "MEAN", "NONE"),  # the pooling mode; WEIGHTED: SUM with trained per-sample weights
    "bags": ("plain", "variable", "many"),  # many: 2**31
    "rows": ("few", "tiny", "many"),
    "bounds_check": ("WARNING", "IGNORE", "FATAL", "NONE"),
    "D": (128, 7, 2052),  # divisible by 16, by nothing, by 4 and for several warps and forward tiles
    "optimizer": tuple((kind.name, mode.name) for kind, row in OPTIMIZERS.items() for mode in row.decay_modes),
    "stochastic_rounding": (False, True),
    "max_norm": (False, True),  # for the optimizers that have it
    "gradient_clipping": (False, True),
    "feature_requires_grad": (False, True),
    # Knobs that become compile-time constants, or decide which pointers are given.
    **{name: row.axis for name, row in KNOBS.items() if row.axis},
}
#: The axis that every kernel has: whether the pointers of a launch are known to be divisible by 16.
POINTERS = "pointers"
#: What the gate compiles for.
TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")
#: A space of so many settings is compiled whole for every target, a larger one pairwise. Where that makes more than
#: MANY settings, the target is one of the values that meet in pairs.
SMALL = 16
MANY = 24

#: A value that no pair has asked for yet.
_GAP = object()

#: One value of each axis.
Setting = Mapping[str, Any]
#: The arguments of a launch by name.
Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Variants:
    """What a kernel's compiled forms depend on, and what their code has to look like.

    `axes`: names in `AXES`. `only`: the values of an axis with which the kernel is launched, where not all.
    `atomics`: whether a launch with these arguments changes global memory atomically; it must then, and else must not.
    `countdown`: whether an acq_rel atomic tells the last program that it is the last. `gathers`: the pointer whose
    rows are loaded as a tile `[height, BLOCK_D]`, dotted if it is in a tuple; with aligned pointers by vector loads.
    `height`: the constexpr that says how many rows.

    Raises ValueError for an axis or value that `AXES` does not have.
    """

    axes: tuple[str, ...]
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    atomics: Callable[[Arguments], bool] = lambda _: False
    countdown: bool = False
    gathers: str | None = None
    height: str = "GATHER"

    def __post_init__(self) -> None:
        for axis in self.axes:
            if axis not in AXES:
                raise ValueError(f"axes: expected some of {', '.join(AXES)}, got {axis!r}")
        for axis, values in self.only.items():
            if axis not in self.axes or not values or not set(values) <= set(AXES[axis]):
                raise ValueError(f"only: expected an axis of the kernel and some of its values, got {axis!r}: {values}")

    def menus(self) -> dict[str, tuple[Any, ...]]:
        """The values of each axis of the kernel, that of its pointers among them."""
        return {axis: self.only.get(axis, AXES[axis]) for axis in self.axes} | {POINTERS: ("aligned", "unaligned")}

    def space(self) -> int:
        """How many settings there are."""
        return math.prod(map(len, self.menus().values()))

    def usual(self) -> Setting:
        """The usual value of every axis, of those with which the kernel is launched."""
        return {axis: menu[0] for axis, menu in AXES.items()} | {axis: menu[0] for axis, menu in self.menus().items()}

    def settings(self, target: str) -> list[Setting]:
        """What to compile for one of `TARGETS`: every setting of a small space, of a large one enough that any two
        values of two axes meet, of a very large one enough that they meet for some target, and each with each target.
        """
        menus = self.menus()
        if self.space() <= SMALL:
            rows = list(itertools.product(*menus.values()))
        else:
            rows = pairwise(list(menus.values()))
        if len(rows) > MANY:
            rows = [row[1:] for row in pairwise([TARGETS, *menus.values()]) if row[0] == target]
        return [{**self.usual(), **dict(zip(menus, row, strict=True))} for row in rows]

    def describe(self, setting: Setting) -> str:
        """The kernel's own axes in a setting."""
        return ", ".join(f"{axis}={_text(setting[axis])}" for axis in self.menus())


def pairwise(menus: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows with one value of each menu, such that every pair of values of two menus stands in some row.

    Grows column by column, widest menu first: a new column takes in each row the value that meets most values for the
    first time; the pairs that are still missing then fill gaps of earlier rows, or rows of their own.
    """
    order = sorted(range(len(menus)), key=lambda k: -len(menus[k]))
    wide = [menus[k] for k in order]
    rows: list[list[Any]] = [[]]
    for column, menu in enumerate(wide):
        missing = {(k, a, b): None for k in range(column) for a in wide[k] for b in menu}  # a dict keeps its order
        if column == 0:
            rows = [[value] for value in menu]
            continue
        for row in rows:
            new = max(menu, key=lambda value: sum((k, row[k], value) in missing for k in range(column)))
            for k in range(column):
                missing.pop((k, row[k], new), None)
            row.append(new)
        for k, a, b in missing:
            fitting = [r for r in rows if r[k] in (a, _GAP) and r[column] in (b, _GAP)]
            if not fitting:
                fitting = [[_GAP] * (column + 1)]
                rows += fitting
            fitting[0][k], fitting[0][column] = a, b
    for number, row in enumerate(rows):
        row[:] = [menu[number % len(menu)] if x is _GAP else x for x, menu in zip(row, wide, strict=True)]
    place = {k: column for column, k in enumerate(order)}
    return [tuple(row[place[k]] for k in range(len(menus))) for row in rows]


def _text(value: Any) -> str:
    return "+".join(value) if isinstance(value, tuple) else str(value)
