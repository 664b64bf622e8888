"""The registry: every kernel is reachable from a row, and every row's needs can be read by the strategies."""

from __future__ import annotations

import dataclasses

from oracles.adapters.sweep import COMPILE_TIME_TURNS, FORWARD_KNOBS, RUN_TIME_TURNS
from tbe_kernels.aot.reach import jit_functions, rows, unreachable
from tbe_kernels.config import MENUS, KernelConfig
from tbe_kernels.paths import PATHS


def test_every_kernel_is_reachable_from_a_row() -> None:
    assert unreachable(rows(), jit_functions()) == set()


def test_a_kernel_without_a_row_is_noticed() -> None:
    functions = jit_functions()
    assert unreachable(rows() - {"psw_gradient_kernel"}, functions) == {"psw_gradient_kernel"}
    steppers = {"short_run_kernel", "step_long_runs_kernel", "fused_long_runs_kernel", "step_named_rows_kernel"}
    assert "step_row" in unreachable(rows() - steppers, functions)


def test_rows_are_named_once_and_need_what_exists() -> None:
    assert len({path.name for path in PATHS}) == len(PATHS)
    for path in PATHS:
        for knob, values in path.needs.knobs.items():
            assert set(values) <= set(MENUS[knob] or ()), (path.name, knob)


def test_no_knob_lets_a_larger_table_take_a_route_than_its_row_says() -> None:
    """Strategies aim at the row, the gate compiles for it, and a sweep expects the route of it alone."""
    limits = {path.needs.one_table for path in PATHS} - {None}
    assert limits == {(_largest("small_table_rows"), _largest("small_table_columns"))}


def _largest(knob: str) -> int:
    """The largest number in a knob's menu."""
    return max(value for value in MENUS[knob] or () if isinstance(value, int))


def test_knobs_that_take_turns_exist() -> None:
    turns = {**RUN_TIME_TURNS, **COMPILE_TIME_TURNS}
    assert turns.keys() <= MENUS.keys()
    assert turns.keys() >= FORWARD_KNOBS


def test_every_knob_has_a_menu_and_takes_its_values() -> None:
    assert MENUS.keys() == {field.name for field in dataclasses.fields(KernelConfig)}
    for knob, menu in MENUS.items():
        for value in menu or (1, 7):
            assert getattr(KernelConfig.for_target("cuda", {knob: value}), knob) == value
