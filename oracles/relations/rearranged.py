"""Metamorphic relations that put the same numbers in other places: samples, ids, features, rows, tables.

Each takes a case and returns it beside a rearranged one and a way back, or None where it does not apply; the first line
says what has to be equal. See `oracles.relations.relate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from corpus.case import Case, Table
from corpus.tensors import TableRows, random_bits
from oracles.relations.pieces import Bags, Part, put_together, take_apart
from oracles.relations.prerequisites import exact_values, several, sharing
from oracles.relations.steps import COUNTERS, OF_FEATURES, Key, Pair, StepPieces, each

#: Rows that nobody looks up, in front of tables that are stacked.
FILLER = 2


def permutation(case: Case, stream: int, count: int) -> Tensor:
    """Another order of `count` things, always the same for a case; not the same order, if there are two."""
    order = np.argsort(random_bits(case.values.seed, 5000 + stream, count), kind="stable")
    return torch.from_numpy(np.roll(order, int((order == np.arange(count)).all())))


def spans(ends: Tensor, order: Tensor) -> Tensor:
    """The places of the lookups of all bags, bag after bag in an order."""
    return torch.cat([torch.arange(int(ends[b]), int(ends[b + 1])) for b in order.tolist()] or [ends[:0]])


def samples(case: Case) -> Pair | None:
    """The bags of each feature in another order give the same outputs in that order, and teach rows the same.

    Applies if some feature has two bags, or can have.
    """

    def order(bags: Bags, stream: int) -> tuple[Tensor, Tensor]:
        bag_order = permutation(case, stream, len(bags.lengths))
        return bag_order, spans(bags.ends, bag_order)

    return _rearranged(several(case), order)


def ids(case: Case) -> Pair | None:
    """The lookups of each bag in another order, each with its per-sample weight, give the same. Without pooling each
    output goes with its lookup.

    Applies if some bag has two different lookups.
    """

    def order(bags: Bags, stream: int) -> tuple[Tensor, Tensor]:
        lengths = bags.lengths.tolist()
        moved = [permutation(case, stream + 7 * b, n) + int(bags.ends[b]) for b, n in enumerate(lengths)]
        return torch.arange(len(lengths)), torch.cat(moved or [bags.ends[:0]])

    return _rearranged(case, order)


def _rearranged(case: Case, order: Callable[[Bags, int], tuple[Tensor, Tensor]]) -> Pair | None:
    """Bags and lookups of each feature in the order that `order(bags, stream)` says."""
    case = exact_values(case)
    pieces = take_apart(case)
    if pieces is None:
        return None
    places: dict[tuple[str, int, int], Tensor] = {}
    batches, same = [], True
    for k, part in enumerate(pieces.batches):
        moved = []
        for f, bags in enumerate(part.features):
            bag_order, lookup_order = order(bags, 1000 * k + f)
            pools = lookup_order if case.pooling_mode == "NONE" else bag_order
            new = Bags(
                bags.ids[lookup_order],
                bags.lengths[bag_order],
                None if bags.psw is None else bags.psw[lookup_order],
                bags.gradients[pools],
            )
            same &= torch.equal(new.ids, bags.ids) and torch.equal(pools, torch.arange(len(pools)))
            same &= new.psw is None or bags.psw is None or torch.equal(new.psw, bags.psw)
            places["output", k, f], places["psw_gradient", k, f] = pools, lookup_order
            moved.append(new)
        batches.append(Part(part.given, tuple(moved)))

    def put_back(number: int, key: Key, x: Tensor) -> Tensor:
        name, f = key
        return x[torch.argsort(places[name, number, f])] if name in OF_FEATURES else x

    return None if same else Pair(case, put_together(pieces, pieces.tables, batches), each(case, put_back))


def features(case: Case) -> Pair | None:
    """The features in another order give the same outputs in that order, and teach rows the same. Two of them share a
    table.
    """
    case = sharing(exact_values(case))
    pieces = take_apart(case)
    if pieces is None:
        return None
    order = permutation(case, 0, case.num_features).tolist()
    batches = []
    for part in pieces.batches:
        given = replace(
            part.given,
            features=_chosen(part.given.features, order),
            batch_size_per_feature_per_rank=_chosen(part.given.batch_size_per_feature_per_rank, order),
            feature_requires_grad=_chosen(part.given.feature_requires_grad, order),
        )
        batches.append(Part(given, _chosen(part.features, order)))

    def back(steps: list[StepPieces]) -> list[StepPieces]:
        return [{(n, order[i] if n in OF_FEATURES else i): x for (n, i), x in step.items()} for step in steps]

    other = put_together(pieces, pieces.tables, batches, feature_table_map=_chosen(case.feature_table_map, order))
    return Pair(case, other, back)


def _chosen(items: tuple, order: list[int]) -> tuple:
    return tuple(items[f] for f in order) if items else ()


def rows(case: Case) -> Pair | None:
    """The rows of each table in other places, and the ids that name them changed alike, give the same.

    Applies if a table has two rows and no id is bad (it would be read as row 0, wherever that is now). Rounding is to
    nearest: noise depends on the place of a row.
    """
    case = replace(exact_values(case), stochastic_rounding=False)
    pieces = take_apart(case)
    if pieces is None or pieces.has_bad_ids() or not pieces.are_dense():
        return None
    orders = [permutation(case, t, table.rows) for t, table in enumerate(case.tables)]
    if max(map(len, orders)) < 2:
        return None
    inverse = [torch.argsort(order) for order in orders]
    tables = [TableRows(None, table.values[order]) for table, order in zip(pieces.tables, orders, strict=True)]
    batches = [_renamed(case, part, lambda t, ids: inverse[t][ids]) for part in pieces.batches]

    def put_back(number: int, key: Key, x: Tensor) -> Tensor:
        return x if key[0] in (*OF_FEATURES, *COUNTERS) else x[inverse[key[1]]]

    return Pair(case, put_together(pieces, tables, batches), each(case, put_back))


def _renamed(case: Case, part: Part, rename: Callable[[int, Tensor], Tensor]) -> Part:
    """The batch with other names for rows: `rename(table, ids)`; pruned ids stay."""
    new = []
    for table, bags in zip(case.feature_table_map, part.features, strict=True):
        pruned = bags.ids == -1
        new.append(replace(bags, ids=torch.where(pruned, -1, rename(table, torch.where(pruned, 0, bags.ids)))))
    return Part(part.given, tuple(new))


def stacked(case: Case) -> Pair | None:
    """All tables of one width as one table, behind rows that nobody looks up, and ids shifted alike, give the same:
    features that shared nothing now share a table, with ids of their own.

    Applies if no id is bad (it would be read as row 0 of another table, or name a row of it). Rounding is to nearest.
    """
    case = replace(exact_values(case), stochastic_rounding=False)
    pieces = take_apart(case)
    if pieces is None or pieces.has_bad_ids() or not pieces.are_dense():
        return None
    dims = sorted({table.dim for table in case.tables})
    owner, first = [dims.index(table.dim) for table in case.tables], []
    stacks = [[torch.full((FILLER, dim), torch.nan, dtype=pieces.tables[0].values.dtype)] for dim in dims]
    for stack, table in zip(owner, pieces.tables, strict=True):
        first.append(sum(map(len, stacks[stack])))
        stacks[stack].append(table.values)
    tables = [TableRows(None, torch.cat(stack)) for stack in stacks]
    other = put_together(
        pieces,
        tables,
        [_renamed(case, part, lambda t, ids: ids + first[t]) for part in pieces.batches],
        tables=tuple(Table(*table.values.shape) for table in tables),
        feature_table_map=tuple(owner[t] for t in case.feature_table_map),
    )

    def back(steps: list[StepPieces]) -> list[StepPieces]:
        out = []
        for step in steps:
            parts: StepPieces = {key: x for key, x in step.items() if key[0] in (*OF_FEATURES, *COUNTERS)}
            for name in {name for name, _ in step} - {*OF_FEATURES, *COUNTERS}:
                for t, table in enumerate(case.tables):
                    whole = step[name, owner[t]]
                    assert whole is not None
                    parts[name, t] = whole[first[t] : first[t] + table.rows]
            out.append(parts)
        return out

    return Pair(case, other, back)
