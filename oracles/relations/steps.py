"""A trace step by step as named pieces: outputs and psw gradients by feature, weights and state by table.

So two runs compare whose batches, features or rows lie in other places: a relation moves pieces back, see
`oracles.relations.relate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corpus.case import Case
from corpus.tensors import output_places, table_rows
from oracles.contract import effective_batch
from oracles.implementation import Forward, LeftRowGradients, Trace

#: What a piece is, and the number of its feature or table (0 for a counter).
Key = tuple[str, int]
#: By feature: "output" `[pools, D]`, "psw_gradient" `[N]`. By table, `[rows, ...]`: "weights", the optimizer's states,
#: and with the optimizer NONE "gradient" and "touched". Counters: "warnings", "iterations". A relation puts None where
#: it says nothing.
StepPieces = dict[Key, Tensor | None]
#: From the steps of one run to what those of another one must be.
Back = Callable[[list[StepPieces]], list[StepPieces]]
OF_FEATURES = ("output", "psw_gradient")
COUNTERS = ("warnings", "iterations")


def steps_of(case: Case, trace: Trace) -> list[StepPieces]:
    """The pieces of each step. Raises ValueError for a result that does not have its shape."""
    steps: list[StepPieces] = []
    for step in trace.steps:
        starts, offsets = case.bag_starts(step.batch), effective_batch(case, step.batch).offsets
        spans = offsets[list(starts)]
        if isinstance(step, Forward):
            places = output_places(case, step.batch, np.diff(spans))
            if tuple(step.output.shape) != places.shape:
                raise ValueError(f"output is {tuple(step.output.shape)}, expected {places.shape}")
            flat = step.output.reshape(-1)
            pieces: StepPieces = {("output", f): flat[where] for f, where in enumerate(places.of_feature)}
            pieces |= _counter("warnings", step.warnings)
        else:
            pieces = _counter("iterations", step.iterations)
            for t, weights in enumerate(step.weights):
                pieces["weights", t] = weights
                pieces |= {(name, t): value for name, value in step.state[t].items()}
            if step.psw_gradient is not None:
                if step.psw_gradient.shape != (spans[-1],):
                    raise ValueError(f"psw gradients are {tuple(step.psw_gradient.shape)}, expected {(spans[-1],)}")
                parts = step.psw_gradient.split(np.diff(spans).tolist())
                pieces |= {("psw_gradient", f): part for f, part in enumerate(parts)}
            if step.row_gradients is not None:
                pieces |= _row_gradients(case, step.row_gradients)
        steps.append(pieces)
    return steps


def _counter(name: str, count: int | None) -> StepPieces:
    return {} if count is None else {(name, 0): torch.tensor([count])}


def _row_gradients(case: Case, left: LeftRowGradients) -> StepPieces:
    """By table: the gradients of all tracked rows, and how often each was named."""
    pieces: StepPieces = {}
    rows, gradients = left.rows[: left.count], left.gradients[: left.count]
    first = 0
    for t, (table, tracked) in enumerate(zip(case.tables, table_rows(case), strict=True)):
        mine = (rows >= first) & (rows < first + table.rows)
        places = rows[mine] - first
        if tracked.rows is not None:
            places = torch.searchsorted(tracked.rows, places)
        n = len(tracked.values)
        gradient = torch.zeros(n, table.dim, dtype=torch.float32)
        pieces["gradient", t] = gradient.index_add(0, places, gradients[mine][:, : table.dim])
        pieces["touched", t] = torch.bincount(places, minlength=n)
        first += table.rows
    return pieces


def each(case: Case, change: Callable[[int, Key, Tensor], Tensor | None]) -> Back:
    """A way back that changes one piece at a time, knowing the number of its batch in `case`."""

    def back(steps: list[StepPieces]) -> list[StepPieces]:
        return [
            {key: None if x is None else change(number, key, x) for key, x in step.items()}
            for (_, number), step in zip(case.steps(), steps, strict=False)
        ]

    return back


@dataclass(frozen=True)
class Pair:
    """Two cases of which one says what the other must give.

    `back` takes the steps of `other` to what those of `case` have to be. `in_order`: sums are added up in the same
    order, so that they need not be exact. `adds_changes`: changes of weights are added up, which have to be exact.
    """

    case: Case
    other: Case
    back: Back
    in_order: bool = False
    adds_changes: bool = False
