"""Metamorphic relations that split what is linear into parts that add up: a shared table, a batch of samples.

A row takes one step with the sum of its gradients, so parts that are stepped one by one add up to the same change only
where a step is linear: EXACT_SGD, on fp32 weights that no step rounds, and NONE, whose sums of gradients add up. What a
later forward reads depends on which parts have been stepped, so it is compared with NONE alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from corpus.case import Case
from oracles.relations.pieces import Bags, Part, put_together, take_apart
from oracles.relations.prerequisites import linear, several, sharing
from oracles.relations.steps import COUNTERS, OF_FEATURES, Pair, StepPieces


def apart(case: Case) -> Pair | None:
    """Every feature on a copy of its table gives the same outputs as features that share a table, and what a row learns
    is what its copies learn together.
    """
    case = sharing(linear(case))
    pieces = take_apart(case)
    shared = case.feature_table_map
    if pieces is None:
        return None
    unused = [t for t in range(len(case.tables)) if t not in shared]
    source = [*shared, *unused]
    other = put_together(
        pieces,
        [pieces.tables[t] for t in source],
        pieces.batches,
        tables=tuple(case.tables[t] for t in source),
        feature_table_map=tuple(range(len(shared))),
    )
    copies = [[place for place, t in enumerate(source) if t == table] for table in range(len(case.tables))]

    def back(steps: list[StepPieces]) -> list[StepPieces]:
        out, stepped = [], False
        for (kind, _), step in zip(case.steps(), steps, strict=False):
            parts: StepPieces = {}
            for (name, i), x in step.items():
                if name in COUNTERS:
                    parts[name, i] = x
                elif name in OF_FEATURES:
                    parts[name, i] = None if stepped else x
            for name in {name for name, _ in step} - {*OF_FEATURES, *COUNTERS}:
                for t, mine in enumerate(copies):
                    before = pieces.tables[t].values if name == "weights" else None
                    every = torch.stack([_given(step[name, copy]) for copy in mine])
                    parts[name, t] = every.max(0).values if name == "touched" else _together(every, before)
            stepped |= kind == "backward" and case.optimizer.name != "NONE"
            out.append(parts)
        return out

    return Pair(case, other, back, adds_changes=case.optimizer.name != "NONE")


def _given(piece: Tensor | None) -> Tensor:
    assert piece is not None
    return piece


def _together(parts: Tensor, before: Tensor | None) -> Tensor:
    """The sum of parts, or what `before` comes to with the changes of all of them."""
    start = torch.zeros(()) if before is None else before
    start = start.to(torch.float64)
    return (start + (parts.to(torch.float64) - start).sum(0)).to(parts.dtype)


def batches(case: Case) -> Pair | None:
    """The samples of a batch in two batches give the same outputs, and the two backwards together teach what the one
    does. The gradients of per-sample weights are compared only if the first backward steps nothing.

    Applies if some batch has two samples of a feature, or can have.
    """
    case = several(linear(case))
    pieces = take_apart(case)
    if pieces is None or all(len(bags.lengths) < 2 for part in pieces.batches for bags in part.features):
        return None
    halves = [_half(case, part, first) for part in pieces.batches for first in (True, False)]
    order = tuple(half for k in case.order for half in (2 * k, 2 * k + 1))
    keeps_rows = case.optimizer.name == "NONE"

    def back(steps: list[StepPieces]) -> list[StepPieces]:
        out = []
        for first, second in zip(steps[::2], steps[1::2], strict=False):
            joined: StepPieces = {}
            for key in second:
                name, before, x = key[0], _given(first[key]), _given(second[key])
                if name == "output" or (name == "psw_gradient" and keeps_rows):
                    joined[key] = torch.cat((before, x))
                elif name in ("gradient", "touched"):
                    joined[key] = before.maximum(x) if name == "touched" else before + x
                elif name == "psw_gradient":
                    joined[key] = None
                else:
                    joined[key] = x // 2 if name == "iterations" else x
            out.append(joined)
        return out

    return Pair(case, put_together(pieces, pieces.tables, halves, order=order), back, adds_changes=not keeps_rows)


def _half(case: Case, part: Part, first: bool) -> Part:
    """The first half of each feature's bags, or the rest."""
    new, sizes = [], []
    for bags in part.features:
        middle = len(bags.lengths) // 2
        lookup = int(bags.ends[middle])
        pool = lookup if case.pooling_mode == "NONE" else middle
        lookups, pools = (slice(lookup), slice(pool)) if first else (slice(lookup, None), slice(pool, None))
        lengths = bags.lengths[:middle] if first else bags.lengths[middle:]
        psw = None if bags.psw is None else bags.psw[lookups]
        new.append(Bags(bags.ids[lookups], lengths, psw, bags.gradients[pools]))
        sizes.append((len(lengths),))
    ranks = tuple(sizes) if part.given.is_variable else ()
    return Part(replace(part.given, batch_size_per_feature_per_rank=ranks), tuple(new))
