"""Who knows of whose accesses: the vector clocks of a launch's programs, by the memory model of a GPU.

Programs of a launch are not ordered, but for what atomics pass on:

* a barrier (`tl.debug_barrier`) orders everything that the program's lanes did before it;
* a release (an atomic of order "release" or "acq_rel", exactly) publishes, at its address, what a barrier has ordered
  before it, and what its own lane did: an access of one element is done by the program's first lane, the one that also
  does every other atomic of one element;
* an acquire ("acquire" or "acq_rel") learns what was published at its address, for its own lane; the next barrier
  passes it on to the others. An atomic without either order leaves what is published there as it is, a plain store
  ends it.

A program numbers its accesses. A clock says, for each program, up to which number its accesses are known: those of all
lanes, and those of its first lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RELEASES = ("release", "acq_rel")
ACQUIRES = ("acquire", "acq_rel")

#: By program: (accesses of all lanes known, accesses of the first lane known).
Clock = dict[int, tuple[int, int]]


def knows(clock: Clock, program: int, number: int, first_lane: bool) -> bool:
    """Whether an access of a program comes before what has this clock."""
    everybody, first = clock.get(program, (0, 0))
    return number <= (first if first_lane else everybody)


def joined(a: Clock, b: Clock) -> Clock:
    """What either knows."""
    if not a or not b:
        return a or b
    out = dict(a)
    for program, (everybody, first) in b.items():
        mine = out.get(program, (0, 0))
        out[program] = (max(mine[0], everybody), max(mine[1], first))
    return out


@dataclass
class ProgramOrder:
    """One program: how many accesses it has made, how many a barrier has ordered, and what it knows of others.

    `known` to all its lanes; `acquired` by its first lane, `known` included. Clocks are replaced, never changed.
    """

    program: int
    accesses: int = 0
    ordered: int = 0
    known: Clock = field(default_factory=dict)
    acquired: Clock = field(default_factory=dict)

    def number(self) -> int:
        """The number of a new access."""
        self.accesses += 1
        return self.accesses

    def barrier(self) -> None:
        """What any lane did or learned, every lane now has behind it."""
        self.ordered = self.accesses
        self.known = self.acquired


@dataclass
class Order:
    """The programs of a launch, and what was published at each address."""

    programs: dict[int, ProgramOrder] = field(default_factory=dict)
    published: dict[int, Clock] = field(default_factory=dict)

    def of(self, program: int) -> ProgramOrder:
        """A program's own place in the order."""
        if program not in self.programs:
            self.programs[program] = ProgramOrder(program)
        return self.programs[program]

    def atomic(self, program: int, addresses: list[int], sem: str) -> None:
        """An atomic, after its own access was numbered."""
        mine = self.of(program)
        alone = len(addresses) == 1
        if sem in ACQUIRES:
            for address in addresses:
                mine.acquired = joined(mine.acquired, self.published.get(address, {}))
        if sem in RELEASES:
            own = {program: (mine.ordered, mine.accesses if alone else mine.ordered)}
            out = joined(mine.acquired if alone else mine.known, own)
            for address in addresses:
                self.published[address] = joined(self.published.get(address, {}), out)

    def stored(self, addresses: list[int]) -> None:
        """A plain store ends what was published at its addresses."""
        for address in addresses:
            self.published.pop(address, None)
