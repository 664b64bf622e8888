"""What is computed: the modes a user chooses and the layout of the tables they apply to.

First stop of the flow inside `tbe_kernels`: `TableLayout` turns `embedding_specs` and `feature_table_map` into every
offset that a kernel needs, on the host once and on the device once, so that no launch has to compute or copy any.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

#: The widest row a kernel can hold in one tile (`TRITON_MAX_TENSOR_NUMEL`).
MAX_D = 2**20


class PoolingMode(enum.Enum):
    """How the rows of a bag become one output row."""

    SUM = "SUM"
    MEAN = "MEAN"  # the sum divided by the bag's ids other than -1; a bag without any gives zeros
    NONE = "NONE"  # not at all: one output row a lookup


class BoundsCheckMode(enum.Enum):
    """What happens to an id that its table does not have (and to malformed offsets)."""

    FATAL = "FATAL"  # raise BoundsCheckError; synchronises
    WARNING = "WARNING"  # count it in `bounds_check_warning`, use row 0
    IGNORE = "IGNORE"  # use row 0
    NONE = "NONE"  # do not look: the result of a bad id is undefined


class WeightDecayMode(enum.Enum):
    """Where weight decay enters an optimizer step."""

    NONE = "NONE"
    L2 = "L2"  # added to the gradient
    DECOUPLE = "DECOUPLE"  # taken off the weight


class BoundsCheckError(IndexError):
    """The first bad offset or id of a FATAL bounds check.

    `kind`: "offsets" or "indices". `place`: where in that tensor. `index`: the offset or id found there. `feature` and
    `bag` (sample within the feature): the bag it belongs to. `rows`: rows of the feature's table, for offsets the
    number of ids.
    """

    def __init__(self, kind: str, feature: int, bag: int, index: int, rows: int, place: int) -> None:
        self.kind, self.feature, self.bag, self.index, self.rows, self.place = kind, feature, bag, index, rows, place
        where = f"{kind}[{place}] = {index} (feature {feature}, bag {bag})"
        if kind == "offsets":
            super().__init__(f"{where}: offsets must start at 0, never decrease and end at the number of ids, {rows}")
        else:
            super().__init__(f"{where}: expected -1 (pruned) or an id below {rows}, the rows of the feature's table")


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n` (n >= 1)."""
    return 1 << (n - 1).bit_length()


def index_dtype(largest: int) -> torch.dtype:
    """int32 for numbers up to `largest` if they fit, else int64."""
    return torch.int32 if largest < 2**31 else torch.int64


def _alignment(numbers: Sequence[int]) -> int:
    """The hint for vector loads: 16, 4 or 1, whichever divides all `numbers` (elements)."""
    common = math.gcd(*numbers)
    return next(a for a in (16, 4, 1) if common % a == 0)


@dataclass(frozen=True)
class Bucket:
    """The features and tables whose rows share one block size (`next_power_of_two(D)`).

    `features` in order; `first_key` and `end_key` bound the sort keys of its tables (see `TableLayout.key_base`);
    `alignment` divides every D, column and table offset of the bucket, in elements, and `variable_alignment` also the
    D of every other feature, on which the places of a variable batch depend.
    """

    block_d: int
    features: tuple[int, ...]
    first_key: int
    end_key: int
    alignment: int
    variable_alignment: int


