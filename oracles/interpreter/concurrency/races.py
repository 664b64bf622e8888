"""Races: an address that one program of a launch writes and another one accesses, with nothing that orders them.

The interpreter runs programs one after another, so a race changes no result; but whether a release and an acquire lie
between two accesses does not depend on who came first. Every access of a launch is noted with its program and what that
program knew (`order`); when the launch is over, the few addresses that several programs touched are gone through.

Two accesses of one address race if they are of different programs, one of them writes, not both are atomic, and the
first is not known to the second. Within one program: if one lane stores what all lanes load (a single element), and no
barrier lies between; or if two lanes of different blocks meet in the same way (blocks of one shape have their lanes in
the same places).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles.interpreter import launch
from oracles.interpreter.concurrency.order import Clock, Order, knows
from oracles.interpreter.findings import GuardError
from oracles.interpreter.launch import Launch, Span, kernel_line, pointer_type_bytes

READ, ATOMIC, WRITE = range(3)
_NAMES = ("read", "atomic", "store")


@dataclass(slots=True)
class Access:
    """One memory operation of a program, its `addresses` those of the `lanes` that are not masked off.

    `shape` () for a scalar; `clock`: what the program knew of the others before; `ordered`: how many of the program's
    own accesses lie behind a barrier.
    """

    program: int
    kind: int
    addresses: np.ndarray
    lanes: np.ndarray
    shape: tuple[int, ...]
    width: int
    number: int
    ordered: int
    clock: Clock
    line: tuple[str, int]

    @property
    def first_lane(self) -> bool:
        """Whether the program's first lane alone does it. What a scalar load gives, every lane loads."""
        return self.addresses.size == 1 and np.prod(self.shape) == 1 and self.kind != READ


class Recorder:
    """Runs the programs of a launch one after another, `backwards` from the last, and notes what they do."""

    def __init__(self, backwards: bool = False) -> None:
        self.backwards = backwards
        self.accesses: list[Access] = []
        self.order = Order()
        self._program = 0

    def run(self, now: Launch, programs: list[Callable[[], None]]) -> None:
        self.accesses, self.order = [], Order()
        numbered = list(enumerate(programs))
        for number, program in reversed(numbered) if self.backwards else numbered:
            self._program = number
            program()

    def load(self, ptrs: Any, mask: np.ndarray, plain: Callable[[], Any]) -> Any:
        self._note(READ, ptrs, mask)
        return plain()

    def store(self, ptrs: Any, mask: np.ndarray, plain: Callable[[np.ndarray], Any]) -> Any:
        addresses = self._note(WRITE, ptrs, mask)
        if self.order.published:
            self.order.stored(addresses.tolist())
        return plain(mask)

    def atomic(self, ptrs: Any, mask: np.ndarray, sem: str, add: bool, plain: Callable[[np.ndarray], Any]) -> Any:
        addresses = self._note(WRITE if sem == "cta" else ATOMIC, ptrs, mask)
        if addresses.size:
            self.order.atomic(self._program, addresses.tolist(), sem)
        return plain(mask)

    def barrier(self) -> None:
        self.order.of(self._program).barrier()

    def _note(self, kind: int, ptrs: Any, mask: np.ndarray) -> np.ndarray:
        data, mine = ptrs.data, self.order.of(self._program)
        lanes = np.flatnonzero(mask)
        addresses = data.ravel()[lanes]
        if addresses.size:
            access = Access(
                self._program,
                kind,
                addresses,
                lanes,
                () if launch.scalar else data.shape,
                pointer_type_bytes(ptrs),
                mine.number(),
                mine.ordered,
                mine.acquired if data.size == 1 and kind != READ else mine.known,
                kernel_line(),
            )
            self.accesses.append(access)
        return addresses


class Races(Recorder):
    """Raises GuardError at the end of a launch that has a race. `launches` seen, `shared`: those whose programs met."""

    def __init__(self, backwards: bool = False) -> None:
        super().__init__(backwards)
        self.launches = self.shared = 0

    def run(self, now: Launch, programs: list[Callable[[], None]]) -> None:
        super().run(now, programs)
        pieces = AccessPieces(self.accesses)
        self.launches += 1
        self.shared += bool(pieces.shared().size)
        found = pieces.race()
        if found is not None:
            raise GuardError("races", _describe(*found, now))


