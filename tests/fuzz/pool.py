"""The workers, seen from their parent: started, heard, replaced when they die, stopped.

A worker that dies, or runs one case without end, was killed by what it ran. Its case is in the inbox, where `check`
wrote it before the run.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from corpus.case import Case
from corpus.store import load
from tests.fuzz.worker import DONE, READY, Task, work

#: Seconds of one run after which it has no end. In the interpreter, a drawn case takes a fraction of one.
ENDLESS = 120.0
#: Seconds that workers have for their last report.
GRACE = 2.0

_spawn = multiprocessing.get_context("spawn")


class StartError(Exception):
    """A worker ended before it could begin."""


@dataclass(frozen=True)
class Death:
    """How a worker ended, and the case that it ran, if it ran one."""

    how: str
    case: Case | None


@dataclass
class Member:
    """A worker: its number, its life, the case that it runs (as its journal's time says) and since when (monotonic)."""

    number: int
    life: int
    process: BaseProcess
    connection: Connection
    journal: Path
    ready: bool = False
    run: int = 0
    since: float = field(default_factory=time.monotonic)
    endless: bool = False


class Pool:
    """Workers at one task."""

    def __init__(self, task: Task, jobs: int) -> None:
        self.task = task
        self.members = [self._start(number, 0) for number in range(jobs)]

    @property
    def ready(self) -> bool:
        """Whether each worker has begun, or once had."""
        return all(member.ready or member.life for member in self.members)

    def messages(self, seconds: float) -> Iterator[Any]:
        """What workers report, within some seconds; a `Death` for each that died and was replaced."""
        for place, member in self._heard(seconds):
            message = self._message(member)
            if isinstance(message, Death):
                self.members.remove(member)
                if not member.ready:
                    raise StartError(f"a worker never began: {message.how}")
                self.members.insert(place, self._start(member.number, member.life + 1))
            if message == READY:
                member.ready = True
            else:
                yield message
        for member in self.members:
            if self._endless(member):
                member.endless = True
                member.process.kill()

    def stop(self) -> Iterator[Any]:
        """Stop all workers; what they still report. None is waited for longer than `GRACE`."""
        for member in self.members:
            with suppress(OSError):
                member.connection.send("stop")
        until = time.monotonic() + GRACE
        try:
            while self.members and (left := until - time.monotonic()) > 0:
                for _, member in self._heard(left):
                    message = self._message(member)
                    if message == DONE or isinstance(message, Death):
                        self._end(member)
                        self.members.remove(member)
                    if message not in (DONE, READY) and (member.ready or not isinstance(message, Death)):
                        yield message
        finally:
            for member in self.members:
                self._end(member)

    def _start(self, number: int, life: int) -> Member:
        here, there = _spawn.Pipe()
        process = _spawn.Process(target=work, args=(self.task, number, life, there), daemon=True)
        # Ctrl-C reaches the whole group of processes; workers leave it to their parent.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        there.close()
        return Member(number, life, process, here, self.task.inbox / f"running-{process.pid}.json")

    def _heard(self, seconds: float) -> list[tuple[int, Member]]:
        """Who has something to say, with their places."""
        heard = wait([member.connection for member in self.members], seconds)
        return [(place, member) for place, member in enumerate(self.members) if member.connection in heard]

    def _message(self, member: Member) -> Any:
        """A worker's next message, or its death."""
        try:
            return member.connection.recv()
        except (EOFError, OSError):
            member.process.join(GRACE)
            code = member.process.exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            case = load(member.journal).case if member.journal.exists() else None
            self._end(member)
            return Death(f"no end after {ENDLESS:g} s" if member.endless else how, case)

    def _endless(self, member: Member) -> bool:
        try:
            run = member.journal.stat().st_mtime_ns
        except FileNotFoundError:
            run = 0
        if run != member.run:
            member.run, member.since = run, time.monotonic()
        return run != 0 and time.monotonic() - member.since > ENDLESS

    def _end(self, member: Member) -> None:
        """End a worker, whatever it does; a case that it has only half run is nobody's fault."""
        member.process.kill()
        member.process.join()
        member.connection.close()
        for file in (member.journal, member.journal.with_suffix(".tmp")):
            file.unlink(missing_ok=True)
