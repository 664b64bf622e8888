"""`cases()`: the whole case, put together from its parts and aimed at one kernel path.

Nothing is filtered: every draw is a valid case. Cost is bounded by inner loop steps over the whole case, which are
dealt out to batches, features and bags as they are drawn.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from corpus.case import (
    BOUNDS_CHECK_MODES,
    DTYPES,
    GRAD_LAYOUTS,
    INPUT_LAYOUTS,
    INPUTS,
    INTEGERS,
    Bag,
    Batch,
    Case,
    Optimizer,
    Sampled,
    Table,
    pairs,
    samples_of,
)
from strategies.bags import feature_bags
from strategies.optimizers import CLIPS, RATES, fp32, optimizers
from strategies.routing import INTERPRETER, Limits, config_of, routings
from strategies.stochastic import rounded
from strategies.tables import table_sets
from strategies.values import values
from tbe_kernels.config import KernelConfig
from tbe_kernels.paths import Eligibility, KernelPath

#: Longest runs of wide rows, or of many features: both multiply what a lookup costs.
COSTLY_RUN = 10
SELDOM = (False,) * 9 + (True,)
SOMETIMES = (False,) * 5 + (True,)
MANY_SAMPLES = (16, 17, 33)
POOLING = ("SUM", "SUM", "MEAN", "MEAN", "NONE")
#: Orders of forwards (first mention) and backwards (second), by number of batches. A last forward may have no backward.
ORDERS = {
    1: ((0, 0),),
    2: ((0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 0, 1)),
    3: ((0, 0, 1, 1, 2, 2), (0, 1, 0, 2, 1, 2)),
}


@st.composite
def cases(draw: st.DrawFn, *, path: KernelPath | None = None, limits: Limits = INTERPRETER) -> Case:
    """Cases that the kernels can run, on a routing drawn with them; with `path`, cases that run that path."""
    needs = path.needs if path else Eligibility(lookups=False)
    pooling_mode = draw(st.sampled_from(needs.case.get("pooling_mode", POOLING)))
    tables, features = draw(table_sets(one_dim=pooling_mode == "NONE", small=needs.one_table))
    costly = max(t.dim for t in tables) > 512 or len(features) > 8
    routing = draw(routings(needs, limits, longest=COSTLY_RUN if costly else None))
    config = config_of(routing)
    optimizer = draw(optimizers(among=needs.optimizers, clips=needs.case.get("clips", CLIPS)))
    modes = needs.case.get("bounds_check_mode", BOUNDS_CHECK_MODES)
    bounds_check_mode = draw(st.sampled_from(("WARNING", *modes)))  # the one mode that counts
    indices_dtype = draw(st.sampled_from(INTEGERS))
    order = draw(st.sampled_from(ORDERS[draw(st.sampled_from((1, 1, 1, 2, 2, 3)))]))
    number = max(order) + 1
    drawn: list[Batch] = []
    for k in range(number):
        if k and draw(st.sampled_from((False, False, True))):
            drawn.append(draw(shifted(drawn[0], tables, features)))
            continue
        batch = batches(
            tables=tables,
            features=features,
            config=config,
            needs=needs if k == 0 else Eligibility(lookups=False),
            steps=limits.steps // number,
            takes_psw=pooling_mode == "SUM" and not (needs.plain and k == 0),
            crowded=needs.repairs is not None or needs.crowded,
        )
        drawn.append(draw(batch))
    if limits.sampled and needs.run is None and not needs.variable and draw(st.sampled_from((False, False, True))):
        drawn[-1] = draw(sampled_batches(like=drawn[-1]))
    # A fused check is repeated by every kernel that reads ids again, so it has more places to be wrong.
    spoils = (False, True, True) if needs.repairs else (False, True) if config.fused_bounds_check else SELDOM
    if bounds_check_mode != "NONE" and draw(st.sampled_from(spoils)):
        kind = draw(st.sampled_from((needs.repairs or "ids", "ids", "offsets")))
        drawn = draw(spoiled(drawn, tables, features, indices_dtype, kind, config.block))
    weights_dtype = draw(st.sampled_from(needs.case.get("weights_dtype", DTYPES)))
    output_dtype = draw(st.sampled_from(needs.case.get("output_dtype", DTYPES)))
    case_values = draw(
        values(
            tables=tables,
            features=features,
            batches=tuple(drawn),
            optimizer=optimizer,
            mean=pooling_mode == "MEAN",
            products=needs.one_table is not None,
            narrowed=weights_dtype == "float32" != output_dtype,
        )
    )
    case = Case(
        tables=tables,
        feature_table_map=features,
        batches=tuple(drawn),
        order=order,
        pooling_mode=pooling_mode,
        optimizer=_any_rate(draw, optimizer) if case_values.mode == "general" else optimizer,
        weights_dtype=weights_dtype,
        output_dtype=output_dtype,
        indices_dtype=indices_dtype,
        offsets_dtype=draw(st.sampled_from(INTEGERS)),
        bounds_check_mode=bounds_check_mode,
        values=case_values,
        routing=routing,
    )
    return draw(rounded(case, wanted=needs.case.get("stochastic_rounding", (False, True))))


def _any_rate(draw: st.DrawFn, optimizer: Optimizer) -> Optimizer:
    return replace(optimizer, learning_rate=fp32(draw(st.sampled_from(RATES))))


@st.composite
def batches(
    draw: st.DrawFn,
    *,
    tables: tuple[Table, ...],
    features: tuple[int, ...],
    config: KernelConfig,
    needs: Eligibility,
    steps: int,
    takes_psw: bool,
    crowded: bool,
) -> Batch:
    """One batch of about `steps` inner steps at the most; `crowded`: more often with many samples."""
    aimed = draw(st.integers(0, len(features) - 1))
    most_samples = max(1, min(5, steps // (8 * len(features))))
    samples = [draw(st.integers(1, most_samples))] * len(features)
    sizes: tuple[tuple[int, ...], ...] = ()
    # What a refusal says of a bag is counted out where features have batches of their own.
    if needs.variable or (not needs.plain and draw(st.sampled_from((False, True) if needs.repairs else SOMETIMES))):
        sizes = draw(rank_sizes(features=len(features), most=most_samples, aimed=aimed))
        samples = [sum(of_feature) for of_feature in sizes]
    elif not needs.lookups and draw(st.sampled_from(SELDOM)):
        samples = [0] * len(features)
    elif len(features) <= 2 and draw(st.sampled_from((False, False, True) if crowded else SELDOM)):
        # More than a block of offsets, or several programs of bags.
        samples = [draw(st.sampled_from(MANY_SAMPLES))] * len(features)
    # A lookup costs a step a gathered tile, forward and backward.
    lookups = max(2, min(36, steps // 4 - sum(samples)) // len(features))
    if max(tables[t].dim for t in features) > 512:
        lookups = min(lookups, COSTLY_RUN)
    bags: list[tuple[Bag, ...]] = []
    for f, table in enumerate(features):
        run = needs.run if f == aimed else None
        rows = tables[table].rows
        window = config.small_table_window if needs.one_table else None
        of_feature = feature_bags(rows=rows, samples=samples[f], most=lookups, config=config, run=run, window=window)
        bags.append(draw(of_feature))
    if needs.lookups and not any(_live(bag) for feature in bags for bag in feature):
        bags[aimed] = ((0,) + bags[aimed][0], *bags[aimed][1:])
    return Batch(
        features=tuple(bags),
        psw=_psw(draw, needs) if takes_psw else "none",
        grad_layout=draw(st.sampled_from(GRAD_LAYOUTS)),
        learning_rate=draw(st.sampled_from((None, None, 0.5, 0.125))),
        batch_size_per_feature_per_rank=sizes,
        feature_requires_grad=draw(_wanted(len(features))),
        input_layouts=draw(_layouts()),
    )


def _wanted(features: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Which features want a gradient of their per-sample weights: usually nobody says."""
    some = st.lists(st.integers(0, 1), min_size=features, max_size=features).map(tuple)
    return st.one_of(*[st.just(())] * 4, some)


