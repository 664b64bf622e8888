"""What the judge must not let pass where the optimizer is NONE: each way in which what it leaves can be wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from corpus.case import Batch, Case, Optimizer, Table, Values
from oracles.adapters.torch_reference import IMPLEMENTATION
from oracles.check import Status, check
from oracles.implementation import Backward, LeftRowGradients, Trace
from tests.suite.test_judge import Spoiled, bump

#: Rows 0 and 1 of a table of two columns are touched, and row 2 of one of three: linear rows 0, 1 and 6.
CASE = Case(
    tables=(Table(4, 2), Table(3, 3)),
    feature_table_map=(0, 1),
    batches=(Batch((((0, 1, 1), ()), ((2,), (-1,)))),),
    order=(0, 0),
    optimizer=Optimizer("NONE"),
    values=Values(grad_bits=2),
)
CPU = torch.device("cpu")


def left(trace: Trace) -> LeftRowGradients:
    """What the backward left."""
    step = trace.steps[1]
    assert isinstance(step, Backward)
    assert step.row_gradients is not None
    return step.row_gradients


def _nothing(trace: Trace) -> None:
    assert isinstance(trace.steps[1], Backward)
    trace.steps[1].row_gradients = None


def _change_a_touched_weight(trace: Trace) -> None:
    assert isinstance(trace.steps[1], Backward)
    bump(trace.steps[1].weights[0], 1, 0)


def _row(place: int, row: int) -> Callable[[Trace], None]:
    return lambda trace: left(trace).rows.__setitem__(place, row)


def _one_more(trace: Trace) -> None:
    given = left(trace)
    given.rows, given.count = torch.cat((given.rows, torch.tensor([3]))), 4
    given.gradients = torch.cat((given.gradients, torch.zeros(1, 3)))


def _one_less(trace: Trace) -> None:
    left(trace).count = 2


def _count_beyond(trace: Trace) -> None:
    given = left(trace)
    given.rows, given.gradients = given.rows[:2], given.gradients[:2]


def _narrow(trace: Trace) -> None:
    left(trace).gradients = left(trace).gradients[:, :2]


def _half(trace: Trace) -> None:
    left(trace).gradients = left(trace).gradients.half()


SPOILS: dict[str, tuple[Callable[[Trace], None], str]] = {
    "nothing left": (_nothing, "no row gradients were left"),
    "a touched weight changed": (_change_a_touched_weight, "of untouched rows changed"),
    "another row": (_row(2, 5), "row gradients are of rows [0, 1, 5], without [6]"),
    "a row twice": (_row(1, 0), "row gradients are of rows [0, 0, 6], without [1]"),
    "a row of the wrong table": (_row(2, 2), "row gradients are of rows [0, 1, 2], without [6]"),
    "a row too many": (_one_more, "count = 4 of 4, expected 3"),
    "a row too few": (_one_less, "count = 2 of 3, expected 3"),
    "a count beyond the room": (_count_beyond, "count = 3 of 2, expected 3"),
    "a gradient one ulp off": (lambda t: bump(left(t).gradients, 1, 1), "1 of 4 row gradients of table 0"),
    "something in the padding": (lambda t: bump(left(t).gradients, 0, 2), "not zero beyond its D of 2"),
    "NaN in the padding": (lambda t: left(t).gradients.__setitem__((0, 2), torch.nan), "not zero beyond its D of 2"),
    "gradients too narrow": (_narrow, "row gradients are (3, 2) torch.float32, expected (3, 3)"),
    "gradients of fp16": (_half, "row gradients are (3, 3) torch.float16, expected (3, 3)"),
}


def test_the_right_trace_passes_in_any_order() -> None:
    verdict = check(CASE, IMPLEMENTATION, CPU)
    assert (verdict.status, verdict.findings, verdict.changed) == ("passed", [], True)

    def shuffle(trace: Trace) -> None:
        given, order = left(trace), torch.tensor([2, 0, 1])
        given.rows, given.gradients = given.rows[order], given.gradients[order]
        given.rows = torch.cat((given.rows, torch.tensor([-1])))  # behind the count: room that was not needed
        given.gradients = torch.cat((given.gradients, torch.zeros(1, 3)))

    assert check(CASE, Spoiled(shuffle), CPU).findings == []


@pytest.mark.parametrize("name", SPOILS)
def test_a_spoiled_trace_fails(name: str) -> None:
    spoil, headline = SPOILS[name]
    verdict = check(CASE, Spoiled(spoil), CPU)
    assert verdict.status is Status.FAILED
    assert headline in verdict.findings[0].headline


def test_an_optimizer_that_steps_must_leave_none() -> None:
    def leave(trace: Trace) -> None:
        assert isinstance(trace.steps[1], Backward)
        trace.steps[1].row_gradients = LeftRowGradients(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3), 0)

    case = dataclasses.replace(CASE, optimizer=Optimizer())
    verdict = check(case, Spoiled(leave), CPU)
    assert verdict.findings[0].headline == "row gradients were left by an optimizer that steps"
