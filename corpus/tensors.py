"""From a `Case` to its tensors: always the same ones, on any machine, whatever the versions of torch and numpy.

Numbers are those of `corpus.numbers`. Rows that no lookup names hold NaN or tell-tale numbers; gradients of empty bags
hold NaN.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corpus.case import Case, CaseError, Sampled, Values, expand
from corpus.numbers import edges, general, integers, plant_specials, random_bits, special_weights

#: A table of more elements is filled only in the rows that are in use, and around them.
DENSE_ELEMENTS = 2**22
#: Gradients keep within 2 ** 8 of 1, unless the case asks for at least this spread and their type can hold it.
WIDE_SPREAD = 24


@dataclass
class BatchTensors:
    """The tensors of one batch, as a caller passes them, each in the layout that the case asks for."""

    indices: Tensor  # [N]
    offsets: Tensor  # [bags + 1]
    per_sample_weights: Tensor | None  # fp32 [N]
    grad_output: Tensor  # in the shape of the output, see `output_places`
    feature_requires_grad: Tensor | None = None  # int32 [T]


@dataclass
class TableRows:
    """Some rows of a table and what they hold: all of them (`rows` None), or those named."""

    rows: Tensor | None  # int64 [n]
    values: Tensor  # [n, D]

    def read(self, table: Tensor) -> Tensor:
        """The same rows of `table` `[E, ...]` as it is now, on the CPU."""
        return table.detach().cpu().clone() if self.rows is None else table.detach()[self.rows.to(table.device)].cpu()

    def write(self, table: Tensor) -> None:
        """Fill the rows of `table` `[E, D]`."""
        if self.rows is None:
            table.copy_(self.values)
        else:
            table[self.rows.to(table.device)] = self.values.to(table.device)


@dataclass(frozen=True, eq=False, repr=False)
class Carried(Values):
    """Values that come along with a case instead of from its seed: for a case that was made from another one, where the
    same numbers lie in other places. Such a case equals itself alone, and no file holds it.

    `tables`: as `table_rows` has them. `psw[k]`: those of batch k, fp32 `[N]`, or None. `gradients[k]`: in the shape of
    its output.
    """

    tables: tuple[TableRows, ...] = ()
    psw: tuple[Tensor | None, ...] = ()
    gradients: tuple[Tensor, ...] = ()

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def torch_dtype(name: str) -> torch.dtype:
    """`torch.float32` for "float32", and so on."""
    return getattr(torch, name)


@functools.lru_cache(maxsize=64)
def ids_and_lengths(case: Case, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids of a batch `[N]` and the length of each bag `[T * B]`, both int64, before any offset is edited."""
    ids, lengths = [], []
    for number, feature in enumerate(case.batches[batch].features):
        if isinstance(feature, Sampled):
            rows = case.tables[case.feature_table_map[number]].rows
            some_ids, some_lengths = _sample(feature, rows, stream=number)
            ids.append(some_ids)
            lengths.append(some_lengths)
        else:
            bags = [list(expand(bag)) for bag in feature]
            ids.append(np.array([i for bag in bags for i in bag], dtype=np.int64))
            lengths.append(np.array([len(bag) for bag in bags], dtype=np.int64))
    joined = np.concatenate(ids), np.concatenate(lengths)
    for array in joined:
        array.flags.writeable = False  # shared by all who ask
    return joined


def _sample(feature: Sampled, rows: int, stream: int) -> tuple[np.ndarray, np.ndarray]:
    longest = 2 * feature.mean_length + 1
    lengths = (random_bits(feature.seed, 2 * stream, feature.samples) % np.uint64(longest)).astype(np.int64)
    uniform = (random_bits(feature.seed, 2 * stream + 1, int(lengths.sum())) >> np.uint64(11)) * 2.0**-53
    # Ranks by inverting the continuous law of density ~ x ** -exponent on [1, rows + 1).
    power = 1.0 - feature.exponent
    if abs(power) < 1e-9:
        rank = np.exp(uniform * np.log(rows + 1.0))
    else:
        rank = ((rows + 1.0) ** power * uniform + (1.0 - uniform)) ** (1.0 / power)
    rank = np.clip(rank.astype(np.int64) - 1, 0, rows - 1)
    # A multiplicative shuffle of the ranks; it need not be a bijection to scatter the hot ones.
    return (rank * 2654435761 + 12345) % rows, lengths


