"""Metamorphic relations that say the same in other words: other types, other layouts, other units, other modes.

Each takes a case and returns it beside a rewritten one and a way back, or None where it does not apply; the first line
says what has to be equal. See `oracles.relations.relate`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corpus.case import Case
from corpus.optimizers import GRADIENT, KINDS, WEIGHT
from corpus.tensors import Carried, TableRows, batch_tensors, ids_and_lengths, table_rows
from oracles.relations.exactness import clipped
from oracles.relations.pieces import CPU, Bags, Part, put_together, take_apart
from oracles.relations.prerequisites import exact_values
from oracles.relations.steps import Key, Pair, each


def twice(case: Case) -> Pair | None:
    """The same run again gives the same, whatever the first one left behind in the process. Always applies."""
    return Pair(case, case, lambda steps: steps, in_order=True)


def integers(case: Case) -> Pair | None:
    """int32 and int64 ids and offsets, each in place of the other, give the same, refusals and warnings as well.

    Applies if all ids fit int32.
    """
    other = {"int32": "int64", "int64": "int32"}
    limits = np.iinfo(np.int32)
    for k in range(len(case.batches)):
        ids = ids_and_lengths(case, k)[0]
        if len(ids) and not limits.min <= ids.min() <= ids.max() <= limits.max:
            return None
    changed = replace(case, indices_dtype=other[case.indices_dtype], offsets_dtype=other[case.offsets_dtype])
    return Pair(case, changed, lambda steps: steps, in_order=True)


def layout(case: Case) -> Pair | None:
    """A gradient or an input that is expanded, transposed, sliced or at an odd address gives what the same numbers do
    that lie side by side.

    Applies if something does not.
    """
    if all(batch.grad_layout == "contiguous" and not batch.input_layouts for batch in case.batches):
        return None
    tensors = [batch_tensors(case, k, CPU) for k in range(len(case.batches))]
    psw = [t.per_sample_weights for t in tensors]
    values = Carried(
        mode=case.values.mode,
        seed=case.values.seed,
        tables=table_rows(case),
        psw=tuple(None if weights is None else weights.detach() for weights in psw),
        gradients=tuple(t.grad_output.contiguous() for t in tensors),
    )
    batches = tuple(replace(batch, grad_layout="contiguous", input_layouts=()) for batch in case.batches)
    return Pair(case, replace(case, batches=batches, values=values), lambda steps: steps, in_order=True)


def ones(case: Case) -> Pair | None:
    """Per-sample weights of 1 give what no per-sample weights give. Of SUM, which alone takes them."""
    batches = tuple(replace(batch, psw="none", feature_requires_grad=()) for batch in case.batches)
    case = replace(exact_values(case), pooling_mode="SUM", batches=batches)
    pieces = take_apart(case)
    if pieces is None:
        return None
    weighted = [
        Part(replace(part.given, psw="given"), tuple(replace(b, psw=torch.ones(len(b.ids))) for b in part.features))
        for part in pieces.batches
    ]
    return Pair(case, put_together(pieces, pieces.tables, weighted), lambda steps: steps)


def mean(case: Case) -> Pair | None:
    """The MEAN of a bag is its SUM, divided by how many of its lookups are not pruned; and a gradient that is divided
    by it teaches with SUM what it teaches undivided with MEAN. Of fp32 outputs, in which the sum is not rounded.
    """
    batches = tuple(replace(batch, psw="none", feature_requires_grad=()) for batch in case.batches)
    case = replace(exact_values(case), pooling_mode="MEAN", output_dtype="float32", batches=batches)
    pieces = take_apart(case)
    if pieces is None:
        return None
    counts = [[bags.counts().clamp(min=1)[:, None] for bags in part.features] for part in pieces.batches]

    def divided(bags: Bags, count: Tensor) -> Bags:
        # Clipped before they are divided, which makes them no larger: clipping them again changes nothing.
        return replace(bags, gradients=clipped(bags.gradients, case.optimizer.max_gradient) / count)

    sums = [
        Part(part.given, tuple(divided(bags, count) for bags, count in zip(part.features, of_part, strict=True)))
        for part, of_part in zip(pieces.batches, counts, strict=True)
    ]

    def divide(number: int, key: Key, x: Tensor) -> Tensor:
        return x / counts[number][key[1]] if key[0] == "output" else x

    return Pair(case, put_together(pieces, pieces.tables, sums, pooling_mode="SUM"), each(case, divide))


#: Weights and gradients in units of these sizes; powers of two, so that nothing rounds otherwise.
WEIGHT_UNIT, GRADIENT_UNIT = 2.0**2, 2.0**-3


def units(case: Case) -> Pair | None:
    """Weights and gradients in other units, and each hyper-parameter in the units that it comes in, give the same in
    these units: outputs are linear in the weights, the gradients of a row in those of the output, and so on.

    The units are powers of two. bf16 stands in for fp16, in which small numbers are rounded otherwise.
    """
    wide = {"float16": "bfloat16"}
    case = replace(
        case,
        weights_dtype=wide.get(case.weights_dtype, case.weights_dtype),
        output_dtype=wide.get(case.output_dtype, case.output_dtype),
    )
    pieces = take_apart(case)
    if pieces is None:
        return None
    given, kind = case.optimizer, KINDS[case.optimizer.name]
    of_all = {
        "weights": WEIGHT,
        "output": WEIGHT,
        "psw_gradient": (1, 1),
        "gradient": GRADIENT,
        "max_gradient": GRADIENT,
    }

    def size(name: str) -> float:
        of_weights, of_gradients = of_all.get(name) or kind.unit(name, given.weight_decay_mode)
        return (1.0 if kind.keeps_unit else WEIGHT_UNIT) ** of_weights * GRADIENT_UNIT**of_gradients

    hyper = {name: getattr(given, name) for name in ("learning_rate", "max_gradient", *kind.hyper)}
    other = put_together(
        pieces,
        [TableRows(table.rows, table.values * size("weights")) for table in pieces.tables],
        [
            Part(
                replace(part.given, learning_rate=_times(part.given.learning_rate, size("learning_rate"))),
                tuple(replace(bags, gradients=bags.gradients * GRADIENT_UNIT) for bags in part.features),
            )
            for part in pieces.batches
        ],
        optimizer=replace(given, **{name: _times(number, size(name)) for name, number in hyper.items()}),
    )

    def in_our_units(number: int, key: Key, x: Tensor) -> Tensor:
        return x / size(key[0]) if x.is_floating_point() else x

    return Pair(case, other, each(case, in_our_units), in_order=True)


def _times(number: float | None, factor: float) -> Any:
    return None if number is None else number * factor
