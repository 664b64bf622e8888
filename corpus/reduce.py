"""Makes a failing case small: structure first, then ids, then every axis towards its plainest value.

Hypothesis finds failures; it does not shrink them here. A shrink step of its own would run the whole sweep again, most
of them on cases that pass; this reducer knows what a case is made of and needs the one routing that failed. It works on
any case, wherever it came from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from corpus.case import Bag, Batch, Case, CaseError, Optimizer, Sampled, Table, Values

Fails = Callable[[Case], bool]
Candidates = Iterator[Case | None]


def reduce(case: Case, fails: Fails, most_tries: int = 600) -> Case:
    """The smallest case that still `fails`, as far as single steps and `most_tries` calls lead."""
    tried = {case}
    progress = True
    while progress:
        progress = False
        for make in PASSES:
            while (smaller := _first_failing(make(case), fails, tried, most_tries)) is not None:
                case, progress = smaller, True
    return case


def _first_failing(candidates: Candidates, fails: Fails, tried: set[Case], most_tries: int) -> Case | None:
    """The first candidate not tried before that fails; None if there is none, or too many were tried."""
    for candidate in candidates:
        if len(tried) > most_tries:
            return None
        if candidate is None or candidate in tried:
            continue
        tried.add(candidate)
        if fails(candidate):
            return candidate
    return None


def _changed(case: Case, **changes: Any) -> Case | None:
    """The case with some fields changed, or None if that makes no case."""
    try:
        return replace(case, **changes)
    except CaseError:
        return None


def _without(items: tuple, place: int) -> tuple:
    return items[:place] + items[place + 1 :]


def _with(items: tuple, place: int, item: object) -> tuple:
    return (*items[:place], item, *items[place + 1 :])


def _fewer_batches(case: Case) -> Candidates:
    for k in range(len(case.batches)):
        if len(case.batches) > 1:
            order = tuple(i - (i > k) for i in case.order if i != k)
            if order:
                yield _changed(case, batches=_without(case.batches, k), order=order)
    for place in reversed(range(len(case.order))):
        if case.order[:place].count(case.order[place]) == 1:  # a backward
            yield _changed(case, order=_without(case.order, place))
    if case.order != tuple(sorted(case.order)):
        yield _changed(case, order=tuple(sorted(case.order)))


def _fewer_features(case: Case) -> Candidates:
    n = case.num_features
    spans = [(0, n // 2), (n // 2, n)] if n > 3 else []
    spans += [(f, f + 1) for f in range(n)] if n > 1 else []
    for begin, end in spans:
        if end - begin < n:
            kept = [f for f in range(n) if not begin <= f < end]
            batches = tuple(
                replace(
                    b,
                    features=tuple(b.features[f] for f in kept),
                    offsets_edits=_moved(b, range(case.bag_starts(k)[begin], case.bag_starts(k)[end])),
                    batch_size_per_feature_per_rank=_chosen(b.batch_size_per_feature_per_rank, kept),
                )
                for k, b in enumerate(case.batches)
            )
            yield _changed(case, feature_table_map=tuple(case.feature_table_map[f] for f in kept), batches=batches)


def _fewer_tables(case: Case) -> Candidates:
    for t in range(len(case.tables)):
        if t not in case.feature_table_map and len(case.tables) > 1:
            features = tuple(i - (i > t) for i in case.feature_table_map)
            yield _changed(case, tables=_without(case.tables, t), feature_table_map=features)
    for t in range(1, len(case.tables)):
        if t in case.feature_table_map:
            yield _changed(case, feature_table_map=tuple(0 if i == t else i for i in case.feature_table_map))


def _fewer_samples(case: Case) -> Candidates:
    for k, batch in enumerate(case.batches):
        if any(isinstance(f, Sampled) for f in batch.features):
            for name in ("samples", "mean_length"):
                halved = tuple(_halved(f, name) for f in batch.features)
                yield _changed(case, batches=_with(case.batches, k, replace(batch, features=halved)))
            continue
        starts = case.bag_starts(k)
        if batch.is_variable:
            for f, bags in enumerate(batch.features):
                for sample in range(len(bags) if isinstance(bags, tuple) else 0):
                    yield _changed(case, batches=_with(case.batches, k, _without_sample(batch, f, sample, starts[f])))
            continue
        for sample in range(starts[1]):
            features = tuple(_without(f, sample) for f in batch.features if isinstance(f, tuple))
            gone = range(sample, starts[-1], starts[1])
            fewer = replace(batch, features=features, offsets_edits=_moved(batch, gone))
            yield _changed(case, batches=_with(case.batches, k, fewer))


def _without_sample(batch: Batch, f: int, sample: int, first: int) -> Batch:
    """A variable batch without one sample of a feature, whose first bag is `first`."""
    sizes = batch.batch_size_per_feature_per_rank
    ends = [sum(sizes[f][: rank + 1]) for rank in range(len(sizes[f]))]
    rank = next(r for r, end in enumerate(ends) if sample < end)
    return replace(
        batch,
        features=_with(batch.features, f, _without(batch.features[f], sample)),  # type: ignore[arg-type]
        offsets_edits=_moved(batch, range(first + sample, first + sample + 1)),
        batch_size_per_feature_per_rank=_with(sizes, f, _with(sizes[f], rank, sizes[f][rank] - 1)),
    )


def _plainer_batches(case: Case) -> Candidates:
    """Variable batches as plain ones, or with all samples on one rank."""
    for k, batch in enumerate(case.batches):
        if batch.is_variable:
            one_rank = tuple((sum(sizes),) for sizes in batch.batch_size_per_feature_per_rank)
            for sizes in ((), one_rank):
                new = replace(batch, batch_size_per_feature_per_rank=sizes)
                yield _changed(case, batches=_with(case.batches, k, new))


def _chosen(items: tuple, kept: list[int]) -> tuple:
    return tuple(items[f] for f in kept) if items else ()


def _moved(batch: Batch, gone: range) -> tuple[tuple[int, int], ...]:
    """The batch's offset edits where their offsets lie once the bags `gone` are."""
    return tuple({place - sum(bag < place for bag in gone): value for place, value in batch.offsets_edits}.items())


