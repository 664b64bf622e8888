"""One launch under one schedule: programs take turns, and what they write becomes visible late.

Each program is a coroutine that stops before every access to memory that programs share. The model, in the words of
`order`:

* plain stores and relaxed adds (as deltas, so that no add is lost) may wait in their program's buffer and become
  visible in any order, all lanes together or one half before the other;
* an atomic that releases first makes visible what a barrier has ordered before it; what no barrier has ordered may stay
  behind. Atomics take effect at once, on the newest value;
* a load may give an older value of an address, down to the newest that its program knows of: what it wrote or read
  itself, and what it acquired and a barrier passed on. A program sees its own writes;
* at the end of the launch everything is visible.

Each of these the memory model of a GPU allows, so a kernel that is right gives the right result under every schedule.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from triton.runtime import interpreter

from oracles.interpreter.concurrency.order import RELEASES, Order, knows
from oracles.interpreter.findings import GuardError

#: Accesses to shared memory that one launch may make before it counts as stuck.
MOST_STEPS = 100_000
#: How a write may wait: not at all; all of it; its second half of lanes; its first half.
WAITS = 4


class Choices:
    """A schedule being used up. 0 is what the plain interpreter does, and so are choices that are not there."""

    def __init__(self, schedule: tuple[int, ...]) -> None:
        self._schedule, self._used = schedule, 0

    def choose(self, options: int) -> int:
        """A number below `options`."""
        if options < 2 or self._used >= len(self._schedule):
            return 0
        self._used += 1
        return self._schedule[self._used - 1] % options


class Write:
    """Some lanes of a store or of a relaxed add, visible to other programs or not yet."""

    __slots__ = ("addresses", "apply", "dtype", "first_lane", "lanes", "number", "program", "result")

    def __init__(
        self, program: int, number: int, first_lane: bool, ptrs: Any, lanes: np.ndarray, apply: Callable[..., Any]
    ) -> None:
        self.program, self.number, self.first_lane, self.lanes, self.apply = program, number, first_lane, lanes, apply
        self.addresses = ptrs.data[lanes]
        self.dtype = interpreter._get_np_dtype(ptrs.get_element_ty())
        self.result: Any = None  # what an atomic gave, once it is visible


class _Late(interpreter.TensorHandle):
    """What a waiting add gives: asking for it makes the add visible."""

    def __init__(self, writes: list[Write], show: Callable[[Write], None], like: Any) -> None:
        self._writes, self._show, self._like = writes, show, like
        self.attr: dict[str, Any] = {}
        self.dtype = like.get_element_ty()

    @property
    def data(self) -> np.ndarray:
        out = np.zeros(self._like.data.shape, interpreter._get_np_dtype(self.dtype))
        for write in self._writes:
            if write.result is None:
                self._show(write)
            out[write.lanes] = write.result.data[write.lanes]
        return out


class Turns:
    """Runs the programs of one launch as a schedule says. `shared`: the (begin, end) of arguments that programs share;
    memory elsewhere is each program's own or only read, and is accessed without more ado."""

    def __init__(self, schedule: tuple[int, ...], shared: set[tuple[int, int]]) -> None:
        self.choices, self.shared, self.order = Choices(schedule), shared, Order()
        self._me = self._steps = 0
        self._waiting: list[Write] = []
        self._unfinished: list[int] = []
        self._coroutines: list[Any] = []
        #: By address: each value that it had, with the write that gave it (None: before the launch), oldest first.
        self._history: dict[int, list[tuple[Any, Write | None]]] = {}
        #: By program and address: the newest value that it has read or written.
        self._seen: dict[tuple[int, int], int] = {}

    def run(self, programs: list[Callable[[], None]]) -> None:
        """Run every program to its end and make every write visible."""
        import greenlet

        def body(number: int) -> None:
            programs[number]()
            self._unfinished.remove(number)

        self._unfinished = list(range(len(programs)))
        self._coroutines = [greenlet.greenlet(functools.partial(body, number)) for number in self._unfinished]
        for coroutine in self._coroutines:
            coroutine.gr_context = contextvars.copy_context()  # numpy keeps there which warnings are off
        try:
            while self._unfinished:
                self._me = self._unfinished[self.choices.choose(len(self._unfinished))]
                self._coroutines[self._me].switch()
            for write in list(self._waiting):
                self._show(write)
        finally:
            for coroutine in self._coroutines:
                if coroutine:  # stopped on its way
                    coroutine.throw(greenlet.GreenletExit)

    def _turn(self) -> None:
        """Before an access: others may go on first, and waiting writes may become visible."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise GuardError("schedules", f"no end after {MOST_STEPS} accesses to shared memory")
        while True:
            others = [number for number in self._unfinished if number != self._me]
            choice = self.choices.choose(1 + len(others) + len(self._waiting))
            if choice == 0:
                return
            if choice > len(others):
                self._show(self._waiting[choice - 1 - len(others)])
                continue
            me, builder = self._me, interpreter.interpreter_builder
            place, self._me = builder.grid_idx, others[choice - 1]
            self._coroutines[self._me].switch()
            builder.grid_idx, self._me = place, me
            return

    def _is_shared(self, ptrs: Any) -> bool:
        return ptrs.span is None or (ptrs.span.begin, ptrs.span.end) in self.shared

    def load(self, ptrs: Any, mask: np.ndarray, plain: Callable[[], Any]) -> Any:
        if not self._is_shared(ptrs):
            return plain()
        self._turn()
        lanes = np.flatnonzero(mask)
        addresses = ptrs.data.ravel()[lanes].tolist()
        self._show_own(addresses)
        self.order.of(self._me).number()
        out = plain()
        flat = out.data.reshape(-1)
        places = [(lane, address, self._oldest(address)) for lane, address in zip(lanes, addresses, strict=True)]
        is_old = any(place < len(self._history.get(address, ())) - 1 for _, address, place in places)
        old = is_old and self.choices.choose(2) == 1
        for lane, address, place in places:
            history = self._history.get(address)
            if history:
                if old and history[place][0].dtype == flat.dtype:
                    flat[lane] = history[place][0]
                self._seen[self._me, address] = place if old else len(history) - 1
        return out

    def store(self, ptrs: Any, mask: np.ndarray, plain: Callable[[np.ndarray], Any]) -> Any:
        if not self._is_shared(ptrs):
            return plain(mask)
        self._turn()
        addresses = ptrs.data[mask].tolist()
        self._show_own(addresses)
        self.order.stored(addresses)
        self._issue(ptrs, mask, plain)
        return None

    def atomic(self, ptrs: Any, mask: np.ndarray, sem: str, add: bool, plain: Callable[[np.ndarray], Any]) -> Any:
        if not self._is_shared(ptrs):
            return plain(mask)
        self._turn()
        addresses = ptrs.data[mask].tolist()
        self._show_own(addresses)
        if add and sem in ("relaxed", "cta"):
            return _Late(self._issue(ptrs, mask, plain), self._show, ptrs)
        mine = self.order.of(self._me)
        number = mine.number()
        if sem in RELEASES:
            for write in [w for w in self._waiting if w.program == self._me]:
                if write.number <= mine.ordered or (write.first_lane and len(addresses) == 1):
                    self._show(write)
        self.order.atomic(self._me, addresses, sem)
        write = Write(self._me, number, len(addresses) == 1, ptrs, mask, plain)
        self._show(write)
        return write.result

    def barrier(self) -> None:
        self.order.of(self._me).barrier()

    def _issue(self, ptrs: Any, mask: np.ndarray, plain: Callable[[np.ndarray], Any]) -> list[Write]:
        """A store or a relaxed add: visible at once, or all or half of it later."""
        number = self.order.of(self._me).number()
        lanes = np.flatnonzero(mask)
        parts = [mask]
        waits = self.choices.choose(min(WAITS, 2 * lanes.size))
        if waits > 1:
            first = np.zeros(mask.size, bool)
            first[lanes[: lanes.size // 2]] = True
            parts = [first.reshape(mask.shape) & mask, ~first.reshape(mask.shape) & mask]
        writes = [Write(self._me, number, mask.size == 1, ptrs, part, plain) for part in parts]
        waiting = {0: [], 1: writes, 2: writes[1:], 3: writes[:1]}[waits]
        self._waiting += waiting
        for write in writes:
            if write not in waiting:
                self._show(write)
        return writes

    def _show(self, write: Write) -> None:
        """Make a write visible."""
        if write in self._waiting:
            self._waiting.remove(write)
        for address, value in zip(write.addresses.tolist(), _raw_values(write), strict=True):
            self._history.setdefault(address, [(value, None)])
        write.result = write.apply(write.lanes)
        for address, value in zip(write.addresses.tolist(), _raw_values(write), strict=True):
            history = self._history[address]
            history.append((value, write))
            self._seen[write.program, address] = len(history) - 1

    def _show_own(self, addresses: list[int]) -> None:
        """A program sees what it wrote, and its writes to one address keep their order."""
        for write in [w for w in self._waiting if w.program == self._me]:
            if not set(addresses).isdisjoint(write.addresses.tolist()):
                self._show(write)

    def _oldest(self, address: int) -> int:
        """Which of an address's values is the oldest that this program may still read."""
        history, known = self._history.get(address, ()), self.order.of(self._me).known
        oldest = self._seen.get((self._me, address), 0)
        for place in range(len(history) - 1, oldest, -1):
            write = history[place][1]
            if write is not None and knows(known, write.program, write.number, write.first_lane):
                return place
        return oldest


def _raw_values(write: Write) -> np.ndarray:
    """What memory holds now where a write goes."""
    count = write.addresses.size
    return interpreter._interpreter.load(
        write.addresses, np.ones(count, bool), np.zeros(count, write.dtype), write.dtype
    )
