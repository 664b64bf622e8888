"""From a failed verdict to a small stored case and a report."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path

import torch

from corpus.case import Case
from corpus.shrink.reduce import reduce
from corpus.store import save
from oracles.check import Status, Sweep, Verdict, check
from oracles.implementation import Implementation
from oracles.relations.relate import relate
from oracles.report import report


def kind_of(verdict: Verdict) -> tuple[str, bool]:
    """An exception's type, a guard's name, or "" for a wrong result, and whether it shows between routings: shrinking
    must not slip from one kind of failure to another."""
    first = verdict.findings[0]
    return first.raised or first.guard, first.across


def least_sweep(verdict: Verdict) -> Sweep:
    """The quickest sweep that shows such a failure on the routing that failed."""
    return Sweep.RACED if verdict.raced else Sweep.SOME if verdict.findings[0].across else Sweep.OWN


def shrink(
    verdict: Verdict,
    implementation: Implementation,
    device: torch.device,
    kind: Callable[[Verdict], Hashable] = kind_of,
    enough: Callable[[], bool] = lambda: False,
    journal: bool = False,
) -> Verdict:
    """The verdict on the smallest case that fails in the same way, on the routing that failed.

    `kind`: what failures of one way have in common. Once `enough()`, no smaller case is looked for. `journal`: as in
    `check`.
    """
    wanted, sweep = kind(verdict), least_sweep(verdict)

    def again(case: Case) -> Verdict:
        if verdict.relation:
            return relate(verdict.relation, case, implementation, device, journal)
        return check(case, implementation, device, sweep, journal)

    def fails(case: Case) -> bool:
        if enough():
            return False
        found = again(case)
        return found.status is Status.FAILED and kind(found) == wanted

    return again(reduce(verdict.case, fails))


def shrink_and_report(verdict: Verdict, implementation: Implementation, device: torch.device) -> str:
    """Shrink, save to the inbox, and say everything about it.

    It is saved as found first: a process that is killed while it shrinks, or a kernel that hangs on a smaller case,
    takes no failure with it.
    """
    found, _ = _save(verdict)
    small = shrink(verdict, implementation, device, journal=True)
    if small.status is not Status.FAILED:  # the full sweep found something that one routing alone does not show
        small = verdict
    saved, unsaved = _save(small)
    if found is not None and saved != found:
        found.unlink()
    return report(small, saved, device.type, unsaved=unsaved)


def _save(verdict: Verdict) -> tuple[Path | None, str]:
    """Where the case is saved, or None and why it is not."""
    try:
        return save(verdict.case, verdict.findings[0].headline.splitlines()[0]), ""
    except OSError as error:
        return None, str(error)
