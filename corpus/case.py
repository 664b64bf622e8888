"""`Case`: a tiny training run as plain data, the currency of the whole suite.

Strategies draw cases, implementations run them, the judge compares, the corpus stores them. A case holds no tensor: it
prints as a constructor call, compares, hashes, shrinks and travels as JSON. `corpus.tensors` makes its tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from corpus.optimizers import KINDS

#: One bag: ids in order; a pair (id, repeat) stands for that many lookups of one id in a row.
Bag = tuple[int | tuple[int, int], ...]

DTYPES = ("float32", "float16", "bfloat16")
INTEGERS = ("int32", "int64")
POOLING_MODES = ("SUM", "MEAN", "NONE")
BOUNDS_CHECK_MODES = ("FATAL", "WARNING", "IGNORE", "NONE")
WEIGHT_DECAY_MODES = ("NONE", "L2", "DECOUPLE")
OPTIMIZERS = tuple(KINDS)
#: How `grad_output` lies in memory: contiguous, one number for all, one row for all samples, columns first, every
#: second column of a wider buffer, or contiguous one element past an aligned address.
GRAD_LAYOUTS = ("contiguous", "expanded", "expanded_rows", "transposed", "sliced", "unaligned")
#: How another argument lies in memory: every second element of a wider buffer, a column of a matrix, contiguous one
#: element past an aligned address, or one number for all, where all are equal.
INPUT_LAYOUTS = ("strided", "column", "unaligned", "expanded")
#: The arguments that come in such layouts.
INPUTS = ("indices", "offsets", "per_sample_weights", "feature_requires_grad")
VALUE_MODES = ("exact", "general", "edges")


class CaseError(ValueError):
    """A case that makes no sense, or a file that holds none; the message names the field."""


class _Terse:
    """Prints as a constructor call without the fields that have their default."""

    def __repr__(self) -> str:
        shown = []
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
            if value != default:
                shown.append(f"{f.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Table(_Terse):
    """One embedding table."""

    rows: int
    dim: int


@dataclass(frozen=True, repr=False)
class Sampled(_Terse):
    """A feature's bags as a distribution, for batches too large to spell out.

    `samples` bags with lengths uniform in 0..2 * `mean_length`; ids Zipf with `exponent` (0 is uniform) over the rows,
    shuffled, so that neighbours in rank are not neighbours in memory.
    """

    samples: int
    mean_length: int
    exponent: float = 0.0
    seed: int = 0


@dataclass(frozen=True, repr=False)
class Batch(_Terse):
    """One batch. `features[f]` holds the bags of feature f, each feature with the same number of them, unless
    `batch_size_per_feature_per_rank` says how many each has on each rank (a variable batch).

    `psw`: with per-sample weights, and whether their gradient is asked for ("none", "given", "trained").
    `feature_requires_grad`: 0 for each feature whose per-sample weights want none; empty: all do.
    `input_layouts`: (argument, layout) of each input that is not contiguous in memory of its own. Expanded per-sample
    weights are all equal.
    `learning_rate`: set before this batch's backward; None leaves it. `offsets_edits`: (place, value) pairs written
    over the right offsets, for the bounds check to find.
    """

    features: tuple[tuple[Bag, ...] | Sampled, ...]
    psw: str = "none"
    grad_layout: str = "contiguous"
    learning_rate: float | None = None
    offsets_edits: tuple[tuple[int, int], ...] = ()
    batch_size_per_feature_per_rank: tuple[tuple[int, ...], ...] = ()
    feature_requires_grad: tuple[int, ...] = ()
    input_layouts: tuple[tuple[str, str], ...] = ()

    def layout_of(self, argument: str) -> str:
        """How an input lies in memory."""
        return dict(self.input_layouts).get(argument, "contiguous")

    @property
    def is_variable(self) -> bool:
        return bool(self.batch_size_per_feature_per_rank)


@dataclass(frozen=True, repr=False)
class Optimizer(_Terse):
    """The optimizer and its hyper-parameters; those that it does not read mean nothing.

    Which one reads what: `corpus.optimizers`. `weight_decay` belongs to a mode for EXACT_ROWWISE_ADAGRAD, else to the
    formula.
    `max_gradient`: the bound of gradient clipping, whatever the optimizer; None does not clip.
    """

    name: str = "EXACT_SGD"
    learning_rate: float = 1.0
    eps: float = 0.0
    weight_decay: float = 0.0
    weight_decay_mode: str = "NONE"
    beta1: float = 0.9
    beta2: float = 0.999
    eta: float = 0.001
    momentum: float = 0.9
    max_norm: float = 0.0
    max_gradient: float | None = None


@dataclass(frozen=True, repr=False)
class Values(_Terse):
    """How weights, gradients and per-sample weights are made from `seed`.

    "exact": integers of so many bits (weights, gradients) and halves (per-sample weights), so that sums come out exact.
    "general": random sign and mantissa, exponents uniform within `spread` binary orders around 1.
    "edges": at ties of the types that sums and steps are rounded to, beside them, and at the ends of binades.
    `specials`: a few infinities and NaNs among weights and gradients. `scale`: weights and gradients times 2 ** scale.
    `largest`: the largest finite number of either sign among fp16 weights. `zero_rows`: about every other row of
    weights, and of gradients, is zero. `psw_specials`: infinities, NaNs, zeros and subnormal numbers among per-sample
    weights, most of them at lookups that are pruned.
    """

    mode: str = "exact"
    seed: int = 0
    weight_bits: int = 7
    grad_bits: int = 3
    psw_bits: int = 2
    spread: int = 4
    specials: bool = False
    scale: int = 0
    largest: bool = False
    zero_rows: bool = False
    psw_specials: bool = False


@dataclass(frozen=True, repr=False)
class Case(_Terse):
    """A tiny training run: tables, features, batches, and in which order their forwards and backwards happen.

    `order`: batch numbers; the first mention is that batch's forward, the second its backward. `routing`: the knobs of
    the implementation under test; what it does not name has its default. `stochastic_rounding`: of the updated weights,
    with noise made from `rounding_seed`; fp32 weights take no notice of it. `schedule`: where races are hunted, how the
    interpreter interleaves the programs of a launch (`oracles.interpreter.concurrency.schedules`); a GPU takes no
    notice.
    """

    tables: tuple[Table, ...]
    feature_table_map: tuple[int, ...]
    batches: tuple[Batch, ...]
    order: tuple[int, ...]
    pooling_mode: str = "SUM"
    optimizer: Optimizer = Optimizer()
    weights_dtype: str = "float32"
    output_dtype: str = "float32"
    indices_dtype: str = "int64"
    offsets_dtype: str = "int64"
    bounds_check_mode: str = "WARNING"
    values: Values = Values()
    routing: Mapping[str, Any] = field(default_factory=dict, hash=False)
    stochastic_rounding: bool = False
    rounding_seed: int = 0
    schedule: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise CaseError(problem)

    @property
    def num_features(self) -> int:
        return len(self.feature_table_map)

    def steps(self) -> Iterator[tuple[str, int]]:
        """("forward" or "backward", batch number) in order."""
        seen: set[int] = set()
        for batch in self.order:
            yield ("backward" if batch in seen else "forward"), batch
            seen.add(batch)

    def bag_starts(self, batch: int) -> tuple[int, ...]:
        """The first bag of each feature of a batch, and their number last: `[T + 1]`."""
        starts = [0]
        for feature in self.batches[batch].features:
            starts.append(starts[-1] + samples_of(feature))
        return tuple(starts)

    def feature_and_sample(self, batch: int, bag: int) -> tuple[int, int]:
        """The feature that a bag of a batch belongs to, and its number among that feature's bags."""
        starts = self.bag_starts(batch)
        feature = max(f for f in range(self.num_features) if starts[f] <= bag)
        return feature, bag - starts[feature]

    def is_sampled(self) -> bool:
        """Whether any feature is a distribution instead of ids."""
        return any(isinstance(f, Sampled) for b in self.batches for f in b.features)


