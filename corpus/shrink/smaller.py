"""Shrink steps that take something away: batches, features, samples, lookups, rows. See `corpus.shrink.reduce`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from corpus.case import Bag, Batch, Case, CaseError, Sampled

Candidates = Iterator[Case | None]


def changed(case: Case, **changes: Any) -> Case | None:
    """The case with some fields changed, or None if that makes no case."""
    try:
        return replace(case, **changes)
    except CaseError:
        return None


def without(items: tuple, place: int) -> tuple:
    return items[:place] + items[place + 1 :]


def with_(items: tuple, place: int, item: object) -> tuple:
    return (*items[:place], item, *items[place + 1 :])


def fewer_batches(case: Case) -> Candidates:
    for k in range(len(case.batches)):
        if len(case.batches) > 1:
            order = tuple(i - (i > k) for i in case.order if i != k)
            if order:
                yield changed(case, batches=without(case.batches, k), order=order)
    for place in reversed(range(len(case.order))):
        if case.order[:place].count(case.order[place]) == 1:  # a backward
            yield changed(case, order=without(case.order, place))
    if case.order != tuple(sorted(case.order)):
        yield changed(case, order=tuple(sorted(case.order)))


def fewer_features(case: Case) -> Candidates:
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
                    offsets_edits=moved(b, range(case.bag_starts(k)[begin], case.bag_starts(k)[end])),
                    batch_size_per_feature_per_rank=chosen(b.batch_size_per_feature_per_rank, kept),
                    feature_requires_grad=chosen(b.feature_requires_grad, kept),
                )
                for k, b in enumerate(case.batches)
            )
            yield changed(case, feature_table_map=tuple(case.feature_table_map[f] for f in kept), batches=batches)


def fewer_tables(case: Case) -> Candidates:
    for t in range(len(case.tables)):
        if t not in case.feature_table_map and len(case.tables) > 1:
            features = tuple(i - (i > t) for i in case.feature_table_map)
            yield changed(case, tables=without(case.tables, t), feature_table_map=features)
    for t in range(1, len(case.tables)):
        if t in case.feature_table_map:
            yield changed(case, feature_table_map=tuple(0 if i == t else i for i in case.feature_table_map))


def fewer_samples(case: Case) -> Candidates:
    for k, batch in enumerate(case.batches):
        if any(isinstance(f, Sampled) for f in batch.features):
            for name in ("samples", "mean_length"):
                halves = tuple(halved(f, name) for f in batch.features)
                yield changed(case, batches=with_(case.batches, k, replace(batch, features=halves)))
            continue
        starts = case.bag_starts(k)
        if batch.is_variable:
            for f, bags in enumerate(batch.features):
                for sample in range(len(bags) if isinstance(bags, tuple) else 0):
                    yield changed(case, batches=with_(case.batches, k, without_sample(batch, f, sample, starts[f])))
            continue
        for kept in sorted({starts[1] // 2, starts[1] // 2 + 1}) if starts[1] > 3 else ():
            lost = [bag for f in range(case.num_features) for bag in range(starts[f] + kept, starts[f + 1])]
            features = tuple(f[:kept] for f in batch.features if isinstance(f, tuple))
            fewer = replace(batch, features=features, offsets_edits=moved(batch, lost))
            yield changed(case, batches=with_(case.batches, k, fewer))
        for sample in range(starts[1]):
            features = tuple(without(f, sample) for f in batch.features if isinstance(f, tuple))
            gone = range(sample, starts[-1], starts[1])
            fewer = replace(batch, features=features, offsets_edits=moved(batch, gone))
            yield changed(case, batches=with_(case.batches, k, fewer))


def without_sample(batch: Batch, f: int, sample: int, first: int) -> Batch:
    """A variable batch without one sample of a feature, whose first bag is `first`."""
    sizes = batch.batch_size_per_feature_per_rank
    ends = [sum(sizes[f][: rank + 1]) for rank in range(len(sizes[f]))]
    rank = next(r for r, end in enumerate(ends) if sample < end)
    return replace(
        batch,
        features=with_(batch.features, f, without(batch.features[f], sample)),  # type: ignore[arg-type]
        offsets_edits=moved(batch, range(first + sample, first + sample + 1)),
        batch_size_per_feature_per_rank=with_(sizes, f, with_(sizes[f], rank, sizes[f][rank] - 1)),
    )


def plainer_batches(case: Case) -> Candidates:
    """Variable batches as plain ones, or with all samples on one rank."""
    for k, batch in enumerate(case.batches):
        if batch.is_variable:
            one_rank = tuple((sum(sizes),) for sizes in batch.batch_size_per_feature_per_rank)
            for sizes in ((), one_rank):
                new = replace(batch, batch_size_per_feature_per_rank=sizes)
                yield changed(case, batches=with_(case.batches, k, new))


def chosen(items: tuple, kept: list[int]) -> tuple:
    return tuple(items[f] for f in kept) if items else ()


def moved(batch: Batch, gone: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The batch's offset edits where their offsets lie once the bags `gone` are."""
    return tuple({place - sum(bag < place for bag in gone): value for place, value in batch.offsets_edits}.items())


