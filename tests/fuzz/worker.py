"""A process that fuzzes: round after round, some cases aimed at each path, until its parent says stop.

What a worker draws is settled by the seed, its number and its life (workers that take the place of dead ones live
their number's next life), not by how long anything takes. Nothing that a case shows ends the search.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

import corpus.store
from corpus.case import Case
from oracles import interpreter
from oracles.check import Status
from oracles.implementation import Implementation
from oracles.replay import attribute
from strategies.cases import cases
from tbe_kernels.paths import PATHS, KernelPath
from tests.fuzz.sorting import Sorter, checked
from tests.independent import BACKEND
from tests.record import Record

#: Cases of a path before it is the next one's turn: a few seconds.
TURN = 10
#: Each worker begins so many paths after the one before it, so that a few of them are soon everywhere.
STEP = 7
#: Seconds between two reports of what was done.
REPORT = 0.5

DRAWING = settings(
    backend=BACKEND,
    derandomize=False,
    max_examples=TURN,
    phases=(Phase.generate,),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Task:
    """What all workers do. `seed`: of all that they draw; `inbox`: where cases are kept."""

    impl: str
    paths: tuple[str, ...]
    sweep: str
    seed: int
    inbox: Path


@dataclass(frozen=True)
class Progress:
    """What a worker did since its last report: a record as JSON, and cases that the implementation does not support."""

    record: str
    not_checked: int


#: Messages of one word.
READY, DONE = "ready", "done"


def work(task: Task, number: int, life: int, parent: Connection) -> None:
    """The life of a worker. Its parent hears READY, `Progress` and `Failure`s, and DONE; it says stop, or is gone."""
    corpus.store.INBOX = task.inbox
    interpreter.install()
    worker = Worker(attribute(task.impl), task.sweep, parent)
    with suppress(BrokenPipeError):  # the parent is gone
        parent.send(READY)
        for path, turn in turns(task, number, life):
            draw(path, turn, worker.one)
            if parent.poll():
                break
        worker.report()
        parent.send(DONE)


def turns(task: Task, number: int, life: int) -> itertools.chain[tuple[KernelPath, str]]:
    """Paths in turn, for ever, each with the seed of its turn."""
    paths = [path for path in PATHS if path.name in task.paths]
    first = STEP * number % len(paths)
    paths = paths[first:] + paths[:first]
    rounds = ([(path, f"{task.seed} {number} {life} {r} {path.name}") for path in paths] for r in itertools.count())
    return itertools.chain.from_iterable(rounds)


def draw(path: KernelPath, turn: str, see: Callable[[Case], None]) -> None:
    """Show some cases aimed at a path: the same ones for the same `turn`."""

    @DRAWING
    @given(cases(path=path))
    def look(case: Case) -> None:
        see(case)

    seed(turn)(look)()


class Worker:
    """Checks what is drawn, and keeps count until the next report."""

    def __init__(self, implementation: Implementation, sweep: str, parent: Connection) -> None:
        self.implementation, self.sweep, self.parent = implementation, sweep, parent
        self.sorter = Sorter(implementation, parent.poll, parent.send)
        self.seen: set[int] = set()
        self.record, self.not_checked, self.reported = Record(), 0, time.monotonic()

    def one(self, case: Case) -> None:
        """Check a case, unless it was drawn before (each turn begins with the plainest) or it is time to stop."""
        if hash(case) in self.seen or self.parent.poll():
            return
        self.seen.add(hash(case))
        begin = time.perf_counter()
        verdict = checked(case, self.implementation, self.sweep)
        if verdict.status is Status.NOT_CHECKED:
            self.not_checked += 1
        else:
            self.record.add(verdict, time.perf_counter() - begin)
        if verdict.status is Status.FAILED:
            self.sorter.add(verdict)
        if time.monotonic() - self.reported > REPORT:
            self.report()

    def report(self) -> None:
        """Tell the parent, and count from nothing again."""
        self.parent.send(Progress(self.record.to_json(), self.not_checked))
        self.record, self.not_checked, self.reported = Record(), 0, time.monotonic()