def _layouts() -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
    """In two batches of three all inputs are contiguous."""
    some = st.lists(st.sampled_from(("contiguous", *INPUT_LAYOUTS)), min_size=len(INPUTS), max_size=len(INPUTS))
    pairs = some.map(lambda each: tuple(p for p in zip(INPUTS, each, strict=True) if p[1] != "contiguous"))
    return st.one_of(*[st.just(())] * 2, pairs)


@st.composite
def shifted(draw: st.DrawFn, batch: Batch, tables: tuple[Table, ...], features: tuple[int, ...]) -> Batch:
    """A batch of the same shape that looks up other rows: what one batch left behind must not reach it."""
    shift = draw(st.integers(1, 3))

    def moved(bag: Bag, rows: int) -> Bag:
        ids = [(e, 0) if isinstance(e, int) else e for e in bag]
        new = [(i if i < 0 else (i + shift) % rows, repeat) for i, repeat in ids]
        return tuple((i, repeat) if repeat else i for i, repeat in new)

    bags = tuple(
        tuple(moved(bag, tables[table].rows) for bag in feature)
        for table, feature in zip(features, batch.features, strict=True)
        if isinstance(feature, tuple)
    )
    return replace(batch, features=bags, learning_rate=draw(st.sampled_from((None, 0.5, 0.125))))


