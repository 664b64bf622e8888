"""A countdown, as the fused merge makes one, right and with each of its faults: the controls of races and schedules.

Of programs that add to the same sums and count down, the last copies the sums. That is right if the adds are released
by the countdown, behind a barrier, and acquired from it, before another one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl


@triton.jit
def countdown(out, sums, counter, ORDER: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, LANES: tl.constexpr):
    """Each program adds to every lane; the last one copies the sums."""
    at = tl.arange(0, LANES)
    tl.atomic_add(sums + at, 1.0, sem="relaxed")
    if BEFORE:
        tl.debug_barrier()
    before = tl.atomic_add(counter, 1, sem=ORDER)
    if before == tl.num_programs(0) - 1:
        if AFTER:
            tl.debug_barrier()
        tl.store(out + at, tl.load(sums + at))


def count_down(order: str = "acq_rel", before: bool = True, after: bool = True) -> None:
    countdown[(2,)](torch.zeros(4), torch.zeros(4), torch.zeros(1, dtype=torch.int32), order, before, after, 4)


#: (what, whether it is faulty, the run): a relaxed countdown and its kin.
CONTROLS: tuple[tuple[str, bool, Callable[[], None]], ...] = (
    ("a countdown", False, count_down),
    ("a relaxed countdown", True, lambda: count_down("relaxed")),
    ("a countdown that releases nothing", True, lambda: count_down("acquire")),
    ("a countdown that acquires nothing", True, lambda: count_down("release")),
    ("a countdown without a barrier before it", True, lambda: count_down(before=False)),
    ("a countdown without a barrier behind it", True, lambda: count_down(after=False)),
)
