"""The reference as an implementation of its own: what autograd and a real optimizer give, rounded as the contract says.

It shows how small an adapter can be, lets the suite judge its own reference, and can stand in for kernels:
`python -m corpus replay --impl oracles.adapters.torch_reference:IMPLEMENTATION`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from corpus.case import Case
from corpus.tensors import table_rows
from oracles.implementation import Backward, Forward, Routing, Trace
from oracles.values.interval import Interval
from oracles.values.judge import first_state
from oracles.values.optimizers import RULES
from oracles.values.reference import ReferenceBatch
from oracles.values.row_gradients import left_by_reference


class TorchReference:
    """`torch.nn.functional.embedding_bag` in fp64 and `torch.optim`."""

    name = "torch reference"

    def supports(self, case: Case) -> str | None:
        """Everything that a case can say."""
        return None

    def accumulator(self, case: Case, routing: Routing) -> torch.dtype:
        """fp64 throughout."""
        return torch.float64

    def routings(self, case: Case, device: torch.device) -> Iterator[Routing]:
        """There is nothing to choose."""
        yield {}

    def sweep_paths(self, case: Case) -> list[set[str]]:
        """There are no paths."""
        return []

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """Run the case's steps on the CPU."""
        tracked, trace = table_rows(case), Trace()
        batches = {k: ReferenceBatch(case, k, tracked) for k in set(case.order)}
        weights = [rows.values for rows in tracked]
        state = first_state(case, tracked)
        rate, warnings, backwards = case.optimizer.learning_rate, 0, 0
        for kind, number in case.steps():
            batch = batches[number]
            if batch.effective.refusal is not None:
                trace.refusal = batch.effective.refusal
                trace.steps.append(Backward(number, weights, state, None, True, backwards))
                break
            if kind == "forward":
                warnings += batch.effective.warnings
                output = _middle(batch.forward(weights, torch.float64))
                trace.steps.append(
                    Forward(number, output.view(batch.output.shape).to(getattr(torch, case.output_dtype)), warnings)
                )
                continue
            backwards += 1
            rate = rate if batch.given.learning_rate is None else batch.given.learning_rate
            expected = batch.backward(weights, state, rate, backwards, torch.float64)
            weights, state = [w.clone() for w in weights], [dict(s) for s in state]
            for t, table in enumerate(expected.tables):
                weights[t][table.touched] = _middle(table.weights).to(weights[t].dtype)
                for name, value in table.state.items():
                    state[t][name] = state[t][name].clone()
                    state[t][name][table.touched] = _middle(value).to(torch.float32)
            psw = expected.psw_gradient
            gradient = None if psw is None else _middle(psw).to(torch.float32)
            left = None
            if not RULES[case.optimizer.name].steps:
                left = left_by_reference(case, tracked, expected)
            trace.steps.append(Backward(number, weights, state, gradient, True, backwards, left))
        return trace


def _middle(allowed: Interval) -> torch.Tensor:
    """The middle of what is allowed: where that is one number, the number."""
    middle = allowed.lo + (allowed.hi - allowed.lo) / 2
    return torch.where(allowed.is_point(), allowed.lo, middle)


IMPLEMENTATION = TorchReference()