@st.composite
def rank_sizes(draw: st.DrawFn, *, features: int, most: int, aimed: int) -> tuple[tuple[int, ...], ...]:
    """Samples of each feature on each of up to three ranks, none of them now and then; the aimed feature has some."""
    ranks = draw(st.integers(1, 3))
    each = st.lists(st.integers(0, max(1, most // ranks)), min_size=ranks, max_size=ranks)
    sizes = [tuple(draw(each)) for _ in range(features)]
    if not any(sizes[aimed]):
        sizes[aimed] = (*sizes[aimed][:-1], 1)
    return tuple(sizes)


def _psw(draw: st.DrawFn, needs: Eligibility) -> str:
    return "trained" if needs.trains_psw else draw(st.sampled_from(("none", "given", "trained")))


@st.composite
def sampled_batches(draw: st.DrawFn, *, like: Batch) -> Batch:
    """A batch of thousands of lookups, its ids and bag lengths given by distributions."""
    samples, length = draw(st.sampled_from((257, 64, 1000))), draw(st.sampled_from((4, 1, 20)))
    exponents = draw(st.lists(st.sampled_from((1.05, 0.0, 0.6, 1.3)), min_size=1, max_size=3))
    seed = draw(st.integers(0, 2**16))
    features = tuple(
        Sampled(samples, length, exponents[f % len(exponents)], seed + f) for f in range(len(like.features))
    )
    return replace(like, features=features, batch_size_per_feature_per_rank=())


def _live(bag: Bag) -> int:
    return sum(repeat for i, repeat in pairs(bag) if i >= 0)


@st.composite
def spoiled(
    draw: st.DrawFn,
    drawn: list[Batch],
    tables: tuple[Table, ...],
    features: tuple[int, ...],
    indices_dtype: str,
    kind: str,
    block: int,
) -> list[Batch]:
    """The batches with bad ids (`kind` "ids") in a few bags of one of them, so that several programs find some, or with
    malformed offsets, above all where a `block` of them begins: a repair hands on there what it has seen."""
    number = draw(st.integers(0, len(drawn) - 1))
    batch = drawn[number]
    bags_of = {f: bags for f, bags in enumerate(batch.features) if bags and not isinstance(bags, Sampled)}
    if kind == "offsets" or not bags_of:
        places = sum(map(samples_of, batch.features))
        borders = [p for start in range(block, places + 1, block) for p in (start - 1, start, start + 1) if p <= places]
        anywhere = st.integers(0, places)
        edit = st.tuples(
            st.one_of(anywhere, st.sampled_from(borders)) if borders else anywhere,
            st.sampled_from((1, 1000, 0, 2, -1, -(2**31))),
        )
        edits = tuple(draw(st.lists(edit, min_size=1, max_size=3, unique_by=lambda e: e[0])))
        spoilt = replace(batch, offsets_edits=edits)
    else:
        for _ in range(draw(st.sampled_from((1, 2, 2, 3)))):
            f = draw(st.sampled_from(sorted(bags_of)))
            bags_of[f] = draw(_with_bad_ids(bags_of[f], tables[features[f]].rows, indices_dtype))
        spoilt = replace(batch, features=tuple(bags_of.get(f, bags) for f, bags in enumerate(batch.features)))
    return [*drawn[:number], spoilt, *drawn[number + 1 :]]


@st.composite
def _with_bad_ids(draw: st.DrawFn, bags: tuple[Bag, ...], rows: int, indices_dtype: str) -> tuple[Bag, ...]:
    """The bags of a feature, a few bad ids side by side in one of them."""
    bad = [rows, -2, 2**31 - 1, -(2**31), rows + 1]
    if indices_dtype == "int64":
        bad += [2**32 + rows - 1] * 3 + [2**32] * 2  # in range, if cut to 32 bits
    sample = draw(st.integers(0, len(bags) - 1))
    place = draw(st.integers(0, len(bags[sample])))
    some = draw(st.lists(st.sampled_from(bad), min_size=1, max_size=3))
    bag = (*bags[sample][:place], *some, *bags[sample][place:])
    return (*bags[:sample], bag, *bags[sample + 1 :])