class AccessPieces:
    """The accesses of a launch, piece of memory by piece of memory."""

    def __init__(self, accesses: list[Access]) -> None:
        self.accesses = accesses
        width = min((a.width for a in accesses), default=1)
        pieces, which, keys = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        shapes: dict[tuple[int, ...], int] = {}
        for number, a in enumerate(accesses):
            # A scalar is its own kind of lane; others are the same lane if shape and place are.
            key = a.lanes + shapes.setdefault(a.shape, len(shapes)) * 2**32 if a.shape else np.full(a.lanes.size, -1)
            for part in range(0, a.width, width):
                pieces.append(a.addresses + np.uint64(part))
                which.append(np.full(a.addresses.size, number))
                keys.append(key)
        addresses = np.concatenate(pieces)
        by_address = np.argsort(addresses, kind="stable")
        self._addresses, self._which = addresses[by_address], np.concatenate(which)[by_address]
        self._keys = np.concatenate(keys)[by_address]
        self._starts = np.flatnonzero(np.r_[True, self._addresses[1:] != self._addresses[:-1]][: addresses.size])
        if accesses:
            kinds = np.array([a.kind for a in accesses])[self._which]
            programs = np.array([a.program for a in accesses])[self._which]
            self._written, self._atomic, self._read = (self._any(kinds == k) for k in (WRITE, ATOMIC, READ))
            self._several = self._differ(programs)

    def _any(self, of: np.ndarray) -> np.ndarray:
        return np.logical_or.reduceat(of, self._starts)

    def _differ(self, values: np.ndarray) -> np.ndarray:
        return np.minimum.reduceat(values, self._starts) != np.maximum.reduceat(values, self._starts)

    def shared(self) -> np.ndarray:
        """Addresses that several programs accessed, one of them writing, be it atomically."""
        if not self.accesses:
            return self._addresses
        return self._addresses[self._starts[self._several & (self._written | self._atomic)]]

    def race(self) -> tuple[int, Access, Access] | None:
        """The first race: its address, and two accesses in the order in which they came."""
        if not self.accesses:
            return None
        mixed = self._written | (self._atomic & self._read)
        lanes_differ = self._differ(self._keys) | (self._any(self._keys == -1) & self._read)
        ends, seen = np.r_[self._starts[1:], self._which.size], set()
        for group in np.flatnonzero(mixed & (self._several | lanes_differ)):
            place = slice(self._starts[group], ends[group])
            keys = self._keys[place]
            same = keys[:, None] == keys
            signature = (self._which[place].tobytes(), same.tobytes())
            if signature not in seen:  # the columns of a row are all alike
                seen.add(signature)
                here = [self.accesses[n] for n in self._which[place]]
                for j, later in enumerate(here):
                    for i, earlier in enumerate(here[:j]):
                        if _races(earlier, later, bool(same[i, j])):
                            return int(self._addresses[self._starts[group]]), earlier, later
        return None


def _races(earlier: Access, later: Access, same_lane: bool) -> bool:
    """Whether nothing orders two accesses of one address that have to be ordered."""
    kinds = {earlier.kind, later.kind}
    if kinds in ({READ}, {ATOMIC}):
        return False
    if earlier.program != later.program:
        return not knows(later.clock, earlier.program, earlier.number, earlier.first_lane)
    if earlier.number <= later.ordered or earlier.number == later.number:
        return False
    if earlier.first_lane and later.first_lane:
        return False
    scalar_load = any(a.shape == () and a.kind == READ for a in (earlier, later))
    return scalar_load or not same_lane


def _describe(address: int, earlier: Access, later: Access, now: Launch) -> str:
    name, place = "memory", 0
    for n, tensor in now.tensors():
        span = Span(tensor)
        if span.begin <= address < span.end:
            name, place = n, (address - span.begin) // tensor.element_size()
    (file, line), (file2, line2) = earlier.line, later.line
    one = f"{_NAMES[earlier.kind]} of program {earlier.program} ({file}:{line})"
    two = f"{_NAMES[later.kind]} of program {later.program} ({file2}:{line2})"
    missing = "a barrier" if earlier.program == later.program else "a release and an acquire"
    return f"{name}[{place}]: {one} and {two} without {missing} between them, in {now.kernel.__name__}"


@contextmanager
def watching(backwards: bool = False) -> Iterator[Races]:
    """Look for races in every launch inside the block. `backwards`: the last program of each launch runs first."""
    watch = Races(backwards)
    with launch.watched_by(watch):
        yield watch
