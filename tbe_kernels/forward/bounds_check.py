"""The bounds check: malformed offsets are repaired, ids that no row answers to are counted and replaced.

Three small kernels before the lookup. The caller's tensors stay as they are; repairs go to copies. Only FATAL reads a
result back (it has to raise); the other modes leave their count on the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.config import KernelConfig
from tbe_kernels.observe import took
from tbe_kernels.spec import BoundsCheckError, BoundsCheckMode, DeviceLayout, TableLayout, next_power_of_two


@triton.jit(do_not_specialize=["n", "N"])
def check_offsets_kernel(offsets, repaired, first_bad, n, N, BLOCK: tl.constexpr):
    """Copy the `n` offsets and leave the place of the first malformed one in `first_bad`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    here = tl.load(offsets + at, mask=inside, other=0)
    before = tl.load(offsets + at - 1, mask=inside & (at > 0), other=0).to(tl.int64)
    tl.store(repaired + at, here, mask=inside)
    here = here.to(tl.int64)
    bad = (here < before) | ((at == 0) & (here != 0)) | ((at == n - 1) & (here != N))
    place = tl.min(tl.where(inside & bad, at, n), axis=0)
    if place < n:
        tl.atomic_min(first_bad, place.to(tl.int64))


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["n", "N"])
def repair_offsets_kernel(repaired, first_bad, warnings, n, N, BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """One program; nothing to do unless `first_bad` names a place. The first offset becomes 0, each one the running
    maximum clamped to [0, N], the last N; `warnings` counts the changed ones."""
    if tl.load(first_bad) < n:
        reached = tl.zeros([], dtype=tl.int64)
        changed = tl.zeros([], dtype=tl.int64)
        for start in range(0, n, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < n
            given = tl.load(repaired + at, mask=inside, other=0).to(tl.int64)
            clamped = tl.minimum(tl.maximum(tl.where(at == 0, 0, given), 0), N)
            running = tl.maximum(tl.associative_scan(clamped, 0, _larger), reached)
            fixed = tl.where(at == n - 1, N, running)
            tl.store(repaired + at, fixed.to(repaired.dtype.element_ty), mask=inside)
            changed += tl.sum((inside & (fixed != given)).to(tl.int64), axis=0)
            reached = tl.max(running, axis=0)
        if COUNT:
            tl.atomic_add(warnings, changed)


@triton.jit(do_not_specialize=["B", "programs"])
def check_indices_kernel(
    indices,
    offsets,
    checked,  # like indices, or None: where the ids go, bad ones as row 0
    rows_per_table,
    first_bad,
    warnings,
    B,
    programs,  # programs a feature
    BLOCK: tl.constexpr,
    COUNT: tl.constexpr,
):
    """Walk one feature's ids, which lie side by side, and judge each against its own table."""
    feature = tl.program_id(0) // programs
    part = tl.program_id(0) % programs
    rows = tl.load(rows_per_table + feature)
    first = tl.load(offsets + feature.to(tl.int64) * B).to(tl.int64)
    last = tl.load(offsets + (feature.to(tl.int64) + 1) * B).to(tl.int64)
    for start in range(first + part * BLOCK, last, programs * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < last
        index = tl.load(indices + at, mask=inside, other=-1).to(tl.int64)
        bad = (index < -1) | (index >= rows)
        if checked is not None:
            tl.store(checked + at, tl.where(bad, 0, index).to(checked.dtype.element_ty), mask=inside)
        count = tl.sum(bad.to(tl.int64), axis=0)
        if count > 0:
            if COUNT:
                tl.atomic_add(warnings, count)
            tl.atomic_min(first_bad + 1, tl.min(tl.where(bad, at, last), axis=0))


def check_bounds(
    indices: Tensor,
    offsets: Tensor,
    batch_size: int,
    mode: BoundsCheckMode,
    warnings: Tensor,
    layout: TableLayout,
    on_device: DeviceLayout,
    config: KernelConfig,
) -> tuple[Tensor, Tensor]:
    """The ids and offsets to go on with; `warnings` (int64 `[1]`) grows by the bad ones if `mode` is WARNING.

    Raises BoundsCheckError in mode FATAL (the offsets are judged before the ids), and RuntimeError for FATAL inside a
    graph capture, where nothing can be raised.
    """
    if mode is BoundsCheckMode.NONE:
        return indices, offsets
    fatal, count = mode is BoundsCheckMode.FATAL, mode is BoundsCheckMode.WARNING
    if fatal and indices.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("bounds_check_mode FATAL has to read its result, which a graph capture forbids; use WARNING")
    n, N = offsets.numel(), indices.numel()
    repaired = torch.empty_like(offsets)
    checked = None if fatal else torch.empty_like(indices)
    # The places of the first bad offset and of the first bad id; larger than either while none was seen.
    first_bad = torch.full((2,), n + N, dtype=torch.int64, device=indices.device)
    block = min(config.block, next_power_of_two(n))
    check_offsets_kernel[(-(-n // block),)](offsets, repaired, first_bad, n, N, BLOCK=block)
    repair_offsets_kernel[(1,)](repaired, first_bad, warnings, n, N, BLOCK=block, COUNT=count)
    took("check.offsets", lambda: n)
    if N > 0 and batch_size > 0:
        check_indices_kernel[(layout.num_features * config.check_programs,)](
            indices,
            repaired,
            checked,
            on_device.rows_per_table,
            first_bad,
            warnings,
            batch_size,
            config.check_programs,
            BLOCK=min(config.block, next_power_of_two(N)),
            COUNT=count,
        )
        took("check.indices", lambda: N)
    if fatal:
        _raise_first(first_bad.tolist(), indices, offsets, batch_size, layout)
    return (indices if checked is None else checked), repaired


def _raise_first(first_bad: list[int], indices: Tensor, offsets: Tensor, batch_size: int, layout: TableLayout) -> None:
    """Raise for the first bad offset, else for the first bad id, if there is one."""
    n, N = offsets.numel(), indices.numel()
    place, lookup = first_bad
    if place < n:
        feature, bag = divmod(min(place, n - 2), batch_size) if batch_size else (0, 0)
        raise BoundsCheckError("offsets", feature, bag, int(offsets[place]), N, place)
    if lookup < N:
        bag_number = int(torch.searchsorted(offsets, offsets.new_full((), lookup), right=True)) - 1
        feature, bag = divmod(bag_number, batch_size)
        rows = layout.rows[layout.feature_table_map[feature]]
        raise BoundsCheckError("indices", feature, bag, int(indices[lookup]), rows, lookup)
