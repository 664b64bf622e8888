"""Routings: values for the knobs of `KernelConfig`, so small that small cases reach both sides of every constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tbe_kernels.config import KNOBS, KernelConfig
from tbe_kernels.knobs import SMALL_TABLE
from tbe_kernels.paths import Eligibility


@dataclass(frozen=True)
class Limits:
    """What a target can afford. `steps` bounds the inner loop iterations of one case; `menus` narrows the values of a
    knob (on a GPU each new set of values is a compilation); `sampled`: large batches too, as distributions."""

    steps: int = 200
    menus: Mapping[str, tuple[Any, ...]] | None = None
    sampled: bool = False


#: On a GPU a case costs microseconds and a new set of compile-time values up to a second, so widths have two values.
GPU = Limits(steps=4000, menus={name: row.gpu for name, row in KNOBS.items() if row.gpu}, sampled=True)
INTERPRETER = Limits()


def routings(
    needs: Eligibility, limits: Limits = INTERPRETER, longest: int | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """Knobs that a path needs and any for the rest, as a plain mapping.

    `longest`: run lengths beyond it are out of reach (wide rows cost too much), so thresholds and chunks stay below.
    """
    of_menus_first = sorted(KNOBS.items(), key=lambda item: item[1].menu is None)
    menus = {knob: row.drawn or row.menu or () for knob, row in of_menus_first} | dict(limits.menus or {})
    for knob, needed in needs.knobs.items():  # as far as the target can afford
        menus[knob] = tuple(v for v in needed if v in (limits.menus or {}).get(knob, needed))
    if longest is not None:
        for knob in ("long_run_threshold", "chunk_size"):
            menus[knob] = tuple(n for n in menus[knob] if n < longest)
    if needs.run == "short":  # below a threshold of 1 there is no run
        menus["long_run_threshold"] = tuple(n for n in menus["long_run_threshold"] if n > 1)
    counts = needs.one_table is not None
    rare = {
        k for k, row in KNOBS.items() if row.seldom and not (counts and row.stage == SMALL_TABLE)
    } - needs.knobs.keys()
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
