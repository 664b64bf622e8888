"""Named hard places: inputs at which embedding kernels have failed, as predicates over cases.

A test searches each with the strategy that ought to get there and fails if it does not. A new kernel path adds its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from corpus.case import (
    GRAD_LAYOUTS,
    INPUT_LAYOUTS,
    INPUTS,
    OPTIMIZERS,
    Batch,
    Case,
    Sampled,
    bag_length,
    expand,
    samples_of,
)
from corpus.optimizers import KINDS
from strategies import counted
from strategies.routing import config_of

Region = Callable[[Case], bool]

#: Regions for which one has to aim: the kernel path whose cases get there.
AIMED = {
    "a run at the default threshold": "backward.long_run.atomic",
    "a run one below a multiple of the chunk": "backward.long_run.ordered",
    "a run at a multiple of the chunk": "backward.long_run.ordered",
    "a run one above a multiple of the chunk": "backward.long_run.ordered",
    "an id of exactly the row count": "check.indices",
    "an id that fits once cut to 32 bits": "check.indices",
    "malformed offsets": "check.offsets",
    "malformed offsets where a block begins": "check.offsets",
    "a refusal behind a feature without samples": "check.indices",
    "more samples than a small block of offsets": "check.offsets",
    **counted.AIMED,
}


def _bags(batch: Batch) -> Iterator[list[int]]:
    for feature in batch.features:
        for bag in () if isinstance(feature, Sampled) else feature:
            yield list(expand(bag))


def _runs(case: Case) -> Iterator[int]:
    """How often each row of each batch is looked up, over all features of its table."""
    for batch in case.batches:
        counts: Counter[tuple[int, int]] = Counter()
        for table, feature in zip(case.feature_table_map, batch.features, strict=True):
            for bag in () if isinstance(feature, Sampled) else feature:
                counts.update((table, i) for i in expand(bag) if i >= 0)
        yield from counts.values()


def _has_run(length: Callable[[Case], set[int]]) -> Region:
    return lambda case: any(n in length(case) for n in _runs(case))


def _threshold(offset: int) -> Region:
    return _has_run(lambda case: {config_of(case.routing).long_run_threshold + offset})


def _chunk_multiple(offset: int) -> Region:
    """A run of a multiple of the chunk, 2 or more, give or take: with chunks of 3 and up, so that they differ."""

    def lengths(case: Case) -> set[int]:
        config = config_of(case.routing)
        multiples = {k * config.chunk_size + offset for k in (2, 3)} if config.chunk_size > 2 else set()
        return {n for n in multiples if n >= config.long_run_threshold}

    return _has_run(lengths)


def _bag_at_gather(offset: int) -> Region:
    def holds(case: Case) -> bool:
        wanted = {k * config_of(case.routing).gather_width + offset for k in (1, 2)}
        return any(len(bag) in wanted for batch in case.batches for bag in _bags(batch) if bag)

    return holds


def _lengths(case: Case) -> Iterator[list[int]]:
    """Bag lengths of each feature of each batch."""
    for batch in case.batches:
        for feature in batch.features:
            if not isinstance(feature, Sampled):
                yield [bag_length(bag) for bag in feature]


def _any_id(predicate: Callable[[int, int], bool]) -> Region:
    """Some lookup whose id and row count of its table fit."""

    def holds(case: Case) -> bool:
        for batch in case.batches:
            for table, feature in zip(case.feature_table_map, batch.features, strict=True):
                for bag in () if isinstance(feature, Sampled) else feature:
                    if any(predicate(i, case.tables[table].rows) for i in expand(bag)):
                        return True
        return False

    return holds


def _widths(case: Case) -> set[int]:
    return {case.tables[t].dim for t in case.feature_table_map}


def _has_layout(layout: str) -> Region:
    return lambda case: any(batch.grad_layout == layout for batch in case.batches)


def _has_input(argument: str, layout: str) -> Region:
    return lambda case: any(batch.layout_of(argument) == layout for batch in case.batches)


def _refused_behind_nothing(case: Case) -> bool:
    """A bad id of a feature that begins at the same bag as the one before it, which has none."""
    for batch in case.batches if case.bounds_check_mode == "FATAL" else ():
        empty = False
        for table, feature in zip(case.feature_table_map, batch.features, strict=True):
            bags = () if isinstance(feature, Sampled) else feature
            if empty and any(not -1 <= i < case.tables[table].rows for bag in bags for i in expand(bag)):
                return True
            empty = not samples_of(feature)
    return False


def _has_steps(optimizer: str, steps: int) -> Region:
    """So many backwards with an optimizer."""
    return lambda case: case.optimizer.name == optimizer and len(case.order) - len(set(case.order)) >= steps


REGIONS: dict[str, Region] = {
    "a run one below the threshold": _threshold(-1),
    "a run at the threshold": _threshold(0),
    "a run one above the threshold": _threshold(1),
    "a run one below a multiple of the chunk": _chunk_multiple(-1),
    "a run at a multiple of the chunk": _chunk_multiple(0),
    "a run one above a multiple of the chunk": _chunk_multiple(1),
    "a run at the default threshold": _has_run(lambda case: {256}),
    "a bag one below the gather width": _bag_at_gather(-1),
    "a bag at the gather width": _bag_at_gather(0),
    "a bag one above the gather width": _bag_at_gather(1),
    "the first bag empty": lambda c: any(n and n[0] == 0 and sum(n) for n in _lengths(c)),
    "the last bag empty": lambda c: any(n and n[-1] == 0 and sum(n) for n in _lengths(c)),
    "every other bag empty": lambda c: any(len(n) > 3 and not any(n[1::2]) and all(n[::2]) for n in _lengths(c)),
    "one giant bag": lambda c: any(len(n) > 2 and sum(n) == max(n) > 8 for n in _lengths(c)),
    "no lookup at all": lambda c: any(c.bag_starts(k)[-1] and not any(_bags(b)) for k, b in enumerate(c.batches)),
    "no sample": lambda c: any(c.bag_starts(k)[-1] == 0 for k in range(len(c.batches))),
    "more samples than a small block of offsets": lambda c: any(c.bag_starts(k)[1] > 15 for k in range(len(c.batches))),
    "a variable batch": lambda c: any(b.is_variable for b in c.batches),
    "several ranks": lambda c: any(len(b.batch_size_per_feature_per_rank[0]) > 1 for b in c.batches if b.is_variable),
    "a feature without samples beside one with some": lambda c: any(
        b.is_variable and min(map(samples_of, b.features)) == 0 < max(map(samples_of, b.features)) for b in c.batches
    ),
    "a variable batch of several widths": lambda c: len(_widths(c)) > 1 and any(b.is_variable for b in c.batches),
    "no pooling in a variable batch": lambda c: c.pooling_mode == "NONE" and any(b.is_variable for b in c.batches),
    "bags walked in several strides": lambda c: (
        max(c.bag_starts(k)[1] for k in range(len(c.batches)))
        > config_of(c.routing).forward_programs * config_of(c.routing).bags_per_program
    ),
    "features around 32": lambda c: c.num_features in (31, 32, 33),
    "features around 64": lambda c: c.num_features in (64, 65),
    "features around 128": lambda c: c.num_features in (128, 129),
    "a shared table": lambda c: len(set(c.feature_table_map)) < c.num_features < 31,
    "no pooling beside an unused table of another width": lambda c: (
        c.pooling_mode == "NONE" and len({t.dim for t in c.tables}) > 1
    ),
    "an unused table": lambda c: len(set(c.feature_table_map)) < len(c.tables),
    "features out of table order": lambda c: list(c.feature_table_map) != sorted(c.feature_table_map),
    "three widths": lambda c: len(_widths(c)) > 2,
    "rows wider than a forward tile": lambda c: max(_widths(c)) > config_of(c.routing).max_block_d,
    "rows wider than 2048": lambda c: max(_widths(c)) > 2048,
    "a width that nothing divides": lambda c: any(w % 2 and w > 32 for w in _widths(c)),
    "a table of one row": lambda c: any(c.tables[t].rows == 1 for t in c.feature_table_map),
    "a pruned id": _any_id(lambda i, rows: i == -1),
    "a bag of pruned ids": lambda c: any(bag and set(bag) == {-1} for b in c.batches for bag in _bags(b)),
    "an id of exactly the row count": _any_id(lambda i, rows: i == rows),
    "an id that fits once cut to 32 bits": _any_id(lambda i, rows: i >= 2**32 and i % 2**32 < rows),
    "malformed offsets": lambda c: any(b.offsets_edits for b in c.batches),
    "malformed offsets where a block begins": lambda c: any(
        place and place % config_of(c.routing).block == 0 for b in c.batches for place, _ in b.offsets_edits
    ),
    "a refusal behind a feature without samples": _refused_behind_nothing,
    "two forwards before two backwards": lambda c: c.order[:2] == (0, 1),
    "two forwards of one shape before two backwards": lambda c: (
        c.order[:2] == (0, 1) and [*_lengths(c)][: c.num_features] == [*_lengths(c)][c.num_features :][: c.num_features]
    ),
    "backwards in the opposite order": lambda c: c.order == (0, 1, 1, 0),
    "the learning rate changes between steps": lambda c: any(b.learning_rate for b in c.batches[1:]),
    **{f"a gradient that is {layout}": _has_layout(layout) for layout in GRAD_LAYOUTS[1:]},
    **{f"{name} that are {layout}": _has_input(name, layout) for name in INPUTS for layout in INPUT_LAYOUTS},
    "weights and outputs of different types": lambda c: c.weights_dtype != c.output_dtype,
    "ids and offsets of different types": lambda c: c.indices_dtype != c.offsets_dtype,
    "infinities and NaNs": lambda c: c.values.specials,
    "stochastic rounding of fp16": lambda c: c.stochastic_rounding and c.weights_dtype == "float16",
    "stochastic rounding of bf16": lambda c: c.stochastic_rounding and c.weights_dtype == "bfloat16",
    "stochastic rounding asked of fp32": lambda c: c.stochastic_rounding and c.weights_dtype == "float32",
    "stochastic rounding of subnormal weights": lambda c: c.stochastic_rounding and c.values.scale < -14,
    "stochastic rounding beside the largest number": lambda c: c.stochastic_rounding and c.values.largest,
    "a looked-up row of zeros": lambda c: c.values.zero_rows and any(_runs(c)),
    "eps of zero": lambda c: c.optimizer.eps == 0.0 and "eps" in KINDS[c.optimizer.name].hyper,
    **{f"three steps of {name}": _has_steps(name, 3) for name in OPTIMIZERS},
    "clipped gradients": lambda c: c.optimizer.max_gradient is not None,
    "clipped gradients and trained per-sample weights": lambda c: (
        c.optimizer.max_gradient is not None and any(b.psw == "trained" for b in c.batches)
    ),
    "a bound on the norm of a row": lambda c: c.optimizer.max_norm > 0,
    "decay in the formula": lambda c: c.optimizer.weight_decay > 0 and c.optimizer.weight_decay_mode == "NONE",
    "a beta of zero": lambda c: (
        "beta1" in KINDS[c.optimizer.name].hyper and 0.0 in (c.optimizer.beta1, c.optimizer.beta2)
    ),
    **counted.FORWARD,
    **counted.BACKWARD,
}