@dataclass(frozen=True)
class TableLayout:
    """Where tables, rows and output columns lie. Names are FBGEMM's.

    `rows[t]`, `dims[t]`: rows and columns of table t. `feature_table_map[f]`: the table of feature f.
    `min_block_d`: buckets narrower than this are joined (a knob of `KernelConfig`).

    The backward sorts lookups by a *key*: the linear row number with the tables reordered so that those of one bucket
    are neighbours. A bucket's runs are then one contiguous range, known from two binary searches on the device.
    """

    rows: tuple[int, ...]
    dims: tuple[int, ...]
    feature_table_map: tuple[int, ...]
    min_block_d: int = 1

    def __post_init__(self) -> None:
        if len(self.rows) == 0:
            raise ValueError("embedding_specs: expected at least one table, got none")
        for t, (rows, dim) in enumerate(zip(self.rows, self.dims, strict=True)):
            if rows < 1:
                raise ValueError(f"embedding_specs[{t}]: rows must be at least 1, got {rows}")
            if not 1 <= dim <= MAX_D:
                raise ValueError(f"embedding_specs[{t}]: D must be from 1 to {MAX_D}, got {dim}")
        if len(self.feature_table_map) == 0:
            raise ValueError("feature_table_map: expected at least one feature, got none")
        for f, table in enumerate(self.feature_table_map):
            if not 0 <= table < len(self.rows):
                raise ValueError(
                    f"feature_table_map[{f}]: expected a table from 0 to {len(self.rows) - 1}, got {table}"
                )

    @property
    def num_features(self) -> int:
        return len(self.feature_table_map)

    @property
    def num_tables(self) -> int:
        return len(self.rows)

    @cached_property
    def weights_offsets(self) -> tuple[int, ...]:
        """First element of each table in the flat weights, and their total length last."""
        return _running_sum(r * d for r, d in zip(self.rows, self.dims, strict=True))

    @cached_property
    def table_row_offsets(self) -> tuple[int, ...]:
        """First linear row of each table, and the total number of rows last."""
        return _running_sum(self.rows)

    @cached_property
    def hash_size_cumsum(self) -> tuple[int, ...]:
        """First linear row of each feature's table `[T + 1]`; the last entry is the total number of rows."""
        return (*(self.table_row_offsets[t] for t in self.feature_table_map), self.total_rows)

    @cached_property
    def D_offsets(self) -> tuple[int, ...]:
        """First output column of each feature `[T + 1]`; the last entry is `total_D`."""
        return _running_sum(self.dims[t] for t in self.feature_table_map)

    @property
    def total_rows(self) -> int:
        return self.table_row_offsets[-1]

    @property
    def total_D(self) -> int:
        return self.D_offsets[-1]

    @property
    def max_D(self) -> int:
        return max(self.dims)

    def block_d(self, table: int) -> int:
        """Block size of a table's rows."""
        return max(next_power_of_two(self.dims[table]), self.min_block_d)

    @cached_property
    def key_base(self) -> tuple[int, ...]:
        """Sort key of row 0 of each table: linear rows with the tables ordered by block size."""
        order = sorted(range(self.num_tables), key=self.block_d)
        starts = _running_sum(self.rows[t] for t in order)
        base = dict(zip(order, starts, strict=False))
        return tuple(base[t] for t in range(self.num_tables))

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The tables grouped by block size, narrowest first; together they cover every key once."""
        out = []
        for block in sorted({self.block_d(t) for t in range(self.num_tables)}):
            tables = [t for t in range(self.num_tables) if self.block_d(t) == block]
            features = tuple(f for f, t in enumerate(self.feature_table_map) if t in tables)
            first = min(self.key_base[t] for t in tables)
            places = [self.dims[t] for t in tables] + [self.weights_offsets[t] for t in tables]
            places += [self.D_offsets[f] for f in features] + [self.total_D]
            every = [*places, *(self.dims[t] for t in self.feature_table_map)]
            end = first + sum(self.rows[t] for t in tables)
            out.append(Bucket(block, features, first, end, _alignment(places), _alignment(every)))
        return tuple(out)

    def on(self, device: torch.device) -> DeviceLayout:
        """The same offsets as tensors on `device`."""
        per_feature = self.feature_table_map

        def tensor(numbers: Sequence[int], dtype: torch.dtype) -> Tensor:
            return torch.tensor(numbers, dtype=dtype, device=device)

        return DeviceLayout(
            weights_offsets=tensor([self.weights_offsets[t] for t in per_feature], torch.int64),
            rows_per_table=tensor([self.rows[t] for t in per_feature], torch.int64),
            hash_size_cumsum=tensor(self.hash_size_cumsum, torch.int64),
            key_base=tensor([self.key_base[t] for t in per_feature], torch.int64),
            D_offsets=tensor(self.D_offsets, torch.int32),
            widest=tensor([self.max_D], torch.int64),
            bucket_features=tuple(tensor(b.features, torch.int32) for b in self.buckets),
            bucket_keys=tensor([*(b.first_key for b in self.buckets), self.total_rows], index_dtype(self.total_rows)),
        )


@dataclass(frozen=True)
class DeviceLayout:
    """`TableLayout` on a device. Every tensor is by feature, so a kernel needs no table number."""

    weights_offsets: Tensor  # int64 [T]: first element of the feature's table
    rows_per_table: Tensor  # int64 [T]
    hash_size_cumsum: Tensor  # int64 [T + 1]: first linear row of the feature's table
    key_base: Tensor  # int64 [T]: sort key of row 0 of the feature's table
    D_offsets: Tensor  # int32 [T + 1]: first output column
    widest: Tensor  # int64 [1]: the largest D
    bucket_features: tuple[Tensor, ...]  # int32, one per bucket
    bucket_keys: Tensor  # [buckets + 1]: first key of each bucket, total rows last; its dtype is that of the keys


def _running_sum(numbers: object) -> tuple[int, ...]:
    total, out = 0, [0]
    for n in numbers:  # type: ignore[attr-defined]
        total += n
        out.append(total)
    return tuple(out)