def simpler_edits(case: Case) -> Candidates:
    for k, batch in enumerate(case.batches):
        edits = batch.offsets_edits
        for n, (place, value) in enumerate(edits):
            others = without(edits, n)
            candidates = [others] + [with_(edits, n, (place, v)) for v in (0, 1, -1) if v != value]
            candidates += [with_(edits, n, (p, value)) for p in range(place) if p not in dict(others)]
            for new in candidates:
                yield changed(case, batches=with_(case.batches, k, replace(batch, offsets_edits=new)))


def halved(feature: object, name: str) -> Sampled:
    assert isinstance(feature, Sampled)
    return replace(feature, **{name: max(1, getattr(feature, name) // 2)})


def each_bag(case: Case) -> Iterator[tuple[Bag, Callable[[Bag], Case | None]]]:
    """Every bag, and a way to put another one in its place."""
    for k, batch in enumerate(case.batches):
        for f, bags in enumerate(batch.features):
            if isinstance(bags, Sampled):
                continue
            for b, bag in enumerate(bags):

                def put(
                    new: Bag, k: int = k, f: int = f, b: int = b, batch: Batch = batch, bags: tuple = bags
                ) -> Case | None:
                    features = with_(batch.features, f, with_(bags, b, new))
                    return changed(case, batches=with_(case.batches, k, replace(batch, features=features)))

                yield bag, put


def fewer_lookups(case: Case) -> Candidates:
    for bag, put in each_bag(case):
        if bag:
            yield put(())
        if len(bag) > 2:
            half = len(bag) // 2
            yield put(bag[half:])
            yield put(bag[:half])
        for place in range(len(bag)):
            yield put(without(bag, place))


def joined_samples(case: Case) -> Candidates:
    """Two neighbouring samples as one that has the lookups of both."""
    for k, batch in enumerate(case.batches):
        starts = case.bag_starts(k)
        if batch.is_variable or any(isinstance(f, Sampled) for f in batch.features):
            continue
        for sample in range(1, starts[1]):
            features = tuple(
                (*f[: sample - 1], f[sample - 1] + f[sample], *f[sample + 1 :])
                for f in batch.features
                if isinstance(f, tuple)
            )
            gone = range(sample, starts[-1], starts[1])
            joined = replace(batch, features=features, offsets_edits=moved(batch, gone))
            yield changed(case, batches=with_(case.batches, k, joined))


def joined_features(case: Case) -> Candidates:
    """Two features of one table as one that has the lookups of both."""
    if case.is_sampled() or any(b.is_variable or b.offsets_edits for b in case.batches):
        return
    for f in range(1, case.num_features):
        if case.feature_table_map[f - 1] != case.feature_table_map[f]:
            continue
        kept = [g for g in range(case.num_features) if g != f]
        batches = []
        for batch in case.batches:
            pair = zip(batch.features[f - 1], batch.features[f], strict=True)  # type: ignore[arg-type]
            features = with_(batch.features, f - 1, tuple(a + b for a, b in pair))
            wanted = chosen(batch.feature_requires_grad, kept)
            batches.append(replace(batch, features=without(features, f), feature_requires_grad=wanted))
        yield changed(case, feature_table_map=without(case.feature_table_map, f), batches=tuple(batches))


def one_feature(case: Case) -> Candidates:
    """All features of one table as one that has the bags of all, one after the other: offsets stay what they are."""
    if len(set(case.feature_table_map)) > 1 or case.num_features == 1 or case.is_sampled():
        return
    batches = tuple(
        replace(
            batch,
            features=(tuple(bag for feature in batch.features for bag in feature),),  # type: ignore[union-attr]
            batch_size_per_feature_per_rank=(),
            feature_requires_grad=(),
        )
        for batch in case.batches
    )
    yield changed(case, feature_table_map=case.feature_table_map[:1], batches=batches)


def in_every_batch(case: Case) -> Candidates:
    """The same sample, or the same entry of a bag, taken from every batch: some faults need batches of one shape."""
    if len(case.batches) < 2 or any(b.is_variable or b.offsets_edits for b in case.batches) or case.is_sampled():
        return
    for sample in range(case.bag_starts(0)[1]):

        def drop(feature: int, bags: tuple, sample: int = sample) -> tuple:
            return without(bags, sample)

        yield every_batch(case, drop)
    for f, bags in enumerate(case.batches[0].features):
        for b, bag in enumerate(bags if isinstance(bags, tuple) else ()):
            for place, entry in enumerate(bag):
                for repeat in (None, 1, 2) if isinstance(entry, tuple) else (None,):

                    def change(
                        feature: int, bags: tuple, f: int = f, b: int = b, place: int = place, repeat: Any = repeat
                    ) -> tuple:
                        if feature != f or b >= len(bags) or place >= len(bags[b]):
                            return bags
                        if repeat is None:
                            return with_(bags, b, without(bags[b], place))
                        old = bags[b][place]
                        return with_(
                            bags, b, with_(bags[b], place, (old[0] if isinstance(old, tuple) else old, repeat))
                        )

                    yield every_batch(case, change)


def every_batch(case: Case, change: Callable[[int, tuple], tuple]) -> Case | None:
    batches = tuple(
        replace(batch, features=tuple(change(f, bags) for f, bags in enumerate(batch.features)))  # type: ignore[arg-type]
        for batch in case.batches
    )
    return changed(case, batches=batches)


def shorter_repeats(case: Case) -> Candidates:
    for bag, put in each_bag(case):
        for place, entry in enumerate(bag):
            if isinstance(entry, tuple):
                row, repeat = entry
                for fewer in sorted({1, 2, 3, 4, repeat // 2, repeat - 1}):
                    if 1 <= fewer < repeat:
                        yield put(with_(bag, place, row if fewer == 1 else (row, fewer)))


def closer_ids(case: Case) -> Candidates:
    """The rows that a table's lookups name become its first ones, in the same order."""
    for t in range(len(case.tables)):
        named = sorted(rows_named(case, t))
        close = dict(zip(named, range(len(named)), strict=True))
        batches = tuple(
            replace(
                b,
                features=tuple(
                    renamed(f, close) if m == t else f for m, f in zip(case.feature_table_map, b.features, strict=True)
                ),
            )
            for b in case.batches
        )
        yield changed(case, batches=batches)


def rows_named(case: Case, table: int) -> set[int]:
    rows = {
        entry[0] if isinstance(entry, tuple) else entry
        for batch in case.batches
        for owner, bags in zip(case.feature_table_map, batch.features, strict=True)
        for bag in (bags if owner == table and isinstance(bags, tuple) else ())
        for entry in bag
    }
    return {row for row in rows if 0 <= row < case.tables[table].rows}


def renamed(bags: tuple[Bag, ...] | Sampled, names: dict[int, int]) -> tuple[Bag, ...] | Sampled:
    if isinstance(bags, Sampled):
        return bags
    return tuple(
        tuple((names.get(e[0], e[0]), e[1]) if isinstance(e, tuple) else names.get(e, e) for e in bag) for bag in bags
    )


def smaller_ids(case: Case) -> Candidates:
    for bag, put in each_bag(case):
        for place, entry in enumerate(bag):
            row = entry[0] if isinstance(entry, tuple) else entry
            for smaller in (0, 1, row // 2):
                if 0 <= smaller < row:
                    yield put(with_(bag, place, (smaller, entry[1]) if isinstance(entry, tuple) else smaller))


def smaller_tables(case: Case) -> Candidates:
    for t, table in enumerate(case.tables):
        for name in ("dim", "rows"):
            size = getattr(table, name)
            for smaller in sorted({1, 2, 3, size // 2, size - 1}):
                if 1 <= smaller < size:
                    yield changed(case, tables=with_(case.tables, t, replace(table, **{name: smaller})))
