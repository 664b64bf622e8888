"""Shrink steps that leave the structure and make the rest plain: options, values, knobs, schedules. See
`corpus.shrink.reduce`."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from corpus.case import Batch, Case, Optimizer, Table, Values
from corpus.shrink.smaller import (
    Candidates,
    changed,
    fewer_batches,
    fewer_features,
    fewer_lookups,
    fewer_samples,
    fewer_tables,
    with_,
    without,
)

OTHER_SEEDS = (0, 1, 2, 3)
#: One element in 32 is an infinity or a NaN, so that a few numbers hold one for some of so many seeds.
SPECIAL_SEEDS = 24
FAR = 1000
PLAIN = Case(tables=(Table(1, 1),), feature_table_map=(0,), batches=(), order=())


def plainer_axes(case: Case) -> Candidates:
    plain_optimizer = Optimizer(name=case.optimizer.name)
    for new in (Optimizer(), plain_optimizer, replace(case.optimizer, weight_decay=0.0, weight_decay_mode="NONE")):
        yield changed(case, optimizer=new)
    for f in dataclasses.fields(Optimizer):
        if f.name not in ("name", "weight_decay_mode"):
            usual: Any = {f.name: f.default}
            yield changed(case, optimizer=replace(case.optimizer, **usual))
    if case.optimizer.max_gradient is not None:
        yield changed(case, optimizer=replace(case.optimizer, max_gradient=1.0))
    if case.bounds_check_mode != "NONE":  # no check at all, or else the mode that does least
        yield changed(case, bounds_check_mode="NONE")
        yield changed(case, bounds_check_mode=PLAIN.bounds_check_mode)
    for name in (
        "pooling_mode",
        "weights_dtype",
        "output_dtype",
        "indices_dtype",
        "offsets_dtype",
        "stochastic_rounding",
        "rounding_seed",
    ):
        yield changed(case, **{name: getattr(PLAIN, name)})
    for k, batch in enumerate(case.batches):
        for f in dataclasses.fields(Batch):
            if f.name not in ("features", "batch_size_per_feature_per_rank") and getattr(batch, f.name) != f.default:
                plain: Any = {f.name: f.default}
                yield changed(case, batches=with_(case.batches, k, replace(batch, **plain)))


def plainer_values(case: Case) -> Candidates:
    values = case.values
    if values.mode != "exact":
        exact = Values(seed=values.seed)
        yield changed(case, values=exact)
        yield changed(case, values=replace(exact, specials=values.specials, zero_rows=values.zero_rows))
        yield changed(case, values=replace(exact, psw_specials=values.psw_specials))
    yield changed(case, values=replace(values, psw_specials=False))
    yield changed(case, values=replace(values, specials=False))
    yield changed(case, values=replace(values, zero_rows=False))
    yield changed(case, values=replace(values, seed=0))
    yield changed(case, values=replace(values, scale=0))
    yield changed(case, values=replace(values, largest=False))
    sizes = {"exact": ("weight_bits", "grad_bits", "psw_bits"), "general": ("spread",)}
    for name in sizes.get(values.mode, ()):
        for smaller in range(1, getattr(values, name)):
            change: Any = {name: smaller}
            yield changed(case, values=replace(values, **change))


def smaller_knobs(case: Case) -> Candidates:
    """Smaller pieces first: the defaults are large, and what is at the edge of a piece grows with it."""
    for knob, value in case.routing.items():
        if isinstance(value, int) and not isinstance(value, bool):
            for smaller in (1, 2, 3, 4, 16):  # 16: the least of those that matrix products allow
                if smaller < value:
                    yield changed(case, routing={**case.routing, knob: smaller})


def plainer_routing(case: Case) -> Candidates:
    for knob in case.routing:
        yield changed(case, routing={k: v for k, v in case.routing.items() if k != knob})


def other_knobs(case: Case) -> Candidates:
    """A smaller structure on smaller pieces: what is at the edge of a piece has to stay there."""
    for make in (fewer_features, fewer_samples):
        for smaller in make(case):
            if smaller is None:
                continue
            for knob, value in case.routing.items():
                if isinstance(value, int) and not isinstance(value, bool):
                    for less in (1, 2, 3):
                        if less < value:
                            yield changed(smaller, routing={**case.routing, knob: less})


def far_edits(case: Case) -> Candidates:
    """Fewer samples with offsets that are far off: a repair of those changes more of the others."""
    for smaller in fewer_samples(case):
        for k, batch in enumerate(smaller.batches if smaller is not None else ()):
            far = tuple((place, FAR) for place, _ in batch.offsets_edits)
            if smaller is not None and far and far != batch.offsets_edits:
                yield changed(smaller, batches=with_(smaller.batches, k, replace(batch, offsets_edits=far)))


def other_values(case: Case) -> Candidates:
    """A smaller structure with values of another seed: what an element gets depends on where it stands."""
    seeds = range(SPECIAL_SEEDS) if case.values.specials else OTHER_SEEDS
    for make in (fewer_batches, fewer_features, fewer_tables, fewer_samples, fewer_lookups):
        for smaller in make(case):
            if smaller is not None:
                yield from (changed(smaller, values=replace(case.values, seed=seed)) for seed in seeds)


def shorter_schedule(case: Case) -> Candidates:
    """Fewer choices, more of them 0, smaller ones."""
    choices = case.schedule
    yield changed(case, schedule=())
    yield changed(case, schedule=choices[: len(choices) // 2])
    for place in reversed(range(len(choices))):
        yield changed(case, schedule=without(choices, place))
    for place, choice in enumerate(choices):
        for smaller in range(min(choice, 3)):
            yield changed(case, schedule=with_(choices, place, smaller))
