"""Judging one trace of a case, step by step, against the reference.

Every step is judged from what the implementation itself had before it. What the reference says about a state is worked
out once and shared by all routings that arrive at the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from corpus.case import Case
from corpus.tensors import TableRows, table_rows
from oracles.contract import runs
from oracles.implementation import Backward, Forward, Implementation, Routing, Trace
from oracles.values import optimizers
from oracles.values.compare import SHOWN, Difference, Finding, Place, Sharpness, bits, compare, compare_bits
from oracles.values.interval import Interval
from oracles.values.reference import ExpectedBackward, ExpectedRows, ReferenceBatch
from oracles.values.row_gradients import compare_row_gradients

State = list[optimizers.State]
#: The name of a place, or more about it.
Where = Callable[[Place], str]


def _nothing(at: Place) -> str:
    return ""


@dataclass
class Judgement:
    """What was found in one trace. `sharpness` by (optimizer, weights dtype, route, quantity); `changed`: whether the
    reference changed any weight, that is, whether a wrong backward could have been seen."""

    findings: list[Finding] = field(default_factory=list)
    sharpness: dict[tuple[str, str, str, str], Sharpness] = field(default_factory=dict)
    changed: bool = False


def first_state(case: Case, tracked: tuple[TableRows, ...]) -> State:
    """The optimizer's state before any step: zeros."""
    rule = optimizers.RULES[case.optimizer.name]
    return [
        {
            ours: torch.zeros(len(rows.values) if ours in rule.per_row else rows.values.shape, dtype=torch.float32)
            for ours, _ in rule.state_names
        }
        for rows in tracked
    ]


