"""Routings: values for the knobs of `KernelConfig`, so small that small cases reach both sides of every constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tbe_kernels.config import MENUS, KernelConfig
from tbe_kernels.paths import Eligibility

#: Knobs that take any integer: values that small cases can reach. The first is what shrinks to.
REACHABLE: Mapping[str, tuple[int, ...]] = {
    "long_run_threshold": (2, 1, 3, 4, 5, 8, 16, 33, 256),
    "chunk_size": (2, 1, 3, 4, 7, 16, 256),
    "bags_per_program": (1, 2, 3, 4),
    "short_run_programs": (1, 2, 5),
    "long_run_programs": (1, 2, 5),
    "check_programs": (1, 2, 3),
    "forward_programs": (1024, 1, 2, 3),
    "unpooled_programs": (1, 2, 3),
    "small_table_least_columns": (1, 64),
    "small_table_bag_length": (1, 4, 64),
    "small_table_programs": (1, 2, 5),
    "from_counts_programs": (1, 2, 5),
}
#: Knobs that are drawn now and then and have their default otherwise; num_warps means nothing to the interpreter.
SELDOM = (
    "max_block_d",
    "min_block_d",
    "tile_elements",
    "block",
    "accumulate_fp64",
    "num_warps",
)
#: Seldom drawn either, but for paths of one small table.
OF_SMALL_TABLES = (
    "small_table_rows",
    "small_table_columns",
    "small_table_least_columns",
    "small_table_bag_length",
    "small_table_bags",
    "small_table_window",
    "small_table_programs",
    "small_table_warps",
    "backward_from_counts",
    "from_counts_bags",
    "from_counts_programs",
)


@dataclass(frozen=True)
class Limits:
    """What a target can afford. `steps` bounds the inner loop iterations of one case; `menus` narrows the values of a
    knob (on a GPU each new set of values is a compilation); `sampled`: large batches too, as distributions."""

    steps: int = 200
    menus: Mapping[str, tuple[Any, ...]] | None = None
    sampled: bool = False


#: On a GPU a case costs microseconds and a new set of compile-time values up to a second, so widths have two values.
GPU = Limits(
    steps=4000,
    menus={
        "gather_width": (4, 16),
        "backward_gather_width": (2, 8),
        "max_block_d": (64, 2048),
        "min_block_d": (16, 128),
        "tile_elements": (4096,),
        "block": (64, 1024),
        "num_warps": ("auto", 4),
        "small_table_window": (16, 256),
        "small_table_bags": (16,),
        "small_table_warps": (4,),
        "from_counts_bags": (16, 64),
    },
    sampled=True,
)
INTERPRETER = Limits()


def routings(
    needs: Eligibility, limits: Limits = INTERPRETER, longest: int | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """Knobs that a path needs and any for the rest, as a plain mapping.

    `longest`: run lengths beyond it are out of reach (wide rows cost too much), so thresholds and chunks stay below.
    """
    menus = {**{k: m for k, m in MENUS.items() if m is not None}, **REACHABLE, **(limits.menus or {})}
    for knob, needed in needs.knobs.items():  # as far as the target can afford
        menus[knob] = tuple(v for v in needed if v in (limits.menus or {}).get(knob, needed))
    if longest is not None:
        for knob in ("long_run_threshold", "chunk_size"):
            menus[knob] = tuple(n for n in menus[knob] if n < longest)
    if needs.run == "short":  # below a threshold of 1 there is no run
        menus["long_run_threshold"] = tuple(n for n in menus["long_run_threshold"] if n > 1)
    rare = {*SELDOM, *(() if needs.one_table else OF_SMALL_TABLES)} - needs.knobs.keys()
    always = {knob: st.sampled_from(menu) for knob, menu in menus.items() if knob not in rare}
    seldom = {knob: st.sampled_from(menu) for knob, menu in menus.items() if knob in rare}
    return st.builds(
        lambda usual, unusual: {**usual, **unusual},
        st.fixed_dictionaries(always),
        st.one_of(st.just({}), st.fixed_dictionaries({}, optional=seldom)),
    )


def config_of(routing: Mapping[str, Any]) -> KernelConfig:
    """The knobs with defaults filled in, to read the constants from."""
    return KernelConfig.for_target("interpreter", routing)
