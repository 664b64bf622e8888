"""The end of a run: one screen, with the sharpest and the loosest bounds; the rest is asked for, or in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracles.values.compare import Sharpness
from tests.record import ENDS, Record

#: Lines that a screen has.
SCREEN = 60


@pytest.fixture
def record() -> Record:
    """A run over every value of every axis, with hundreds of bounds: bound k has a worst error of k thousandths."""
    made = Record(examples=3, runs=9)
    made.sharpness = {f"ADAM | float32 | route {k} | weights": Sharpness(1, 1, 0, k / 1000) for k in range(600)}
    made.sharpness["exact alone"] = Sharpness(5, 0, 0, 0.0)
    for axis in ("weights", "output", "ids", "pooling", "optimizer", "merge", "values", "rounding", "gradient"):
        made.axes.update({f"{axis} {value}": 3 for value in range(9)})
    return made


def test_a_run_ends_on_one_screen(record: Record) -> None:
    lines = record.table()
    assert len(lines) < SCREEN
    shown = [line for line in lines if line.startswith("ADAM")]
    assert [line.split(" | ")[2] for line in shown] == [
        f"route {k}" for k in (*range(599, 599 - ENDS, -1), *range(ENDS - 1, -1, -1))
    ]
    assert "591 more bounds" in lines[-1]


def test_the_whole_is_asked_for_or_in_a_file(record: Record, tmp_path: Path) -> None:
    assert sum(line.startswith("ADAM") for line in record.table(whole=True)) == 600
    record.keep(tmp_path / "build" / "summary.txt")
    assert (tmp_path / "build" / "summary.txt").read_text().splitlines()[-1].startswith("exact alone")
    record.keep(Path("/dev/null/build/summary.txt"))  # cannot be written, and need not


def test_what_was_not_reached_is_told(record: Record) -> None:
    assert "forward.pooled" in record.not_reached()
    record.drawn["forward.pooled"] = 1
    assert "forward.pooled," not in record.not_reached()
