"""Processes that work on mutants, or other items. One that dies takes its item with it; another takes its place."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Died:
    """Instead of a result: the exit code of a process, or minus the signal that ended it."""

    code: int | None


def work(items: Sequence[Item], jobs: int, task: Callable[[Item], Any]) -> Iterator[tuple[Item, Any]]:
    """Each item with what the task gave, or `Died`, as they come in. All of it has to travel to other processes."""
    waiting = list(reversed(items))
    crew = [Member(task) for _ in range(min(jobs, len(waiting)))]
    for member in crew:
        member.take(waiting.pop())
    while any(member.item for member in crew):
        busy: dict[Any, Member[Item]] = {member.connection: member for member in crew if member.item}
        for connection in wait(list(busy)):
            member = busy[connection]
            yield member.result()
            if waiting:
                member.take(waiting.pop())
    for member in crew:
        member.dismiss()


class Member(Generic[Item]):
    """One process and the item it works on."""

    def __init__(self, task: Callable[[Item], Any]) -> None:
        self.task = task
        self.item: Item | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.task), daemon=True)
        self.process.start()
        theirs.close()

    def take(self, item: Item) -> None:
        self.item = item
        self.connection.send(item)

    def result(self) -> tuple[Item, Any]:
        """The item, and what became of it."""
        item, self.item = self.item, None
        assert item is not None
        try:
            return item, self.connection.recv()
        except EOFError:
            self.process.join()
            died = Died(self.process.exitcode)
            self._start()
            return item, died

    def dismiss(self) -> None:
        self.connection.close()
        self.process.join()


def _serve(connection: Connection, task: Callable[[Any], Any]) -> None:
    """Work on what comes until nothing does."""
    import tests.conftest  # noqa: F401  the profiles, and examples drawn independently

    while True:
        try:
            item = connection.recv()
        except EOFError:
            return
        connection.send(task(item))
