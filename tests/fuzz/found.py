"""What all workers found, cause by cause: how often, and the smallest case of each, which is in the inbox."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from corpus.store import case_id, save
from oracles.check import Status, Verdict
from oracles.report import report, size
from oracles.values.compare import Finding
from tests.fuzz.causes import Cause
from tests.fuzz.pool import Death
from tests.fuzz.sorting import CPU, Failure


@dataclass
class Entry:
    """One cause. `small`: whether its case was made small, and is no longer just the smallest that was drawn.

    `saved`: its file; `ours`: whether this run made that, so that a smaller case may take its place.
    """

    count: int = 0
    verdict: Verdict | None = None
    small: bool = False
    saved: Path | None = None
    ours: bool = False


class Found:
    """The causes, by how often they were met. `implementation`: the name of what is under test."""

    def __init__(self, implementation: str, inbox: Path) -> None:
        self.implementation, self.inbox = implementation, inbox
        self._entries: dict[Cause, Entry] = {}
        self._told: set[Cause] = set()

    def failure(self, failure: Failure) -> bool:
        """Count a worker's failure; whether nothing known explains it."""
        cause, was = failure.cause, failure.was
        entry = self._entries.setdefault(cause, Entry())
        if was is None:
            entry.count += 1
        elif was != cause:
            self._move(was, cause)
        if failure.verdict is not None:
            self._keep(entry, failure.verdict, failure.small)
        new = was not in self._told and not any(told.explains(cause) for told in self._told)
        self._told.add(cause)
        return new

    def death(self, death: Death) -> Cause:
        """Count a worker's death, which is a failure of the case that it ran."""
        cause = Cause(death.how if death.case is not None else f"{death.how}, between cases")
        entry = self._entries.setdefault(cause, Entry())
        entry.count += 1
        if death.case is not None:
            finding = Finding(f"the process that ran this case: {death.how}")
            self._keep(entry, Verdict(death.case, self.implementation, Status.FAILED, findings=[finding]), small=False)
        return cause

    def causes(self) -> list[tuple[Cause, Entry]]:
        """Each cause, the most frequent first."""
        return sorted(self._entries.items(), key=lambda item: (-item[1].count, item[0]))

    def settle(self) -> None:
        """At the end: what was not made small is put down to a cause that explains it, if there is one."""
        for cause, entry in list(self._entries.items()):
            others = [c for c, other in self._entries.items() if c != cause and other.small and c.explains(cause)]
            if others and not entry.small:
                self._move(cause, min(others))

    def text(self, cause: Cause, impl: str) -> str:
        """All about a cause. `impl`: what is under test, as MODULE:ATTRIBUTE."""
        verdict, saved = self._entries[cause].verdict, self._entries[cause].saved
        if verdict is None:
            return "No case was running: drawing one, or judging what it left, took the process down."
        return report(verdict, saved, CPU.type, impl)

    def _keep(self, entry: Entry, verdict: Verdict, small: bool) -> None:
        """The smaller of two cases; of two as small, the one that is also plain."""
        have = entry.verdict
        if have is not None and (size(have.case), not entry.small) <= (size(verdict.case), not small):
            return
        self._drop(entry)
        path = self.inbox / f"{case_id(verdict.case)}.json"
        entry.ours = not path.exists()
        entry.verdict, entry.small = verdict, entry.small or small
        entry.saved = save(verdict.case, verdict.findings[0].headline.splitlines()[0], self.inbox)

    def _move(self, was: Cause, cause: Cause) -> None:
        """What was counted for one cause is another's."""
        if old := self._entries.pop(was, None):
            entry = self._entries[cause]
            entry.count += old.count
            if old.verdict is not None:
                self._drop(old)
                self._keep(entry, old.verdict, old.small)

    def _drop(self, entry: Entry) -> None:
        """Remove a case that a smaller one of the same cause replaces."""
        shared = [other for other in self._entries.values() if other is not entry and other.saved == entry.saved]
        if entry.ours and entry.saved is not None and not shared:
            entry.saved.unlink(missing_ok=True)