class Judge:
    """Judges traces of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.tracked = table_rows(case)
        self.batches = {k: ReferenceBatch(case, k, self.tracked) for k in set(case.order)}
        self._known: dict[Any, Any] = {}
        self._admitted: dict[Any, Sharpness] = {}

    def judge(self, trace: Trace, implementation: Implementation, routing: Routing) -> Judgement:
        """Everything that is wrong with a trace, up to and with the first step that is wrong."""
        if trace.damage:
            return Judgement([Finding(line) for line in trace.damage])
        return _TraceJudge(self, trace, implementation, routing).go()

    def remember(self, key: tuple[Any, ...], weights: list[Tensor], state: State, work: Callable[[], Any]) -> Any:
        """`work()`, once for each key and bits of weights and state."""
        image = tuple(bits(x).numpy().tobytes() for x in (*weights, *(value for s in state for value in s.values())))
        if (key, image) not in self._known:
            self._known[key, image] = work()
        return self._known[key, image]

    def compare(
        self, name: str, expected: Interval, actual: Tensor, place: Where, tally: Sharpness, detail: Where = _nothing
    ) -> list[Finding]:
        """`compare` of what `remember` gave; bits that were admitted once are not looked at again."""
        key = (id(expected), actual.dtype, bits(actual).numpy().tobytes())
        if key not in self._admitted:
            sharpness = Sharpness()
            findings = compare(name, expected, actual, place, sharpness, detail)
            if findings:
                return findings
            self._admitted[key] = sharpness
        tally.add(self._admitted[key])
        return []


class _TraceJudge:
    """One trace being judged: walks its steps beside the case's."""

    def __init__(self, judge: Judge, trace: Trace, implementation: Implementation, routing: Routing) -> None:
        self.judge, self.case, self.trace = judge, judge.case, trace
        self.implementation, self.routing = implementation, routing
        self.accumulator = implementation.accumulator(self.case, routing)
        self.route = "+".join(
            sorted(p.split(".", 1)[1] for p in trace.paths if "_run" in p or p.endswith("from_counts"))
        )
        self.weights = [rows.values for rows in judge.tracked]
        self.state = first_state(self.case, judge.tracked)
        self.learning_rate = self.case.optimizer.learning_rate
        self.steps = optimizers.RULES[self.case.optimizer.name].steps
        self.warnings = self.backwards = 0
        self.result = Judgement()

    def go(self) -> Judgement:
        """Judge step after step until one is wrong."""
        observed = iter(self.trace.steps)
        for kind, number in self.case.steps():
            batch, step = self.judge.batches[number], next(observed, None)
            if batch.effective.refusal is not None:
                self.result.findings += self._refusal(batch, step)
                break
            if kind == "forward" and isinstance(step, Forward):
                self.result.findings += self._forward(batch, step)
            elif kind == "backward" and isinstance(step, Backward):
                self.result.findings += self._backward(batch, step)
                self.weights, self.state = step.weights, step.state
            else:
                found = type(step).__name__ if step else "nothing"
                line = f"expected the {kind} of batch {number}, found {found}; refused: {self.trace.refusal}"
                self.result.findings.append(Finding(line))
            if self.result.findings:
                break
        return self.result

    def _refusal(self, batch: ReferenceBatch, step: Forward | Backward | None) -> list[Finding]:
        """FATAL has to raise, name the right place and leave every bit as it was."""
        if self.trace.refusal != batch.effective.refusal or not isinstance(step, Backward):
            return [Finding(f"the bounds check gave {self.trace.refusal}, expected {batch.effective.refusal}")]
        return [
            finding
            for quantity, t, old, new in self._quantities(step)
            for finding in compare_bits(f"{quantity}[t={t}] after refusal", old, new)
        ]

    def _forward(self, batch: ReferenceBatch, step: Forward) -> list[Finding]:
        self.warnings += batch.effective.warnings
        if step.warnings is not None and step.warnings != self.warnings:
            return [Finding(f"bounds_check_warning = {step.warnings}, expected {self.warnings}")]
        key = ("forward", step.batch, self.accumulator, step.tensor_products)
        expected: Interval = self.judge.remember(
            key, self.weights, [], lambda: batch.forward(self.weights, self.accumulator, step.tensor_products)
        )
        want = (batch.output.shape, getattr(torch, self.case.output_dtype))
        have = (tuple(step.output.shape), step.output.dtype)
        if have != want:
            return [Finding(f"output is {have[0]} {have[1]}, expected {want[0]} {want[1]}")]

        return self.judge.compare(
            f"outputs, batch {step.batch}",
            expected,
            step.output.reshape(-1),
            batch.place,
            self._tally("forward", "small_table" * step.tensor_products),
        )

    def _backward(self, batch: ReferenceBatch, step: Backward) -> list[Finding]:
        self.backwards += 1
        new_rate = batch.given.learning_rate
        self.learning_rate = self.learning_rate if new_rate is None else new_rate
        key = ("backward", step.batch, self.accumulator, self.learning_rate, self.backwards, step.tensor_products)
        expected: ExpectedBackward = self.judge.remember(
            key,
            self.weights,
            self.state,
            lambda: batch.backward(
                self.weights, self.state, self.learning_rate, self.backwards, self.accumulator, step.tensor_products
            ),
        )
        findings = []
        if not step.weights_grad_is_none:
            findings.append(Finding("weights.grad is not None after a backward that updates the weights itself"))
        if step.iterations is not None and step.iterations != self.backwards:
            findings.append(Finding(f"iter = {step.iterations}, expected {self.backwards}"))
        for quantity, t, old, new in self._quantities(step):
            findings += self._rows(step, quantity, t, expected.tables[t], old, new)
        findings += self._row_gradients(step, expected)
        findings += self._psw(step, expected.psw_gradient)
        if self.case.stochastic_rounding and not findings:
            findings += self._alike(step, expected)
        return findings

    def _alike(self, step: Backward, expected: ExpectedBackward) -> list[Finding]:
        """Chance is a function of the seed, the iteration and the element: whoever has the same number to store at the
        same place in the same step stores it alike. Zeros may differ in sign."""
        key = ("stored", step.batch, self.backwards, self.learning_rate, step.tensor_products)
        first: list[Tensor] = self.judge.remember(key, self.weights, self.state, lambda: step.weights)
        if first is step.weights:
            return []
        findings = []
        for t, table in enumerate(expected.tables):
            was, now = first[t][table.touched], step.weights[t][table.touched]
            self._tally("alike").exact += int((table.certain & ~table.weights.is_point()).sum())
            places = (table.certain & (was != now) & ~(was.isnan() & now.isnan())).nonzero().tolist()
            if places:
                shown = tuple(
                    Difference(self._weight(t, table, r, c), float(now[r, c]), float(was[r, c]), 0.0)
                    for r, c in places[:SHOWN]
                )
                line = f"{len(places)} weights of table {t} rounded otherwise than on another routing"
                findings.append(Finding(f"{line}, batch {step.batch}", shown, across=True))
        return findings

    def _weight(self, t: int, table: ExpectedRows, row: int, column: int) -> str:
        """The name of a weight of a touched row."""
        tracked, rows = int(table.touched[row]), self.judge.tracked[t].rows
        return f"weights[t={t}][row {tracked if rows is None else int(rows[tracked])}, col {column}]"

    def _row_gradients(self, step: Backward, expected: ExpectedBackward) -> list[Finding]:
        """Left by the optimizer that steps nothing, and by no other."""
        if self.steps:
            return [] if step.row_gradients is None else [Finding("row gradients were left by an optimizer that steps")]
        self.result.changed |= any(len(table.touched) > 0 for table in expected.tables)
        return compare_row_gradients(
            self.case, self.judge.tracked, expected, step.row_gradients, self._tally("row_gradients")
        )

    def _rows(
        self, step: Backward, quantity: str, t: int, table: ExpectedRows, old: Tensor, new: Tensor
    ) -> list[Finding]:
        """Untouched rows keep every bit; touched ones are what a step allows."""
        name = f"{quantity}[t={t}]"
        untouched = torch.ones(len(old), dtype=torch.bool)
        if self.steps:
            untouched[table.touched] = False
        findings = compare_bits(f"{name} of untouched rows", old, new, untouched)
        if findings or untouched.all():
            return findings
        allowed = table.weights if quantity == "weights" else table.state[quantity]
        rows = self.judge.tracked[t].rows
        describe = None if step.tensor_products else getattr(self.implementation, "describe_run", None)

        def place(at: Place) -> str:
            row = int(table.touched[at[0]])
            column = f", col {at[1]}" if len(at) > 1 else ""
            return f"{name}[row {row if rows is None else int(rows[row])}{column}]"

        def detail(at: Place) -> str:
            row = int(table.touched[at[0]])
            length = runs(self.case, step.batch).length(t, row if rows is None else int(rows[row]))
            way = describe(self.case, self.routing, length) if describe else "from counts" * step.tensor_products
            return f"{length} lookups" + (f", {way}" if way else "")

        if quantity == "weights" and not self.result.changed:
            self.result.changed = not bool(allowed.admits(old[table.touched]).all())
        headline = f"{quantity} of table {t} after the backward of batch {step.batch}"
        return self.judge.compare(headline, allowed, new[table.touched], place, self._tally(quantity), detail)

    def _psw(self, step: Backward, expected: Interval | None) -> list[Finding]:
        have = step.psw_gradient
        if expected is None:
            return [] if have is None else [Finding("per_sample_weights.grad was filled, but nobody asked for it")]
        if have is None or have.shape != expected.lo.shape:
            shape = None if have is None else tuple(have.shape)
            return [Finding(f"per_sample_weights.grad has shape {shape}, expected {tuple(expected.lo.shape)}")]
        headline = f"psw gradients, batch {step.batch}"
        return self.judge.compare(
            headline, expected, have, lambda at: f"psw_gradient[{at[0]}]", self._tally("psw_gradient")
        )

    def _quantities(self, step: Backward) -> Iterator[tuple[str, int, Tensor, Tensor]]:
        """(quantity, table, before, after) of each table's weights and of each of its states."""
        for t in range(len(self.weights)):
            yield "weights", t, self.weights[t], step.weights[t]
            for name, before in self.state[t].items():
                yield name, t, before, step.state[t][name]

    def _tally(self, quantity: str, route: str = "") -> Sharpness:
        route = route if quantity in ("forward", "psw_gradient") else self.route
        key = (self.case.optimizer.name, self.case.weights_dtype, route, quantity)
        return self.result.sharpness.setdefault(key, Sharpness())
