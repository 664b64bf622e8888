"""Launches that were seen: what is written again is what would be computed, and whatever differs is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from oracles import interpreter
from oracles.interpreter.pace import memo


@triton.jit
def scale_kernel(x, out, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0) * factor, mask=at < n)


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each launch that could be remembered, whether it had been seen."""
    interpreter.install()
    said: list[bool] = []
    plain = memo.Sight.repeat

    def repeat(sight: memo.Sight) -> bool:
        said.append(plain(sight))
        return said[-1]

    monkeypatch.setattr(memo.Sight, "repeat", repeat)
    return said


def launch(**changes: Any) -> torch.Tensor:
    """What one launch leaves."""
    given = {"x": torch.arange(8.0), "out": torch.zeros(8), "factor": 2.0, "n": 8, "grid": 2, "BLOCK": 4, **changes}
    grid = given.pop("grid")
    scale_kernel[(grid,)](**given)
    return given["out"]


def test_a_launch_is_seen_again_and_leaves_the_same(repeated: list[bool]) -> None:
    with memo.remembering():
        first, second = launch(), launch()
        with memo.remembering():
            third = launch(factor=3.0)
        fourth = launch(factor=3.0)
    assert repeated == [False, True, False, True]
    assert first.tolist() == second.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert third.tolist() == fourth.tolist() == [0, 3, 6, 9, 12, 15, 18, 21]


DIFFERENT: dict[str, Callable[[], dict[str, Any]]] = {
    "a bit of an input": lambda: {"x": torch.tensor([-0.0, 1, 2, 3, 4, 5, 6, 7])},
    "a bit of an output before": lambda: {"out": torch.full((8,), -0.0)},
    "a dtype": lambda: {"x": torch.arange(8, dtype=torch.int32)},
    "a shape": lambda: {"x": torch.arange(8.0).view(2, 4)},
    "a number": lambda: {"n": 7},
    "the kind of a number": lambda: {"factor": 2},
    "the sign of a zero": lambda: {"factor": -0.0},
    "the grid": lambda: {"grid": 1},
    "a compile-time constant": lambda: {"BLOCK": 8},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_launch_that_differs_is_run(what: str, repeated: list[bool]) -> None:
    plain = launch(**DIFFERENT[what]())
    with memo.remembering():
        launch()
        launch(factor=0.0)
        assert torch.equal(launch(**DIFFERENT[what]()), plain)
    assert repeated == [False, False, False]


def test_arguments_that_are_one_memory_are_told_from_two(repeated: list[bool]) -> None:
    same = torch.ones(8)
    with memo.remembering():
        launch(x=torch.ones(8), out=torch.ones(8))
        assert launch(x=same, out=same).tolist() == [2.0] * 8
    assert repeated == [False, False]


def test_what_overlaps_or_is_large_or_is_asked_outside_is_not_remembered(repeated: list[bool]) -> None:
    long = torch.arange(12.0)
    with memo.remembering():
        for _ in range(2):
            launch(x=long[:8].clone(), out=long[4:])  # apart
            launch(x=long[:8], out=long[4:])
            launch(x=torch.ones(memo.MOST_BYTES // 4))
    launch()
    assert repeated == [False, False]


def test_a_tensor_with_gaps_may_be_read_but_not_written(repeated: list[bool]) -> None:
    def columns() -> torch.Tensor:
        return torch.arange(16.0).view(8, 2)[:1].expand(4, 2)

    with memo.remembering():
        for _ in range(2):
            launch(x=columns(), n=2)
            launch(x=torch.ones(4), out=torch.zeros(8).view(4, 2)[:, 0], n=1)
    assert repeated == [False, False, True, False]
