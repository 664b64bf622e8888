"""From a failed verdict to a small stored case and a report."""

from __future__ import annotations

import torch

from corpus.case import Case
from corpus.reduce import reduce
from corpus.store import save
from oracles.check import Verdict, check
from oracles.implementation import Implementation
from oracles.report import report


def shrink(verdict: Verdict, implementation: Implementation, device: torch.device) -> Verdict:
    """The verdict on the smallest case that fails in the same way, on the routing that failed."""

    def fails(case: Case) -> bool:
        found = check(case, implementation, device, "own")
        return found.status == "failed" and _kind(found) == _kind(verdict)

    return check(reduce(verdict.case, fails), implementation, device, "own")


def shrink_and_report(verdict: Verdict, implementation: Implementation, device: torch.device) -> str:
    """Shrink, save to the inbox, and say everything about it."""
    small = shrink(verdict, implementation, device)
    if small.status != "failed":  # the full sweep found something that one routing alone does not show
        small = verdict
    saved = save(small.case, small.findings[0].headline.splitlines()[0])
    return report(small, saved, device.type)


def _kind(verdict: Verdict) -> str:
    """An exception's type, a guard's name, or "" for a wrong result: shrinking must not slip from one to another."""
    return verdict.findings[0].raised or verdict.findings[0].guard
