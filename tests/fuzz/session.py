"""One run: workers fuzz until time is up, or somebody interrupts; then everything about what they found."""

from __future__ import annotations

import signal
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oracles.replay import attribute
from tests.fuzz.found import Found
from tests.fuzz.pool import Death, Pool, StartError
from tests.fuzz.screen import Screen, summary
from tests.fuzz.sorting import Failure
from tests.fuzz.worker import Progress, Task
from tests.record import Record

#: Seconds between two looks at the clock, when no worker reports anything.
TICK = 0.25


class Session:
    """What a run has come to. `enough(session)` may end it before its time."""

    def __init__(self, given: Namespace, enough: Callable[[Session], bool]) -> None:
        self.given, self.enough, self.seconds = given, enough, 60 * given.minutes
        self.found = Found(attribute(given.impl).name, given.inbox)
        self.screen, self.record = Screen(self.seconds), Record()
        self.not_checked = 0
        self.interrupted = False
        self.began: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since all workers had begun: to start them costs none of the time."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    def run(self) -> int:
        """Fuzz; returns the exit code."""
        given, error = self.given, ""
        self.screen.say(
            f"Fuzzing {len(given.path)} paths for {given.minutes:g} minutes in {given.jobs} "
            f"process{'es' if given.jobs > 1 else ''}, seed {given.seed}"
        )
        with self._interruptible():
            pool = Pool(Task(given.impl, tuple(given.path), given.sweep, given.seed, given.inbox), given.jobs)
            try:
                while not self._over():
                    for message in pool.messages(TICK):
                        self._take(message)
                    if self.began is None and pool.ready:
                        self.began = self.record.began = time.monotonic()
                    self.screen.now(self.elapsed, self.record, self.found)
            except StartError as problem:
                error = str(problem)
            finally:
                for message in pool.stop():
                    self._take(message)
        self.screen.say("\n".join(summary(self.record, self.found, given.impl)))
        if self.not_checked:
            self.screen.say(
                f"{self.not_checked} cases were not checked: {self.found.implementation} does not take them."
            )
        if not error and not self.record.examples and not self.found.causes():
            error = "no case was checked"
        if error:
            self.screen.say(f"ERROR  {error}")
            return 2
        return 1 if self.found.causes() else 0

    def _over(self) -> bool:
        return self.interrupted or self.elapsed >= self.seconds or self.enough(self)

    def _take(self, message: Any) -> None:
        if isinstance(message, Progress):
            self.record.merge(Record.from_json(message.record))
            self.not_checked += message.not_checked
        elif isinstance(message, Death):
            self.screen.say(f"A worker's end: {self.found.death(message)}. Another takes its place.")
        elif isinstance(message, Failure) and self.found.failure(message):
            self.screen.say(f"Found: {message.cause}")

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C, or a request to terminate, ends the run early; a second one ends it without ado."""

        def interrupt(number: int, frame: Any) -> None:
            self.interrupted = True
            signal.signal(number, before[signal.Signals(number)])

        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
