"""The plan of a backward: the batch's lookups sorted into runs, all of it on the device.

A run is every lookup of one row, over all features that map to its table. How many runs there are, which are long and
how many chunks those make is known only on the device, so buffers are sized from the number of lookups and kernels read
the counts through pointers: nothing here synchronises, and a CUDA graph can capture it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.aot.variants import Variants
from tbe_kernels.batch import LookupBatch, feature_of
from tbe_kernels.config import KernelConfig
from tbe_kernels.observe import took
from tbe_kernels.spec import index_dtype, next_power_of_two
from tbe_kernels.tables import EmbeddingTables


@triton.jit(do_not_specialize=["B", "N", "total_rows"])
def sort_keys_kernel(
    keys,
    indices,
    bags,  # of each lookup
    places,
    key_base,
    check_rows,  # int64 [T]: read a bad id as row 0, or None
    B,
    N,
    total_rows,
    BLOCK: tl.constexpr,
):
    """The sort key of each lookup: its linear row (tables in bucket order), or `total_rows` where it is pruned.

    Grid: 1-D, a program a block of `BLOCK` lookups, which it owns in `keys`. `keys`, `indices` and `bags` are
    `[N]`, `key_base` int64 `[T]`.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    index = tl.load(indices + at, mask=inside, other=-1).to(tl.int64)
    feature = feature_of(places, tl.load(bags + at, mask=inside, other=0), B)
    if check_rows is not None:
        index = tl.where((index < -1) | (index >= tl.load(check_rows + feature)), 0, index)
    key = tl.load(key_base + feature) + index
    key = tl.where(index >= 0, key, total_rows)
    tl.store(keys + at, key.to(keys.dtype.element_ty), mask=inside)


VARIANTS = {
    "sort_keys_kernel": Variants(
        axes=("indices", "bags", "rows", "fused_bounds_check", "block"),
    )
}


class LongRuns(NamedTuple):
    """The runs that are split, and their chunks.

    `runs` int64 `[N // threshold]`: their numbers. `bounds` int64 `[buckets + 1]`: those of bucket k are `bounds[k]` to
    `bounds[k + 1]`. `chunk_ends` int64 like `runs`: chunks up to and including each. `chunk_owner` int64
    `[N // chunk_size + N // threshold]`: the place in `runs` that each chunk belongs to; `chunk_bounds` by bucket.
    """

    runs: Tensor
    bounds: Tensor
    chunk_ends: Tensor
    chunk_owner: Tensor
    chunk_bounds: Tensor


@dataclass(frozen=True)
class BackwardPlan:
    """The runs of a batch of N lookups. Counts are device tensors; entries beyond a count are padding.

    `keys` `[N]`: the sort key of each lookup, sorted. `bags` int32 or int64 `[N]`: its bag (feature * B + sample).
    `order` int64 `[N]`: its place in the batch. `run_starts` int64 `[N + 2]`: first lookup of each run, N behind
    the last. `run_bounds` int64 `[buckets + 1]`: the runs of bucket k are `run_bounds[k]` to `run_bounds[k + 1]`.
    `long` is None where no run of N lookups can reach the threshold.
    """

    keys: Tensor
    bags: Tensor
    order: Tensor
    run_starts: Tensor
    run_bounds: Tensor
    long: LongRuns | None

    def num_long_runs(self) -> int:
        """Runs that are split into chunks (synchronises; for observers)."""
        return 0 if self.long is None else int(self.long.bounds[-1])

    def num_short_runs(self) -> int:
        """Runs that one program owns (synchronises; for observers)."""
        return int(self.run_bounds[-1]) - self.num_long_runs()


def plan_backward(tables: EmbeddingTables, batch: LookupBatch) -> BackwardPlan:
    """Sort the N > 0 lookups of a batch by row and find its runs, its long runs and their chunks."""
    config, on_device, total_rows = tables.config, tables.on_device, tables.layout.total_rows
    N, device = batch.indices.numel(), batch.indices.device
    bags = _bag_of_each_lookup(batch.offsets, N)
    keys = torch.empty(N, dtype=on_device.bucket_keys.dtype, device=device)
    block = min(config.block, next_power_of_two(N))
    sort_keys_kernel[(-(-N // block),)](
        keys,
        batch.indices,
        bags,
        batch.bags.places,
        on_device.key_base,
        batch.check_rows,
        batch.bags.batch_size,
        N,
        total_rows,
        BLOCK=block,
    )
    took("backward.plan.hoisted" if config.hoist_transpose_to_forward else "backward.plan", lambda: N)
    keys, order = torch.sort(keys, stable=True)

    starts_run = torch.ones(N, dtype=torch.bool, device=device)
    torch.ne(keys[1:], keys[:-1], out=starts_run[1:])
    # Two more entries than there can be runs: run number N, the padding of `runs` below, starts and ends at N.
    run_starts = torch.nonzero_static(starts_run, size=N + 2, fill_value=N).squeeze(1)
    # Padding takes the key of pruned lookups, which is larger than any row's.
    end = torch.full((1,), total_rows, dtype=keys.dtype, device=device)
    run_keys = torch.cat((keys, end))[run_starts[:-1]]
    run_bounds = torch.searchsorted(run_keys, on_device.bucket_keys)
    return BackwardPlan(
        keys=keys,
        bags=bags[order],
        order=order,
        run_starts=run_starts,
        run_bounds=run_bounds,
        long=_find_long_runs(N, run_starts, run_keys < total_rows, run_bounds, config),
    )


def _find_long_runs(
    N: int, run_starts: Tensor, is_row: Tensor, run_bounds: Tensor, config: KernelConfig
) -> LongRuns | None:
    most_runs = N // config.long_run_threshold
    most_chunks = N // config.chunk_size + most_runs
    if most_runs == 0:
        return None
    lengths = run_starts[1:] - run_starts[:-1]
    is_long = is_row & (lengths >= config.long_run_threshold)
    runs = torch.nonzero_static(is_long, size=most_runs, fill_value=N).squeeze(1)
    chunk_ends = torch.cumsum((lengths[runs] + (config.chunk_size - 1)) // config.chunk_size, 0)
    bounds = torch.searchsorted(runs, run_bounds)
    first_chunks = torch.cat((torch.zeros(1, dtype=torch.int64, device=runs.device), chunk_ends))
    chunk_numbers = torch.arange(most_chunks, device=runs.device)
    return LongRuns(
        runs=runs,
        bounds=bounds,
        chunk_ends=chunk_ends,
        chunk_owner=torch.searchsorted(chunk_ends, chunk_numbers, right=True),
        chunk_bounds=first_chunks[bounds],
    )


def _bag_of_each_lookup(offsets: Tensor, N: int) -> Tensor:
    lengths = (offsets[1:] - offsets[:-1]).to(torch.int64)
    bags = torch.arange(lengths.numel(), dtype=index_dtype(lengths.numel()), device=offsets.device)
    return torch.repeat_interleave(bags, lengths, output_size=N)
