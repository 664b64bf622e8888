"""A case taken apart into the pieces that a metamorphic relation moves, and put together again as another case.

A relation has to bring every number along with the lookup, bag or row that it belongs to. So a case is taken apart by
table and by feature, its numbers made; what is put together carries its numbers with it (`corpus.tensors.Carried`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corpus.case import Batch, Case
from corpus.tensors import Carried, TableRows, batch_tensors, ids_and_lengths, output_places, table_rows
from oracles.contract import effective_batch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Bags:
    """One feature's part of a batch.

    `ids` int64 `[N]`, `lengths` int64 `[bags]`, `psw` fp32 `[N]` or None. `gradients` `[pools, D]`: of each bag, or of
    each lookup where nothing is pooled.
    """

    ids: Tensor
    lengths: Tensor
    psw: Tensor | None
    gradients: Tensor

    @property
    def ends(self) -> Tensor:
        """Where each bag begins, and the end of the last: `[bags + 1]`."""
        return torch.cat((torch.zeros(1, dtype=torch.int64), torch.cumsum(self.lengths, 0)))

    def counts(self) -> Tensor:
        """How many lookups of each bag are not pruned."""
        live = torch.cat((torch.zeros(1, dtype=torch.int64), torch.cumsum(self.ids != -1, 0)))[self.ends]
        return live[1:] - live[:-1]


@dataclass(frozen=True)
class Part:
    """One batch: its options, and its bags by feature."""

    given: Batch
    features: tuple[Bags, ...]


@dataclass(frozen=True)
class Pieces:
    """A whole case: its options, what its tables hold, its batches."""

    case: Case
    tables: tuple[TableRows, ...]
    batches: tuple[Part, ...]

    def are_dense(self) -> bool:
        """Whether every row of every table is filled, and so can be moved."""
        return all(table.rows is None for table in self.tables)

    def has_bad_ids(self) -> bool:
        """Whether any id is neither a row of its table nor -1."""
        rows = [self.case.tables[t].rows for t in self.case.feature_table_map]
        return any(
            bool(((bags.ids < -1) | (bags.ids >= n)).any())
            for part in self.batches
            for n, bags in zip(rows, part.features, strict=True)
        )


def take_apart(case: Case) -> Pieces | None:
    """The pieces of a case. None if its ids are a distribution, if offsets are malformed, so that lookups move from bag
    to bag, or if a FATAL bounds check refuses a batch."""
    if case.is_sampled() or any(batch.offsets_edits for batch in case.batches):
        return None
    if any(effective_batch(case, k).refusal is not None for k in range(len(case.batches))):
        return None
    return Pieces(case, table_rows(case), tuple(_part(case, k) for k in range(len(case.batches))))


def _part(case: Case, number: int) -> Part:
    tensors, starts = batch_tensors(case, number, CPU), case.bag_starts(number)
    ids, lengths = map(torch.tensor, ids_and_lengths(case, number))
    ends = torch.cat((torch.zeros(1, dtype=torch.int64), torch.cumsum(lengths, 0)))[list(starts)].tolist()
    psw = None if tensors.per_sample_weights is None else tensors.per_sample_weights.detach()
    gradient = tensors.grad_output.reshape(-1)
    features = [
        Bags(
            ids=ids[ends[f] : ends[f + 1]],
            lengths=lengths[starts[f] : starts[f + 1]],
            psw=None if psw is None else psw[ends[f] : ends[f + 1]],
            gradients=gradient[places],
        )
        for f, places in enumerate(output_places(case, number, np.diff(ends)).of_feature)
    ]
    return Part(case.batches[number], tuple(features))


def put_together(pieces: Pieces, contents: Sequence[TableRows], parts: Sequence[Part], **options: Any) -> Case:
    """A case with the options of `pieces.case`, others as `options` say, whose tables and batches hold these pieces."""
    given = []
    for part in parts:
        bags = tuple(
            tuple(tuple(bag.tolist()) for bag in feature.ids.split(feature.lengths.tolist()))
            for feature in part.features
        )
        # Numbers that are carried are spelt out, even if they were one number for all.
        layout = "contiguous" if part.given.grad_layout.startswith("expanded") else part.given.grad_layout
        given.append(replace(part.given, features=bags, grad_layout=layout))
    plain = replace(pieces.case, batches=tuple(given), **options)
    values = Carried(
        mode=plain.values.mode,
        seed=plain.values.seed,
        tables=tuple(contents),
        psw=tuple(_joined_psw(part) for part in parts),
        gradients=tuple(_joined_gradient(plain, k, part) for k, part in enumerate(parts)),
    )
    return replace(plain, values=values)


def _joined_psw(part: Part) -> Tensor | None:
    some = [bags.psw for bags in part.features if bags.psw is not None]
    return torch.cat(some) if some else None


def _joined_gradient(case: Case, number: int, part: Part) -> Tensor:
    places = output_places(case, number, np.array([len(bags.ids) for bags in part.features]))
    flat = torch.zeros(int(np.prod(places.shape)), dtype=part.features[0].gradients.dtype)
    for where, bags in zip(places.of_feature, part.features, strict=True):
        flat[where] = bags.gradients
    return flat.view(places.shape)