def samples_of(feature: tuple[Bag, ...] | Sampled) -> int:
    """Bags of a feature."""
    return feature.samples if isinstance(feature, Sampled) else len(feature)


def pairs(bag: Bag) -> Iterator[tuple[int, int]]:
    """Each entry of a bag as (id, how often in a row)."""
    return (entry if isinstance(entry, tuple) else (entry, 1) for entry in bag)


def expand(bag: Bag) -> Iterator[int]:
    """The ids of a bag, one for each lookup."""
    for i, repeat in pairs(bag):
        yield from [i] * repeat


def bag_length(bag: Bag) -> int:
    """Lookups of a bag."""
    return sum(repeat for _, repeat in pairs(bag))


def _problems(case: Case) -> Iterator[str]:
    """What makes a case senseless, the first problem first."""
    menus = (
        ("pooling_mode", case.pooling_mode, POOLING_MODES),
        ("optimizer.name", case.optimizer.name, OPTIMIZERS),
        ("optimizer.weight_decay_mode", case.optimizer.weight_decay_mode, WEIGHT_DECAY_MODES),
        ("weights_dtype", case.weights_dtype, DTYPES),
        ("output_dtype", case.output_dtype, DTYPES),
        ("indices_dtype", case.indices_dtype, INTEGERS),
        ("offsets_dtype", case.offsets_dtype, INTEGERS),
        ("bounds_check_mode", case.bounds_check_mode, BOUNDS_CHECK_MODES),
        ("values.mode", case.values.mode, VALUE_MODES),
        *(("batches.grad_layout", b.grad_layout, GRAD_LAYOUTS) for b in case.batches),
        *(("batches.psw", b.psw, ("none", "given", "trained")) for b in case.batches),
        *(("batches.input_layouts", name, INPUTS) for b in case.batches for name, _ in b.input_layouts),
        *(("batches.input_layouts", layout, INPUT_LAYOUTS) for b in case.batches for _, layout in b.input_layouts),
    )
    for name, value, menu in menus:
        if value not in menu:
            yield f"{name}: expected one of {', '.join(menu)}, got {value!r}"
    bound = case.optimizer.max_gradient
    if bound is not None and not bound > 0:
        yield f"optimizer.max_gradient: expected a number above 0 or None, got {bound}"
    if not case.tables or any(t.rows < 1 or t.dim < 1 for t in case.tables):
        yield "tables: expected at least one, each with rows and dim of at least 1"
    if not case.feature_table_map or any(not 0 <= t < len(case.tables) for t in case.feature_table_map):
        yield f"feature_table_map: expected tables from 0 to {len(case.tables) - 1}, got {case.feature_table_map}"
    numbers = {"int32": range(-(2**31), 2**31), "int64": range(-(2**63), 2**63)}
    ids, offsets = numbers[case.indices_dtype], numbers[case.offsets_dtype]
    for k, batch in enumerate(case.batches):
        bags = sum(map(samples_of, batch.features))
        for place, offset in batch.offsets_edits:
            if not 0 <= place <= bags or offset not in offsets:
                yield (
                    f"batches[{k}].offsets_edits: expected places from 0 to {bags} and values of {case.offsets_dtype}, "
                    f"got {(place, offset)}"
                )
        for i, repeat in _lookups(batch):
            if i not in ids or repeat < 0:
                yield (
                    f"batches[{k}].features: expected ids of {case.indices_dtype}, each at least 0 times in a row, "
                    f"got {(i, repeat)}"
                )
        if len(batch.features) != case.num_features:
            yield f"batches[{k}].features: expected {case.num_features}, got {len(batch.features)}"
        if batch.feature_requires_grad and len(batch.feature_requires_grad) != case.num_features:
            yield f"batches[{k}].feature_requires_grad: expected {case.num_features}, got {batch.feature_requires_grad}"
        samples = [samples_of(f) for f in batch.features]
        ranks = batch.batch_size_per_feature_per_rank
        if not ranks and len(set(samples)) > 1:
            yield f"batches[{k}].features: expected the same number of samples in each, got {samples}"
        if ranks and ([sum(sizes) for sizes in ranks] != samples or len({len(sizes) for sizes in ranks}) > 1):
            yield (
                f"batches[{k}].batch_size_per_feature_per_rank: expected {samples} samples in all, "
                f"over as many ranks each, got {ranks}"
            )
    if any(choice < 0 for choice in case.schedule):
        yield f"schedule: expected choices from 0 up, got {case.schedule}"
    for k in set(case.order):
        if not 0 <= k < len(case.batches) or case.order.count(k) > 2:
            yield f"order: batch {k} does not exist, or is mentioned more than twice: {case.order}"
    if not -(2**63) <= case.rounding_seed < 2**63:
        yield f"rounding_seed: expected an int64, got {case.rounding_seed}"
    if case.bounds_check_mode == "NONE":
        for k, batch in enumerate(case.batches):
            if batch.offsets_edits or _has_bad_ids(case, batch):
                yield f"batches[{k}]: a bad id or offset is undefined with bounds_check_mode NONE"
    if case.pooling_mode != "SUM" and any(b.psw != "none" for b in case.batches):
        yield f"batches.psw: {case.pooling_mode} takes no per-sample weights"
    if case.pooling_mode == "NONE" and len({case.tables[t].dim for t in case.feature_table_map}) > 1:
        yield "tables: pooling_mode NONE needs one dim for all features"


def _lookups(batch: Batch) -> Iterator[tuple[int, int]]:
    """The entries of all bags that a batch spells out."""
    for bags in batch.features:
        for bag in () if isinstance(bags, Sampled) else bags:
            yield from pairs(bag)


def _has_bad_ids(case: Case, batch: Batch) -> bool:
    for table, bags in zip(case.feature_table_map, batch.features, strict=False):
        rows = case.tables[table].rows
        for bag in () if isinstance(bags, Sampled) else bags:
            if any(not -1 <= i < rows for i, _ in pairs(bag)):
                return True
    return False
