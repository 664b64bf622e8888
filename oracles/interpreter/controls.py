"""Positive controls: small kernels with one fault each, which a guard has to see, and right twins, which none may.

Run whenever the hooks are put in (some milliseconds), so that a Triton which leaves a hook without effect fails loudly
instead of letting every kernel pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from oracles.interpreter.concurrency import countdown, races
from oracles.interpreter.findings import GuardError


@triton.jit
def move(out, x, n, FROM: tl.constexpr, TO: tl.constexpr, ADD: tl.constexpr, LANES: tl.constexpr):
    """out[TO : TO + n] = x[FROM : FROM + n], or added atomically."""
    at = tl.arange(0, LANES)
    value = tl.load(x + FROM + at, mask=at < n, other=0)
    if ADD:
        tl.atomic_add(out + TO + at, value, mask=at < n)
    else:
        tl.store(out + TO + at, value, mask=at < n)


@triton.jit
def move_one(out, x, FROM: tl.constexpr, TO: tl.constexpr):
    """out[TO] = x[FROM], as scalars."""
    tl.store(out + TO, tl.load(x + FROM))


@triton.jit
def poisoned(out, x, n, WITH_OTHER: tl.constexpr, LANES: tl.constexpr):
    """The sum of n elements, right only if masked lanes are given a zero."""
    at = tl.arange(0, LANES)
    if WITH_OTHER:
        value = tl.load(x + at, mask=at < n, other=0.0)
    else:
        value = tl.load(x + at, mask=at < n)
    tl.store(out, tl.sum(value, axis=0))


@triton.jit
def far_rows(out, x, rows, D, WIDE: tl.constexpr, LANES: tl.constexpr):
    """Row numbers times D, negative rows masked off. In int32, 2**20 * 2**12 wraps to 0, which is inside `x`."""
    row = tl.load(rows + tl.arange(0, LANES))
    start = row * D
    if WIDE:
        start = row.to(tl.int64) * D
    tl.store(out + tl.arange(0, LANES), tl.load(x + start, mask=row >= 0, other=0.0))


@triton.jit
def add_up(total, ATOMIC: tl.constexpr):
    """Each program adds one."""
    if ATOMIC:
        tl.atomic_add(total, 1.0, sem="relaxed")
    else:
        tl.store(total, tl.load(total) + 1.0)


@triton.jit
def row_state(state, BARRIER: tl.constexpr):
    """Every lane loads what one lane stores."""
    value = tl.load(state)
    if BARRIER:
        tl.debug_barrier()
    tl.store(state, value + 1.0)


@triton.jit
def told(out, x, n, FACTOR: tl.constexpr, GROUP: tl.constexpr, SAME: tl.constexpr, MOST: tl.constexpr):
    """out = x[...], by every hint there is: n is a multiple of FACTOR, places come in groups, n is at most MOST."""
    tl.assume(n <= MOST)
    start = tl.multiple_of(n, FACTOR)
    lanes = tl.arange(0, 8)
    at = tl.max_contiguous(tl.multiple_of(start + lanes // 4 * 8 + lanes % 4, 4), GROUP)
    row = tl.max_constancy(lanes // 4, SAME)
    for step in range(0, 8, 4):
        tl.store(out + tl.multiple_of(step, FACTOR), 0.0)
    tl.store(tl.multiple_of(out, 4) + lanes, tl.load(x + at) + row)


def _moves(fault: str) -> None:
    buffer = torch.arange(32.0)
    out, x = torch.zeros(8)[:6], buffer[8:14]
    origin = {"before": -1, "behind": 1, "far": 2**40}.get(fault.removeprefix("load "), 0)
    target = {"store behind": 1, "atomic before": -1}.get(fault, 0)
    if fault == "gap":
        x = buffer[0:12].view(6, 2)[:, 0]
    move[(1,)](out, x, 6 if fault != "gap" else 2, origin, target, fault.startswith("atomic"), 8)


def _move_one(fault: bool) -> None:
    move_one[(1,)](torch.zeros(3), torch.zeros(4)[:3], 3 if fault else 2, 0)


def _poisoned(fault: bool) -> None:
    out = torch.zeros(1)
    poisoned[(1,)](out, torch.ones(4), 3, not fault, 4)
    if not out.item() == 3:
        raise GuardError("poison", f"{out.item()}")


def _far_rows(fault: bool) -> None:
    rows = torch.tensor([0, 2**20 if fault else -(2**20)], dtype=torch.int32)
    far_rows[(1,)](torch.zeros(2), torch.zeros(4), rows, 2**12, False, 2)


def _told(factor: int = 4, group: int = 4, same: int = 4, most: int = 4, n: int = 4) -> None:
    told[(1,)](torch.zeros(8), torch.zeros(32), n, factor, group, same, most)


def _add_up(atomic: bool) -> None:
    add_up[(2,)](torch.zeros(1), atomic)


def _row_state(barrier: bool) -> None:
    row_state[(1,)](torch.zeros(1), barrier)


#: (what, the guard that has to see it or None, the run)
Control = tuple[str, str | None, Callable[[], None]]
BOUNDS: tuple[Control, ...] = (
    ("a right copy", None, lambda: _moves("")),
    ("a right atomic", None, lambda: _moves("atomic")),
    *(
        (fault, "bounds", lambda fault=fault: _moves(fault))
        for fault in ("load before", "load behind", "load far", "gap", "store behind", "atomic before")
    ),
    ("a right scalar", None, lambda: _move_one(False)),
    ("a scalar of the surroundings of a view", "bounds", lambda: _move_one(True)),
    ("a masked load with other", None, lambda: _poisoned(False)),
    ("a masked load without other", "poison", lambda: _poisoned(True)),
    ("a wrapped address that is masked off", None, lambda: _far_rows(False)),
    ("a wrapped address", "overflow", lambda: _far_rows(True)),
)
HINTS: tuple[Control, ...] = (
    ("hints that are true", None, _told),
    ("a number that is no such multiple", "hints", lambda: _told(n=2, most=2)),
    ("the variable of a loop that is no such multiple", "hints", lambda: _told(factor=8, n=8, most=8)),
    ("groups that are longer than what is contiguous", "hints", lambda: _told(group=8)),
    ("groups that are longer than what is the same", "hints", lambda: _told(same=8)),
    ("an assumption that does not hold", "hints", lambda: _told(most=3)),
)
RACES: tuple[Control, ...] = (
    ("atomic adds", None, lambda: _add_up(True)),
    ("adds that are not atomic", "races", lambda: _add_up(False)),
    *((what, "races" if faulty else None, run) for what, faulty, run in countdown.CONTROLS),
    ("one lane's store behind a barrier", None, lambda: _row_state(True)),
    ("one lane's store of what all load", "races", lambda: _row_state(False)),
)


def failures(controls: tuple[Control, ...], watch: Callable[[], AbstractContextManager[Any]]) -> list[str]:
    """A line for each control that no guard, or the wrong one, answered."""
    out = []
    for what, guard, run in controls:
        seen = None
        try:
            with watch(), np.errstate(all="ignore"):
                run()
        except GuardError as error:
            seen = error.guard
        if seen != guard:
            out.append(f"{what}: expected {guard or 'no finding'}, got {seen or 'no finding'}")
    return out


def verify() -> None:
    """Raise RuntimeError unless every guard sees what it has to see and nothing else."""
    wrong = failures((*BOUNDS, *HINTS), nullcontext) + failures(RACES, races.watching)
    if wrong:
        raise RuntimeError(f"Triton {triton.__version__} disarms guards of the interpreter: " + "; ".join(wrong))
