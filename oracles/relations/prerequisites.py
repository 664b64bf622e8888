"""Cases made fit for a metamorphic relation: one that has not got what it needs, such as two samples, is given it.

A relation compares two runs with each other, so neither has to be the very case that was drawn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from corpus.case import Batch, Case, Optimizer, Values, samples_of

#: A learning rate that keeps EXACT_SGD exact.
RATE = 0.5


def exact_values(case: Case) -> Case:
    """The case with numbers whose sums can be exact; which are is proved later."""
    values = case.values
    if values.mode == "exact":
        return case
    kept: dict[str, Any] = {name: getattr(values, name) for name in ("specials", "zero_rows", "psw_specials")}
    return replace(case, values=Values(seed=values.seed, **kept))


def linear(case: Case) -> Case:
    """The case, made linear in its gradients: EXACT_SGD on fp32 weights, or NONE, without infinities."""
    case = exact_values(case)
    case = replace(case, values=replace(case.values, specials=False, largest=False, psw_specials=False))
    if case.optimizer.name == "NONE":
        return case
    optimizer = Optimizer("EXACT_SGD", RATE, max_gradient=case.optimizer.max_gradient)
    return replace(case, optimizer=optimizer, weights_dtype="float32")


def sharing(case: Case) -> Case:
    """The case, with two features of one table: if it has none, its first feature a second time."""
    owners = case.feature_table_map
    if len(set(owners)) < len(owners):
        return case
    batches = tuple(
        replace(
            batch,
            features=(*batch.features, batch.features[0]),
            batch_size_per_feature_per_rank=_doubled(batch.batch_size_per_feature_per_rank),
            feature_requires_grad=_doubled(batch.feature_requires_grad),
        )
        for batch in case.batches
    )
    return replace(case, feature_table_map=(*owners, owners[0]), batches=batches)


def _doubled(items: tuple) -> tuple:
    return (*items, *items[:1])


def several(case: Case) -> Case:
    """The case, with two samples or more: where a batch has one, it comes a second time, with a gradient of its own."""
    return replace(case, batches=tuple(_twice(batch) for batch in case.batches))


def _twice(batch: Batch) -> Batch:
    if batch.offsets_edits or max(map(samples_of, batch.features)) != 1:
        return batch
    sizes = tuple(tuple(2 * n for n in of_feature) for of_feature in batch.batch_size_per_feature_per_rank)
    bags = tuple((*f, *f) if isinstance(f, tuple) else f for f in batch.features)
    return replace(batch, features=bags, batch_size_per_feature_per_rank=sizes)
