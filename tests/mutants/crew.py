"""Processes that judge mutants. One that dies takes its mutant with it, as a crash; another takes its place."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait

from tests.mutants.bank import Mutant, bank
from tests.mutants.score import CRASH, Outcome, Terms, judged


def work(mutants: Sequence[Mutant], jobs: int, terms: Terms) -> Iterator[Outcome]:
    """Outcomes as they come in."""
    waiting = list(reversed(mutants))
    crew = [Member(terms) for _ in range(min(jobs, len(waiting)))]
    for member in crew:
        member.take(waiting.pop())
    while any(member.mutant for member in crew):
        busy = {member.connection: member for member in crew if member.mutant}
        for connection in wait(list(busy)):
            member = busy[connection]  # type: ignore[index]
            yield member.outcome()
            if waiting:
                member.take(waiting.pop())
    for member in crew:
        member.dismiss()


class Member:
    """One process and the mutant it works on."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.mutant: Mutant | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.terms), daemon=True)
        self.process.start()
        theirs.close()

    def take(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.connection.send(mutant.id)

    def outcome(self) -> Outcome:
        """What became of the mutant."""
        mutant, self.mutant = self.mutant, None
        assert mutant is not None
        try:
            return self.connection.recv()
        except EOFError:
            self.process.join()
            by = f"{CRASH}: exit {self.process.exitcode}"
            self._start()
            return Outcome(mutant.id, mutant.operator, mutant.file, "killed", by)

    def dismiss(self) -> None:
        self.connection.close()
        self.process.join()


def _serve(connection: Connection, terms: Terms) -> None:
    """Judge what comes until nothing does."""
    import tests.conftest  # noqa: F401  the profiles, and examples drawn independently

    mutants = {mutant.id: mutant for mutant in bank()}
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        connection.send(judged(mutants[name], terms))