def _simpler_edits(case: Case) -> Candidates:
    for k, batch in enumerate(case.batches):
        edits = batch.offsets_edits
        for n, (place, value) in enumerate(edits):
            others = _without(edits, n)
            candidates = [others] + [_with(edits, n, (place, v)) for v in (0, 1, -1) if v != value]
            candidates += [_with(edits, n, (p, value)) for p in range(place) if p not in dict(others)]
            for new in candidates:
                yield _changed(case, batches=_with(case.batches, k, replace(batch, offsets_edits=new)))


def _halved(feature: object, name: str) -> Sampled:
    assert isinstance(feature, Sampled)
    return replace(feature, **{name: max(1, getattr(feature, name) // 2)})


def _each_bag(case: Case) -> Iterator[tuple[Bag, Callable[[Bag], Case | None]]]:
    """Every bag, and a way to put another one in its place."""
    for k, batch in enumerate(case.batches):
        for f, bags in enumerate(batch.features):
            if isinstance(bags, Sampled):
                continue
            for b, bag in enumerate(bags):

                def put(
                    new: Bag, k: int = k, f: int = f, b: int = b, batch: Batch = batch, bags: tuple = bags
                ) -> Case | None:
                    features = _with(batch.features, f, _with(bags, b, new))
                    return _changed(case, batches=_with(case.batches, k, replace(batch, features=features)))

                yield bag, put


def _fewer_lookups(case: Case) -> Candidates:
    for bag, put in _each_bag(case):
        if bag:
            yield put(())
        if len(bag) > 2:
            half = len(bag) // 2
            yield put(bag[half:])
            yield put(bag[:half])
        for place in range(len(bag)):
            yield put(_without(bag, place))


def _shorter_repeats(case: Case) -> Candidates:
    for bag, put in _each_bag(case):
        for place, entry in enumerate(bag):
            if isinstance(entry, tuple):
                row, repeat = entry
                for fewer in sorted({1, 2, 3, 4, repeat // 2, repeat - 1}):
                    if 1 <= fewer < repeat:
                        yield put(_with(bag, place, row if fewer == 1 else (row, fewer)))


def _closer_ids(case: Case) -> Candidates:
    """The rows that a table's lookups name become its first ones, in the same order."""
    for t in range(len(case.tables)):
        named = sorted(_rows_named(case, t))
        close = dict(zip(named, range(len(named)), strict=True))
        batches = tuple(
            replace(
                b,
                features=tuple(
                    _renamed(f, close) if m == t else f for m, f in zip(case.feature_table_map, b.features, strict=True)
                ),
            )
            for b in case.batches
        )
        yield _changed(case, batches=batches)


def _rows_named(case: Case, table: int) -> set[int]:
    rows = {
        entry[0] if isinstance(entry, tuple) else entry
        for batch in case.batches
        for owner, bags in zip(case.feature_table_map, batch.features, strict=True)
        for bag in (bags if owner == table and isinstance(bags, tuple) else ())
        for entry in bag
    }
    return {row for row in rows if 0 <= row < case.tables[table].rows}


def _renamed(bags: tuple[Bag, ...] | Sampled, names: dict[int, int]) -> tuple[Bag, ...] | Sampled:
    if isinstance(bags, Sampled):
        return bags
    return tuple(
        tuple((names.get(e[0], e[0]), e[1]) if isinstance(e, tuple) else names.get(e, e) for e in bag) for bag in bags
    )


def _smaller_ids(case: Case) -> Candidates:
    for bag, put in _each_bag(case):
        for place, entry in enumerate(bag):
            row = entry[0] if isinstance(entry, tuple) else entry
            for smaller in (0, 1, row // 2):
                if 0 <= smaller < row:
                    yield put(_with(bag, place, (smaller, entry[1]) if isinstance(entry, tuple) else smaller))


def _smaller_tables(case: Case) -> Candidates:
    for t, table in enumerate(case.tables):
        for name in ("dim", "rows"):
            size = getattr(table, name)
            for smaller in sorted({1, 2, 3, size // 2, size - 1}):
                if 1 <= smaller < size:
                    yield _changed(case, tables=_with(case.tables, t, replace(table, **{name: smaller})))


PLAIN = Case(tables=(Table(1, 1),), feature_table_map=(0,), batches=(), order=())


def _plainer_axes(case: Case) -> Candidates:
    plain_optimizer = Optimizer(name=case.optimizer.name)
    for new in (Optimizer(), plain_optimizer, replace(case.optimizer, weight_decay=0.0, weight_decay_mode="NONE")):
        yield _changed(case, optimizer=new)
    for name in ("learning_rate", "eps"):
        yield _changed(case, optimizer=replace(case.optimizer, **{name: getattr(PLAIN.optimizer, name)}))
    yield _changed(case, bounds_check_mode="NONE")
    for name in (
        "pooling_mode",
        "weights_dtype",
        "output_dtype",
        "indices_dtype",
        "offsets_dtype",
        "bounds_check_mode",
    ):
        yield _changed(case, **{name: getattr(PLAIN, name)})
    for k, batch in enumerate(case.batches):
        for f in dataclasses.fields(Batch):
            if f.name != "features" and getattr(batch, f.name) != f.default:
                plain: Any = {f.name: f.default}
                yield _changed(case, batches=_with(case.batches, k, replace(batch, **plain)))


def _plainer_values(case: Case) -> Candidates:
    values = case.values
    if values.mode == "general":
        yield _changed(case, values=Values(seed=values.seed, specials=values.specials))
    yield _changed(case, values=replace(values, specials=False))
    yield _changed(case, values=replace(values, seed=0))
    for name in ("weight_bits", "grad_bits", "psw_bits") if values.mode == "exact" else ("spread",):
        for smaller in range(1, getattr(values, name)):
            change: Any = {name: smaller}
            yield _changed(case, values=replace(values, **change))


def _plainer_routing(case: Case) -> Candidates:
    for knob in case.routing:
        yield _changed(case, routing={k: v for k, v in case.routing.items() if k != knob})
    for knob, value in case.routing.items():
        if isinstance(value, int) and not isinstance(value, bool):
            for smaller in (1, 2, 3, 4):
                if smaller < value:
                    yield _changed(case, routing={**case.routing, knob: smaller})


def _shorter_schedule(case: Case) -> Candidates:
    """Fewer choices, more of them 0, smaller ones."""
    choices = case.schedule
    yield _changed(case, schedule=())
    yield _changed(case, schedule=choices[: len(choices) // 2])
    for place in reversed(range(len(choices))):
        yield _changed(case, schedule=_without(choices, place))
    for place, choice in enumerate(choices):
        for smaller in range(min(choice, 3)):
            yield _changed(case, schedule=_with(choices, place, smaller))


#: In this order, and again from the start while anything got smaller.
PASSES = (
    _fewer_batches,
    _fewer_features,
    _fewer_tables,
    _fewer_samples,
    _plainer_batches,
    _simpler_edits,
    _fewer_lookups,
    _shorter_repeats,
    _shorter_schedule,
    _plainer_axes,
    _closer_ids,
    _smaller_tables,
    _plainer_values,
    _plainer_routing,
    _smaller_ids,
)
