"""The bounds check: malformed offsets are repaired, ids that no row answers to are counted and read as row 0.

Offsets first, in two small kernels; then the ids, in a kernel of their own or, with `fused_bounds_check`, inside the
lookup. The caller's tensors stay as they are; repairs go to copies. Only FATAL reads a result back (it has to raise);
the other modes leave their count on the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.aot.variants import Variants
from tbe_kernels.batch import LookupBatch, lookups_of
from tbe_kernels.observe import took
from tbe_kernels.spec import BoundsCheckError, BoundsCheckMode, next_power_of_two
from tbe_kernels.tables import EmbeddingTables


class BoundsCheck(NamedTuple):
    """What a kernel needs to judge ids, and where it reports."""

    rows_per_table: Tensor  # int64 [T]
    first_bad: Tensor  # int64 [3]: place of the first bad offset, of the first bad id; larger than any if none was seen
    warnings: Tensor  # int64 [1]: grows by the bad ones; the last of `first_bad` if nobody counts


@triton.jit(do_not_specialize=["n", "N"])
def check_offsets_kernel(offsets, repaired, first_bad, n, N, BLOCK: tl.constexpr):
    """Copy the `n` offsets and leave the place of the first malformed one in `first_bad`.

    Grid: 1-D, a program a block of `BLOCK` offsets, which it owns in `repaired`. `offsets` and `repaired` are
    `[n]`; `first_bad` `[3]` is shared: an atomic minimum.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
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
def repair_offsets_kernel(repaired, first_bad, warnings, n, N, BLOCK: tl.constexpr):
    """Put malformed offsets right in place; nothing to do unless `first_bad` names a place.

    Grid: one program, which owns `repaired` `[n]` and walks it in order. The first offset becomes 0, each one the
    running maximum clamped to [0, N], the last N; `warnings`, if anybody counts, grows by the changed ones.
    """
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
        tl.atomic_add(warnings, changed)


@triton.jit
def report_bad(check, bad, at, last):
    """Count the bad ids of a block of lookups, and remember the first."""
    count = tl.sum(bad.to(tl.int64), axis=0)
    if count > 0:
        tl.atomic_add(check.warnings, count)
        tl.atomic_min(check.first_bad + 1, tl.min(tl.where(bad, at, last), axis=0))


@triton.jit(do_not_specialize=["B", "programs"])
def check_indices_kernel(
    indices,
    offsets,
    checked,  # like indices, or None: where the ids go, bad ones as row 0
    places,
    check,
    B,
    programs,  # programs a feature
    BLOCK: tl.constexpr,
):
    """Walk one feature's ids, which lie side by side, and judge each against its own table.

    Grid: 1-D, `T * programs`; the programs of a feature take its ids `BLOCK` at a time, in turn, and own those
    places of `checked`. `indices` and `checked` are `[N]`, `offsets` `[bags + 1]`. What `check` counts is shared:
    atomics.
    """
    feature = tl.program_id(0) // programs
    part = tl.program_id(0) % programs
    rows = tl.load(check.rows_per_table + feature)
    first, last = lookups_of(places, offsets, feature, B)
    for start in range(first + part * BLOCK, last, programs * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < last
        index = tl.load(indices + at, mask=inside, other=-1).to(tl.int64)
        bad = (index < -1) | (index >= rows)
        if checked is not None:
            tl.store(checked + at, tl.where(bad, 0, index).to(checked.dtype.element_ty), mask=inside)
        report_bad(check, bad, at, last)


VARIANTS = {
    "check_offsets_kernel": Variants(
        axes=("offsets", "bags", "bounds_check", "block"),
        only={"bags": ("plain", "many"), "bounds_check": ("WARNING",)},
        atomics=lambda _: True,
    ),
    "repair_offsets_kernel": Variants(
        axes=("offsets", "bags", "bounds_check", "block"),
        only={"bags": ("plain", "many"), "bounds_check": ("WARNING", "IGNORE")},
        atomics=lambda _: True,
    ),
    "check_indices_kernel": Variants(
        axes=("indices", "offsets", "bags", "bounds_check", "fused_bounds_check", "block"),
        only={"bounds_check": ("WARNING", "IGNORE", "FATAL"), "fused_bounds_check": (False,)},
        atomics=lambda _: True,
    ),
}


def check_offsets(tables: EmbeddingTables, batch: LookupBatch) -> tuple[LookupBatch, BoundsCheck | None]:
    """The batch with its offsets repaired, and what is needed to judge its ids; None in mode NONE.

    Raises RuntimeError for mode FATAL inside a graph capture, where nothing can be raised.
    """
    mode = tables.bounds_check_mode
    if mode is BoundsCheckMode.NONE:
        return batch, None
    if mode is BoundsCheckMode.FATAL and batch.indices.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("bounds_check_mode FATAL has to read its result, which a graph capture forbids; use WARNING")
    n, N = batch.offsets.numel(), batch.indices.numel()
    first_bad = torch.full((3,), n + N, dtype=torch.int64, device=batch.indices.device)
    # Not None: a tuple with a None in it cannot be compared with None under Triton 3.6.
    warnings = tables.bounds_check_warning if mode is BoundsCheckMode.WARNING else first_bad[2:]
    repaired = torch.empty_like(batch.offsets)
    block = min(tables.config.block, next_power_of_two(n))
    check_offsets_kernel[(-(-n // block),)](batch.offsets, repaired, first_bad, n, N, BLOCK=block)
    repair_offsets_kernel[(1,)](repaired, first_bad, warnings, n, N, BLOCK=block)
    took("check.offsets", lambda: n)
    check = BoundsCheck(tables.on_device.rows_per_table, first_bad, warnings)
    return replace(batch, offsets=repaired), check


def check_indices(tables: EmbeddingTables, batch: LookupBatch, check: BoundsCheck) -> LookupBatch:
    """The batch with every bad id read as row 0, in a launch of its own. In mode FATAL the ids stay: it will raise."""
    N = batch.indices.numel()
    if N == 0:
        return batch
    fatal = tables.bounds_check_mode is BoundsCheckMode.FATAL
    checked = None if fatal else torch.empty_like(batch.indices)
    check_indices_kernel[(tables.layout.num_features * tables.config.check_programs,)](
        batch.indices,
        batch.offsets,
        checked,
        batch.bags.places,
        check,
        batch.bags.batch_size,
        tables.config.check_programs,
        BLOCK=min(tables.config.block, next_power_of_two(N)),
    )
    took("check.indices", lambda: N)
    return batch if checked is None else replace(batch, indices=checked)


def raise_first_bad(tables: EmbeddingTables, check: BoundsCheck, given: LookupBatch) -> None:
    """In mode FATAL, raise BoundsCheckError for the first bad offset, else for the first bad id. Synchronises.

    `given`: the batch as the caller passed it.
    """
    n, N = given.offsets.numel(), given.indices.numel()
    place, lookup, _ = check.first_bad.tolist()
    if place < n:
        feature, bag = given.bags.feature_and_sample(min(place, n - 2)) if n > 1 else (0, 0)
        raise BoundsCheckError("offsets", feature, bag, int(given.offsets[place]), N, place)
    if lookup < N:
        bag_number = int(torch.searchsorted(given.offsets, given.offsets.new_full((), lookup), right=True)) - 1
        feature, bag = given.bags.feature_and_sample(bag_number)
        rows = tables.layout.rows[tables.layout.feature_table_map[feature]]
        raise BoundsCheckError("indices", feature, bag, int(given.indices[lookup]), rows, lookup)
