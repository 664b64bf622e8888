"""What a run prints: a line about now (in place on a terminal), causes when they turn up, and all of it at the end."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter

from tbe_kernels.paths import PATHS
from tests.fuzz.causes import Cause
from tests.fuzz.found import Entry, Found
from tests.record import Record

#: Seconds between two lines, on a terminal and elsewhere.
ON_TERMINAL, ELSEWHERE = 1.0, 10.0


class Screen:
    """Prints to stdout. `seconds`: how long the run may take."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.terminal = sys.stdout.isatty()
        self.last = time.monotonic()

    def say(self, line: str) -> None:
        """A line that stays."""
        print(("\r\x1b[K" if self.terminal else "") + line, flush=True)

    def now(self, elapsed: float, record: Record, found: Found) -> None:
        """The line about now, if it is time for one."""
        if time.monotonic() - self.last < (ON_TERMINAL if self.terminal else ELSEWHERE):
            return
        self.last = time.monotonic()
        line = live(elapsed, self.seconds, record, found)
        if self.terminal:
            print("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1], end="", flush=True)
        else:
            print(line, flush=True)


def live(elapsed: float, seconds: float, record: Record, found: Found) -> str:
    """How it stands, in one line."""
    ran = set(record.drawn) | set(record.swept)
    reached = sum(path.name in ran for path in PATHS)
    met: Counter[str] = Counter()
    for cause, entry in found.causes():
        met[cause.what] += entry.count
    parts = [
        f"{clock(elapsed)}, {clock(max(0.0, seconds - elapsed))} left" if elapsed else "starting",
        f"{record.examples} examples, {record.examples / max(elapsed, 1e-9):.1f}/s",
        f"{record.runs} runs",
        f"{reached} of {len(PATHS)} paths",
        "; ".join(f"{count} {what}" for what, count in met.most_common()) or "no failures",
    ]
    return " | ".join(parts)


def summary(record: Record, found: Found, impl: str) -> list[str]:
    """The table of paths, then each cause with its report, which is settled now."""
    lines = record.paths_table()
    found.settle()
    causes = found.causes()
    for number, (cause, entry) in enumerate(causes, 1):
        lines += ["", f"[{number}/{len(causes)}] {_heading(cause, entry)}", found.text(cause, impl)]
    counts = f"{_plural(sum(entry.count for _, entry in causes), 'failure')}, {_plural(len(causes), 'cause')}"
    return [*lines, "", counts if causes else "Nothing found."]


def _heading(cause: Cause, entry: Entry) -> str:
    drawn = "" if entry.small or entry.verdict is None else "; the smallest case drawn, not reduced"
    return f"{cause}: {_plural(entry.count, 'failure')}{drawn}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def clock(seconds: float) -> str:
    """h:mm:ss, without the hours if there are none."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
