"""Processes that work on mutants. One that dies takes its mutant with it; another takes its place."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.mutants.bank import Mutant, bank

#: What is done with each mutant; importable by name, since other processes do it.
Task = Callable[[Mutant], Any]


@dataclass(frozen=True)
class Died:
    """Instead of a result: the exit code of a process, or minus the signal that ended it."""

    code: int | None


def work(mutants: Sequence[Mutant], jobs: int, task: Task) -> Iterator[tuple[Mutant, Any]]:
    """Each mutant with what the task gave, or `Died`, as they come in."""
    waiting = list(reversed(mutants))
    crew = [Member(task) for _ in range(min(jobs, len(waiting)))]
    for member in crew:
        member.take(waiting.pop())
    while any(member.mutant for member in crew):
        busy: dict[Any, Member] = {member.connection: member for member in crew if member.mutant}
        for connection in wait(list(busy)):
            member = busy[connection]
            yield member.result()
            if waiting:
                member.take(waiting.pop())
    for member in crew:
        member.dismiss()


class Member:
    """One process and the mutant it works on."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.mutant: Mutant | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.task), daemon=True)
        self.process.start()
        theirs.close()

    def take(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.connection.send(mutant.id)

    def result(self) -> tuple[Mutant, Any]:
        """The mutant, and what became of it."""
        mutant, self.mutant = self.mutant, None
        assert mutant is not None
        try:
            return mutant, self.connection.recv()
        except EOFError:
            self.process.join()
            died = Died(self.process.exitcode)
            self._start()
            return mutant, died

    def dismiss(self) -> None:
        self.connection.close()
        self.process.join()


def _serve(connection: Connection, task: Task) -> None:
    """Work on what comes until nothing does."""
    import tests.conftest  # noqa: F401  the profiles, and examples drawn independently

    mutants = {mutant.id: mutant for mutant in bank()}
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        connection.send(task(mutants[name]))
