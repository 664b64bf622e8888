"""The registry: every kernel is reachable from a row, and every row's needs can be read by the strategies."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.case import Batch, Case, Table
from oracles.adapters import sweep
from strategies.routing import routings
from tbe_kernels.aot.reach import jit_functions, rows, unreachable
from tbe_kernels.config import KNOBS, TARGETS, KernelConfig
from tbe_kernels.knobs import BOTH, Knob
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
            assert set(values) <= set(KNOBS[knob].menu or ()), (path.name, knob)


def test_no_knob_lets_a_larger_table_take_a_route_than_its_row_says() -> None:
    """Strategies aim at the row, the gate compiles for it, and a sweep expects the route of it alone."""
    limits = {path.needs.one_table for path in PATHS} - {None}
    assert limits == {(_largest("small_table_rows"), _largest("small_table_columns"))}


def _largest(knob: str) -> int:
    """The largest number in a knob's menu."""
    return max(value for value in KNOBS[knob].menu or () if isinstance(value, int))


def test_every_knob_has_a_row_and_takes_its_values() -> None:
    assert KNOBS.keys() == {field.name for field in dataclasses.fields(KernelConfig)}
    for knob, row in KNOBS.items():
        for value in row.menu or (1, 7):
            for target in TARGETS:
                assert getattr(KernelConfig.for_target(target, {knob: value}), knob) == value


@pytest.mark.parametrize(
    "row",
    [{"menu": (1, 2), "turns": (3,)}, {"drawn": (0,)}, {"menu": (True, False), "gpu": (1,)}, {"targets": {"hip": 0}}],
)
def test_a_row_whose_values_the_knob_does_not_take_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Knob(default=1, stage=BOTH, **row)


#: One table that may be counted, with a run of every length up to 4; and two of which none may.
SMALL_CASE = Case(
    tables=(Table(16, 64),),
    feature_table_map=(0,),
    batches=(Batch(features=(((0, 1, 1), (2, 2, 2), (3, 3, 3, 3)),)),),
    order=(0, 0),
    weights_dtype="float16",
)
CASES = (SMALL_CASE, replace(SMALL_CASE, weights_dtype="float32"))


def swept() -> set[str]:
    """The knobs that have more than one value among the other routings of some sweep."""
    found: set[str] = set()
    for case in CASES:
        _, *routings = sweep.routings(case, torch.device("cpu"))  # behind the case's own
        settings = [KernelConfig.for_target("interpreter", routing) for routing in routings]
        found |= {knob for knob in KNOBS if len({getattr(setting, knob) for setting in settings}) > 1}
    return found


@given(st.data())
@settings(max_examples=400, derandomize=True, database=None, deadline=None)
def drawn_by(into: dict[str, set[Any]], data: st.DataObject) -> None:
    """Collect the values of each knob in routings as they are drawn for all paths."""
    path = data.draw(st.sampled_from(PATHS))
    for knob, value in data.draw(routings(path.needs)).items():
        into.setdefault(knob, set()).add(value)


def test_every_knob_is_drawn_and_swept() -> None:
    values: dict[str, set[Any]] = {}
    drawn_by(values)
    assert {knob for knob in KNOBS if len(values.get(knob, ())) < 2} == set()
    assert KNOBS.keys() - swept() == set()


def test_a_knob_that_nobody_turns_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOBS, "bags_per_program", replace(KNOBS["bags_per_program"], turns=()))
    monkeypatch.setitem(KNOBS, "check_programs", replace(KNOBS["check_programs"], turns=(2,)))
    assert KNOBS.keys() - swept() == {"bags_per_program", "check_programs"}


def test_a_knob_that_is_hardly_drawn_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOBS, "bags_per_program", replace(KNOBS["bags_per_program"], drawn=(3,)))
    values: dict[str, set[Any]] = {}
    drawn_by(values)
    assert values["bags_per_program"] == {3}
