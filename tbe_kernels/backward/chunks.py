"""One chunk of a long run: which lookups it holds, and the sum of their gradients. Shared by every merge."""

from __future__ import annotations

import triton
import triton.language as tl

from tbe_kernels.backward.rows import feature_and_width, sum_gradients


@triton.jit
def sum_chunk(
    chunk,
    lookups,
    run_starts,
    long_runs,
    B,
    total_D,
    chunk_size,
    ALIGN: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """(long run that owns the chunk, chunks of that run, first lookup of the run, D, fp32 sum `[BLOCK_D]`)"""
    owner = tl.load(long_runs.chunk_owner + chunk)
    run = tl.load(long_runs.runs + owner)
    start = tl.load(run_starts + run)
    end = tl.load(run_starts + run + 1)
    chunks = (end - start + chunk_size - 1) // chunk_size
    # The run's chunks end before chunk_ends[owner].
    first = start + (chunk - (tl.load(long_runs.chunk_ends + owner) - chunks)) * chunk_size
    last = tl.minimum(first + chunk_size, end)
    _feature, D = feature_and_width(lookups, start, B, ALIGN)
    total = sum_gradients(lookups, first, last, D, B, total_D, ALIGN, GATHER, BLOCK_D)
    return owner, chunks, start, D, total
