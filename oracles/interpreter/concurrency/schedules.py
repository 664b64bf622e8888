"""Schedules of a launch as tuples of choices: follow one that a case names, or explore many.

A launch is first run plainly, which tells what memory its programs share; then again from the same memory, its programs
taking turns (`turns`). A schedule is part of its case: each launch whose programs share memory follows it from its
start, so the case replays wherever the interpreter does, and the schedule shrinks with the rest of it.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton

from corpus.tensors import random_bits
from oracles.interpreter import launch
from oracles.interpreter.concurrency import countdown
from oracles.interpreter.concurrency.races import AccessPieces, Recorder
from oracles.interpreter.concurrency.turns import Turns
from oracles.interpreter.faithful.casts import bf16_to_fp32
from oracles.interpreter.launch import Launch, Span

Schedule = tuple[int, ...]
#: A launch with more memory than so many bytes is run plainly: it would have to be copied.
MOST_BYTES = 2**26
#: Choices of a schedule that `schedules` makes, and how large they are.
LENGTH, LARGEST = 32, 8
#: Schedules of each control.
VERIFIED = 40
_NUMPY = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}


def schedules(seed: int, count: int) -> Iterator[Schedule]:
    """`count` schedules, a function of the seed alone; in some many choices are 0, in others few."""
    for number in range(count):
        bits = random_bits(seed, number, LENGTH)
        sparse = (bits >> np.uint64(32)) % np.uint64(8) >= np.uint64(1 + 2 * (number % 4))
        choices = np.where(sparse, 0, bits % np.uint64(LARGEST))
        yield tuple(int(c) for c in np.trim_zeros(choices, "b"))


class Memory:
    """A copy of everything that a launch's arguments hold."""

    def __init__(self, now: Launch) -> None:
        self.parts: list[tuple[str, torch.dtype, np.ndarray, np.ndarray]] = []
        for name, tensor in now.tensors():
            span = Span(tensor)
            size = span.end - span.begin
            if size:
                live = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(span.begin))
                self.parts.append((name, tensor.dtype, live, live.copy()))

    def restore(self) -> None:
        """Put it back."""
        for _, _, live, kept in self.parts:
            live[:] = kept

    def differs(self) -> str:
        """The first argument that holds other numbers now, or ""."""
        for name, dtype, live, kept in self.parts:
            if not np.array_equal(live, kept) and not _equal(live, kept, dtype):
                return name
        return ""


def _equal(a: np.ndarray, b: np.ndarray, dtype: torch.dtype) -> bool:
    """Whether bytes hold the same numbers: a NaN is a NaN, and zeros have no sign."""
    if not dtype.is_floating_point:
        return False
    if dtype == torch.bfloat16:
        a, b = (bf16_to_fp32(x.view(np.uint16)) for x in (a, b))
    else:
        a, b = (x.view(_NUMPY[dtype]) for x in (a, b))
    return np.array_equal(a, b, equal_nan=True)


class _Watcher:
    """Passes on to whoever runs the launch at the moment: a recorder, or turns."""

    def __init__(self) -> None:
        self._inner: Any = None

    def run(self, now: Launch, programs: list[Callable[[], None]]) -> None:
        begin = Memory(now) if len(programs) > 1 and _bytes(now) <= MOST_BYTES else None
        self._inner = recorder = Recorder()
        recorder.run(now, programs)
        shared = AccessPieces(recorder.accesses).shared() if begin is not None else np.zeros(0)
        if begin is not None and shared.size:
            spans = {(s.begin, s.end) for s in (Span(tensor) for _, tensor in now.tensors())}
            met = {(a, b) for a, b in spans if ((shared >= a) & (shared < b)).any()}
            self.again(now, programs, begin, met)

    def again(self, now: Launch, programs: list[Callable[[], None]], begin: Memory, met: set[tuple[int, int]]) -> None:
        raise NotImplementedError

    def take_turns(self, schedule: Schedule, programs: list[Callable[[], None]], met: set[tuple[int, int]]) -> None:
        """Run the programs once more."""
        self._inner = turns = Turns(schedule, met)
        turns.run(programs)

    def load(self, *args: Any) -> Any:
        return self._inner.load(*args)

    def store(self, *args: Any) -> Any:
        return self._inner.store(*args)

    def atomic(self, *args: Any) -> Any:
        return self._inner.atomic(*args)

    def barrier(self) -> None:
        self._inner.barrier()


def _bytes(now: Launch) -> int:
    return sum(span.end - span.begin for span in (Span(tensor) for _, tensor in now.tensors()))


class _Follower(_Watcher):
    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule

    def again(self, now: Launch, programs: list[Callable[[], None]], begin: Memory, met: set[tuple[int, int]]) -> None:
        begin.restore()
        self.take_turns(self._schedule, programs, met)


@dataclass
class Exploration:
    """What `exploring` did: launches whose programs share memory, schedules run, CPU seconds they took; and the first
    schedule under which a launch left other numbers than plainly, or raised, with the kernel and what differed."""

    launches: int = 0
    schedules: int = 0
    seconds: float = 0.0
    failing: Schedule | None = None
    kernel: str = ""
    what: str = ""


class Explorer(_Watcher):
    """Runs launches under each of some schedules; `exploring` for whoever needs no more."""

    def __init__(self, some: Iterable[Schedule]) -> None:
        super().__init__()
        self._schedules = tuple(some)
        self.exploration = Exploration()

    def again(self, now: Launch, programs: list[Callable[[], None]], begin: Memory, met: set[tuple[int, int]]) -> None:
        done, plainly = self.exploration, Memory(now)
        done.launches += 1
        if done.failing is not None:
            return
        start = time.process_time()
        for schedule in self._schedules:
            begin.restore()
            done.schedules += 1
            try:
                self.take_turns(schedule, programs, met)
                what = plainly.differs()
            except Exception as error:
                what = repr(error)
            if what:
                done.failing, done.kernel, done.what = schedule, now.kernel.__name__, what
                break
        done.seconds += time.process_time() - start
        plainly.restore()


@contextmanager
def following(schedule: Schedule) -> Iterator[None]:
    """Every launch inside the block whose programs share memory follows `schedule`."""
    verify()
    with launch.watched_by(_Follower(schedule)):
        yield


@contextmanager
def exploring(some: Iterable[Schedule]) -> Iterator[Exploration]:
    """Every launch inside the block whose programs share memory is run under each of some schedules, then goes on as it
    would have. For kernels whose sums are exact: any order of adding has to give the same numbers."""
    verify()
    explorer = Explorer(some)
    with launch.watched_by(explorer):
        yield explorer.exploration


@functools.cache
def verify() -> None:
    """Raise RuntimeError unless the faults of a countdown show under some schedule, and the right one under none."""
    wrong = []
    for what, faulty, run in countdown.CONTROLS:
        explorer = Explorer(schedules(1, VERIFIED))
        with launch.watched_by(explorer):
            run()
        if (explorer.exploration.failing is not None) != faulty:
            wrong.append(f"{what} gave the right result under each schedule" if faulty else f"{what} did not")
    if wrong:
        raise RuntimeError(f"Triton {triton.__version__} disarms the schedules: " + "; ".join(wrong))
