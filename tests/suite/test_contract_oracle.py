"""The contract on bad ids and offsets, worked out by hand."""

from __future__ import annotations

import pytest

from corpus.case import Batch, Case, Table
from oracles.adapters.routes import look_at
from oracles.contract import Refusal, effective_batch, run_lengths, runs
from oracles.report import facts


def case(bags: tuple, edits: tuple = (), mode: str = "WARNING", rows: tuple[int, int] = (3, 5)) -> Case:
    tables = tuple(Table(r, 2) for r in rows)
    return Case(tables, (0, 1), (Batch(bags, offsets_edits=edits),), (0, 0), bounds_check_mode=mode)


def test_bad_ids_become_row_0_and_are_counted() -> None:
    batch = effective_batch(case((((0, 3, -2), ()), ((4, 5), (2**32,)))), 0)
    assert batch.ids.tolist() == [0, 0, 0, 4, 0, 0]
    assert batch.warnings == 4
    assert batch.refusal is None


def test_minus_one_is_pruned_and_not_bad() -> None:
    batch = effective_batch(case((((-1,), ()), ((), (-1, 4)))), 0)
    assert (batch.ids.tolist(), batch.warnings) == ([-1, -1, 4], 0)


@pytest.mark.parametrize("mode", ["IGNORE", "FATAL"])
def test_only_warning_counts(mode: str) -> None:
    assert effective_batch(case((((3,), ()), ((), ())), mode=mode), 0).warnings == 0


def test_fatal_names_the_first_bad_id_of_its_own_table() -> None:
    """Index 3 is bad for table 0 only; the first bad one stands in feature 0, sample 1."""
    batch = effective_batch(case((((0,), (3, -9)), ((3,), (5,))), mode="FATAL"), 0)
    assert batch.refusal == Refusal("indices", feature=0, bag=1, index=3, rows=3, place=1)


@pytest.mark.parametrize(
    ("edits", "expected", "changed"),
    [
        (((0, 1),), [0, 1, 2, 3, 4], 1),
        (((1, -1),), [0, 0, 2, 3, 4], 1),
        (((1, 3),), [0, 3, 3, 3, 4], 1),
        (((2, 1000),), [0, 1, 4, 4, 4], 2),
        (((4, 2),), [0, 1, 2, 3, 4], 1),
        (((4, 9),), [0, 1, 2, 3, 4], 1),
    ],
)
def test_offsets_are_repaired(edits: tuple, expected: list[int], changed: int) -> None:
    """Offsets 0 1 2 3 4 with one entry overwritten: first 0, running maximum clamped to [0, N], last N."""
    batch = effective_batch(case((((0,), (1,)), ((2,), (3,))), edits, rows=(9, 9)), 0)
    assert batch.offsets.tolist() == expected
    assert batch.warnings == changed


def test_fatal_judges_offsets_before_ids() -> None:
    batch = effective_batch(case((((9,), (1,)), ((2,), (3,))), ((2, 0),), "FATAL"), 0)
    assert batch.refusal == Refusal("offsets", feature=1, bag=0, index=0, rows=4, place=2)


def test_moved_offsets_move_ids_to_another_table() -> None:
    """Index 4 is bad in table 0 and good in table 1; with the offset between them at 0, it belongs to table 1."""
    given = case((((4,), ()), ((), ())), ((1, 0), (2, 0)))
    assert effective_batch(given, 0).ids.tolist() == [4]
    assert effective_batch(case((((4,), ()), ((), ()))), 0).ids.tolist() == [0]


#: Four pruned ids; row 2; and a bad id, which becomes row 0.
FOUR_PRUNED = Case((Table(4, 2),), (0,), (Batch((((-1, -1, -1, -1, 2, 9),),)),), (0, 0))


def test_run_lengths_are_counted_once_and_told_alike() -> None:
    made = runs(FOUR_PRUNED, 0)
    assert (made.rows.tolist(), made.lengths.tolist()) == ([0, 2], [1, 1])
    assert made.of_each.tolist() == [0, 0, 0, 0, 1, 1]
    look = look_at(FOUR_PRUNED, 0)
    assert look is not None
    assert look.rows_by_length == {1: 2}
    assert facts(FOUR_PRUNED).endswith("longest run 1")


def test_runs_go_over_every_feature_of_a_table_and_over_no_other() -> None:
    shared = Case((Table(3, 2), Table(5, 2)), (1, 0, 1), (Batch((((4, 1),), ((1, 1),), ((4, 4),))),), (0, 0))
    made = runs(shared, 0)
    assert [*zip(made.tables.tolist(), made.rows.tolist(), strict=True)] == [(0, 1), (1, 1), (1, 4)]
    assert run_lengths(shared, 0) == [2, 1, 3]
    assert (made.length(1, 4), made.length(0, 4)) == (3, 0)
