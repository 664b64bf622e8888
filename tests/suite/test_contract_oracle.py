"""The contract on bad ids and offsets, worked out by hand."""

from __future__ import annotations

import pytest

from corpus.case import Batch, Case, Table
from oracles.contract import Refusal, effective_batch


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
