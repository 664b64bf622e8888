"""In a worker: sorts failures by cause, and makes the first of each small, within a share of the time.

A cause is known by its small case, see `causes`. Failures whose cause before shrinking is the same lead to the same
small one, so each of those is shrunk once; after that a failure costs one more run, without the rest of its sweep.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch

from corpus.case import Case
from oracles.check import Status, Verdict, check
from oracles.implementation import Implementation
from oracles.report import size
from oracles.shrink import least_sweep, shrink
from oracles.values.compare import Finding
from tests.fuzz.causes import Cause, cause_of, what_differs

CPU = torch.device("cpu")
#: Of the time that a worker has had, so much goes into shrinking; the first failure of a quantity does not count.
SHARE = 1 / 3
#: Seconds for one case to get small.
MOST_SECONDS = 20.0


@dataclass(frozen=True)
class Failure:
    """A failure as a worker reports it. `was`: what it seemed to be a failure of before its case was made small, told
    in a report of its own; that one counted it. `verdict`: None if its case is no smaller than one reported before."""

    cause: Cause
    verdict: Verdict | None
    small: bool = False
    was: Cause | None = None


class Sorter:
    """The causes that one worker knows. `stopped()`: whether time is up; `tell` takes each report."""

    def __init__(
        self, implementation: Implementation, stopped: Callable[[], bool], tell: Callable[[Failure], None]
    ) -> None:
        self.implementation, self.stopped, self.tell = implementation, stopped, tell
        self.led_to: dict[Cause, Cause] = {}
        self.sizes: dict[Cause, tuple[int, int, int]] = {}
        self.began, self.spent = time.monotonic(), 0.0

    def add(self, verdict: Verdict) -> None:
        """Sort a failed verdict in."""
        verdict = self._alone(verdict)
        seems = cause_of(verdict)
        if seems in self.led_to or not self._worth_shrinking(seems):
            known = (cause for cause in self.led_to.values() if cause.explains(seems))
            self._report(self.led_to.get(seems) or next(known, seems), verdict)
            return
        self._report(seems, verdict)  # before anything else: shrinking may end the process
        begin = time.monotonic()
        small = self._shrunk(verdict, begin + MOST_SECONDS)
        self.spent += time.monotonic() - begin
        cause = self.led_to[seems] = cause_of(small)
        self._report(cause, small, small=not self.stopped(), was=seems)

    def _report(self, cause: Cause, verdict: Verdict, small: bool = False, was: Cause | None = None) -> None:
        smaller = small or cause not in self.sizes or size(verdict.case) < self.sizes[cause]
        if smaller:
            self.sizes[cause] = size(verdict.case)
        self.tell(Failure(cause, verdict if smaller else None, small, was))

    def _worth_shrinking(self, seems: Cause) -> bool:
        first = not any(cause.what == seems.what for cause in self.led_to.values())
        return first or self.spent <= SHARE * (time.monotonic() - self.began)

    def _alone(self, verdict: Verdict) -> Verdict:
        """The failing routing by itself, so that no other's paths are blamed; as it was, if it takes others to fail."""
        if verdict.runs == 1:
            return verdict
        sweep = least_sweep(verdict)
        alone = checked(verdict.case, self.implementation, sweep)
        same = alone.status is Status.FAILED and what_differs(alone.findings[0]) == what_differs(verdict.findings[0])
        return alone if same else verdict

    def _shrunk(self, verdict: Verdict, until: float) -> Verdict:
        def enough() -> bool:
            return self.stopped() or time.monotonic() > until

        def kind(verdict: Verdict) -> str:
            return what_differs(verdict.findings[0])

        try:
            small = shrink(verdict, self.implementation, CPU, kind, enough, journal=True)
        except Exception:  # what `checked` makes a finding of
            return verdict
        return small if small.status is Status.FAILED else verdict


def checked(case: Case, implementation: Implementation, sweep: str) -> Verdict:
    """`check` with its journal; an exception of the suite itself, such as the oracle's, is a finding like another."""
    try:
        return check(case, implementation, CPU, sweep, journal=True)
    except Exception as error:
        name = type(error).__name__
        finding = Finding(f"{name}: {error}\n{traceback.format_exc()}", raised=name)
        return Verdict(case, implementation.name, Status.FAILED, findings=[finding], runs=1)