def batch_tensors(case: Case, batch: int, device: torch.device) -> BatchTensors:
    """The tensors of one batch on `device`."""
    given, (indices, offsets, weights, grad) = case.batches[batch], _batch_values(case, batch)
    wanted = torch.tensor(given.feature_requires_grad, dtype=torch.int32) if given.feature_requires_grad else None

    def lay_out(name: str, values: Tensor | None) -> Tensor | None:
        return None if values is None else _lay_out_input(values, given.layout_of(name), device)

    psw = lay_out("per_sample_weights", weights)
    return BatchTensors(
        indices=_lay_out_input(indices, given.layout_of("indices"), device),
        offsets=_lay_out_input(offsets, given.layout_of("offsets"), device),
        per_sample_weights=None if psw is None else psw.requires_grad_(given.psw == "trained"),
        grad_output=_lay_out(grad, given.grad_layout, device),
        feature_requires_grad=lay_out("feature_requires_grad", wanted),
    )


@functools.lru_cache(maxsize=8)
def _batch_values(case: Case, batch: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """What ids, offsets, per-sample weights and the gradient of the output hold. Shared by all who ask: read only."""
    given = case.batches[batch]
    ids, lengths = ids_and_lengths(case, batch)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    for place, value in given.offsets_edits:
        offsets[place] = value
    return (
        _narrow("ids", ids, case.indices_dtype),
        _narrow("offsets", offsets, case.offsets_dtype),
        None if given.psw == "none" else _psw_values(case, len(ids), batch),
        _grad_values(case, batch, ids, lengths).to(torch_dtype(case.output_dtype)),
    )


def _narrow(name: str, numbers: np.ndarray, dtype: str) -> Tensor:
    limits = np.iinfo(dtype)
    if numbers.size and not limits.min <= numbers.min() <= numbers.max() <= limits.max:
        raise CaseError(f"{name}: {numbers.min()} to {numbers.max()} does not fit {dtype}")
    return torch.tensor(numbers, dtype=torch_dtype(dtype))


def _place(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on `device`, in memory of its own that whoever watches `torch.empty` can guard."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device).copy_(tensor)


@dataclass(frozen=True)
class OutputPlaces:
    """Where the output rows of each feature lie in the flat output: `of_feature[f]` int64 `[output rows, D]`.

    An output row is a bag, or a lookup where nothing is pooled.
    """

    shape: tuple[int, ...]
    of_feature: tuple[Tensor, ...]


def output_places(case: Case, batch: int, lookups: np.ndarray) -> OutputPlaces:
    """The layout of a batch's output and gradient. `lookups`: how many each feature has, once offsets are repaired.

    `[B, total_D]`; flat and ordered (rank, feature, sample, column) for a variable batch; `[N, D]` without pooling.
    """
    dims, sizes = (
        [case.tables[t].dim for t in case.feature_table_map],
        case.batches[batch].batch_size_per_feature_per_rank,
    )
    starts, firsts = case.bag_starts(batch), []
    if case.pooling_mode == "NONE":
        ends = np.cumsum(lookups)
        shape: tuple[int, ...] = (int(ends[-1]), dims[0])
        firsts = [torch.arange(int(end - n), int(end)) * dims[0] for n, end in zip(lookups, ends, strict=True)]
    elif sizes:
        parts: list[list[Tensor]] = [[] for _ in dims]
        element = 0
        for rank in range(len(sizes[0])):
            for f, dim in enumerate(dims):
                parts[f].append(element + torch.arange(sizes[f][rank]) * dim)
                element += sizes[f][rank] * dim
        shape, firsts = (element,), [torch.cat(p) for p in parts]
    else:
        shape = (starts[1], sum(dims))
        firsts = [torch.arange(starts[1]) * sum(dims) + sum(dims[:f]) for f in range(len(dims))]
    return OutputPlaces(shape, tuple(first[:, None] + torch.arange(d) for first, d in zip(firsts, dims, strict=True)))


def _lay_out(grad: Tensor, layout: str, device: torch.device) -> Tensor:
    if grad.dim() == 1:
        return _lay_out(grad[:, None], layout, device).squeeze(1)
    B, D = grad.shape
    if layout == "expanded":
        one = grad.flatten()[:1] if grad.numel() else grad.new_zeros(1)
        return _place(one, device).expand(B, D)
    if layout == "expanded_rows":
        row = grad[:1] if B else grad.new_zeros(1, D)
        return _place(row, device).expand(B, D)
    if layout == "transposed":
        return _place(grad.t().contiguous(), device).t()
    if layout == "sliced":
        wide = torch.full((B, 2 * D), torch.nan, dtype=grad.dtype)
        wide[:, ::2] = grad
        return _place(wide, device)[:, ::2]
    if layout == "unaligned":
        return _place(torch.cat((grad.new_full((1,), torch.nan), grad.flatten())), device)[1:].view(B, D)
    return _place(grad, device)


def _lay_out_input(values: Tensor, layout: str, device: torch.device) -> Tensor:
    """`[n]` in that layout. What lies between the elements is no argument: reading it shows."""
    n = values.numel()
    between = torch.nan if values.is_floating_point() else torch.iinfo(values.dtype).min
    if layout == "expanded" and n and bool((values == values[0]).all()):
        return _place(values[:1], device).expand(n)
    if layout in ("strided", "column"):
        width, at = (2, 0) if layout == "strided" else (3, 1)
        wide = torch.full((n, width), between, dtype=values.dtype)
        wide[:, at] = values
        return _place(wide, device)[:, at]
    if layout == "unaligned":
        return _place(torch.cat((values.new_full((1,), between), values)), device)[1:]
    return _place(values, device)


def _psw_values(case: Case, count: int, batch: int) -> Tensor:
    values = case.values
    if isinstance(values, Carried):
        carried = values.psw[batch]
        assert carried is not None
        return carried
    bits = random_bits(values.seed, 2000 + batch, count)
    if case.batches[batch].layout_of("per_sample_weights") == "expanded":
        bits[:] = bits[:1]
    if values.mode == "exact":
        span = 2**values.psw_bits
        out = ((bits % np.uint64(2 * span + 1)).astype(np.int64) - span).astype(np.float32) / 2
    elif values.mode == "edges":
        out = np.array([1.0, -1.0, 0.5, 2.0, 0.0, -0.0], np.float32)[bits % np.uint64(6)]
    else:
        out = general(bits, min(values.spread, 4))
        out[bits % np.uint64(16) == 0] = 0.0  # a weight of zero still has a gradient
    if values.psw_specials:
        ids, _ = ids_and_lengths(case, batch)
        out = special_weights(out, bits, ids < 0)
    return torch.from_numpy(out)


def _grad_values(case: Case, number: int, ids: np.ndarray, lengths: np.ndarray) -> Tensor:
    """fp32, in the shape of the output: NaN where a bag is empty, unless all samples have to share their gradient."""
    values, given, starts = case.values, case.batches[number], case.bag_starts(number)
    if isinstance(values, Carried):
        return values.gradients[number]
    ends = np.concatenate(([0], np.cumsum(lengths)))
    places = output_places(case, number, np.diff(ends[list(starts)]))
    seed = int(random_bits(values.seed, 1000 + number, 1)[0])
    bits = random_bits(seed, 0, int(np.prod(places.shape)))
    if values.mode == "exact":
        grad = integers(bits, values.grad_bits)
    elif values.mode == "edges":
        grad = edges(bits, case.weights_dtype, small=2)
    else:
        wide = values.spread >= WIDE_SPREAD and case.output_dtype == "float32"
        grad = general(bits, values.spread if wide else min(values.spread, 8))
    grad = np.ldexp(grad, values.scale)
    if given.grad_layout.startswith("expanded"):
        return torch.from_numpy(grad.reshape(places.shape))
    live = np.concatenate(([0], np.cumsum(ids >= 0)))
    counts = live[ends[1:]] - live[ends[:-1]]
    for f, part in enumerate(p.numpy() for p in places.of_feature):
        bags = slice(starts[f], starts[f + 1])
        if values.zero_rows:
            grad[part[random_bits(seed, 1 + f, len(part)) % np.uint64(2) == 0]] = 0.0
        if case.pooling_mode == "MEAN" and values.mode == "exact":
            grad[part] *= np.maximum(counts[bags], 1)[:, None]  # so that dividing by the count is exact
        if case.pooling_mode == "NONE":
            grad[part[ids[ends[bags.start] : ends[bags.stop]] == -1]] = np.nan
        else:
            grad[part[lengths[bags] == 0]] = np.nan
    if values.specials and grad.size:
        plant_specials(grad, bits)
    return torch.from_numpy(grad.reshape(places.shape))


@functools.lru_cache(maxsize=8)
def table_rows(case: Case) -> tuple[TableRows, ...]:
    """What each table holds at first, in the storage dtype, on the CPU; all rows, or those near the ones in use.

    Shared by all who ask: read only.
    """
    if isinstance(case.values, Carried):
        return case.values.tables
    used: list[list[np.ndarray]] = [[] for _ in case.tables]
    for k, batch in enumerate(case.batches):
        ids, lengths = ids_and_lengths(case, k)
        ends = np.concatenate(([0], np.cumsum(lengths)))[list(case.bag_starts(k))]
        for f, table in enumerate(case.feature_table_map):
            # Repaired offsets can move any id to any feature.
            some = ids if batch.offsets_edits else ids[ends[f] : ends[f + 1]]
            rows = case.tables[table].rows
            used[table].append(some[(some >= 0) & (some < rows)])
            if batch.offsets_edits or ((some < -1) | (some >= rows)).any():
                used[table].append(np.zeros(1, np.int64))  # what a bad id becomes
    return tuple(
        _table_rows(case, t, np.unique(np.concatenate([*u, np.zeros(0, np.int64)]))) for t, u in enumerate(used)
    )


def _table_rows(case: Case, number: int, used: np.ndarray) -> TableRows:
    table, values = case.tables[number], case.values
    dense = table.rows * table.dim <= DENSE_ELEMENTS
    if dense:
        rows = np.arange(table.rows)
    else:
        near = np.concatenate((used - 1, used, used + 1, [0, table.rows - 1]))
        rows = np.unique(near[(near >= 0) & (near < table.rows)])
    bits = random_bits(values.seed, number, len(rows) * table.dim)
    if values.mode == "exact":
        numbers = integers(bits, values.weight_bits)
    elif values.mode == "edges":
        numbers = edges(bits, case.output_dtype if case.weights_dtype == "float32" else case.weights_dtype, small=4)
    else:
        numbers = general(bits, min(values.spread, 8 if case.weights_dtype == "float16" else 12))
    numbers = np.ldexp(numbers, values.scale).reshape(len(rows), table.dim)
    if values.largest and case.weights_dtype == "float16":
        largest = float(np.finfo(np.float16).max)
        numbers = np.where((bits % np.uint64(8) == 3).reshape(numbers.shape), np.copysign(largest, numbers), numbers)
    if values.specials and numbers.size:
        plant_specials(numbers, bits)
    if values.zero_rows:
        numbers[random_bits(values.seed, 4000 + number, len(rows)) % np.uint64(2) == 0] = 0.0
    unused = ~np.isin(rows, used)
    numbers[unused & (random_bits(values.seed, 3000 + number, len(rows)) % np.uint64(2) == 0)] = np.nan
    kept = torch.from_numpy(numbers).to(torch_dtype(case.weights_dtype))
    return TableRows(None if dense else torch.from_numpy(rows), kept)
