"""Looks for a fault in a copy of the kernels with the strategy of a path, until somebody sees it."""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from corpus.case import Case
from oracles.adapters.kernels import TbeKernels
from oracles.check import Status, Verdict, check
from oracles.implementation import Routing, Trace
from strategies.cases import cases
from tbe_kernels.paths import PATHS

CPU = torch.device("cpu")
#: CPU seconds for one example; a kernel that loops for ever is stopped there, and that is a crash.
MOST_SECONDS = 60
#: A check: the verdict on a case.
Check = Callable[[Case, TbeKernels], Verdict]


class FoundError(Exception):
    """Ends the search."""


@dataclass
class Search:
    """What came of it: the first failure, how many examples were tried, and how many of them ran each path."""

    verdict: Verdict | None = None
    tried: int = 0
    ran: Counter[str] = field(default_factory=Counter)


def aimed(
    path: str, optimizers: tuple[str, ...] = (), case: Mapping[str, tuple[Any, ...]] | None = None
) -> st.SearchStrategy[Case]:
    """Cases of the path of that name, aimed at some optimizers and at values of other axes too."""
    found = next(p for p in PATHS if p.name == path)
    needs = replace(found.needs, case={**found.needs.case, **(case or {})})
    return cases(path=replace(found, needs=replace(needs, optimizers=optimizers or needs.optimizers)))


def search(
    drawn: st.SearchStrategy[Case],
    implementation: TbeKernels,
    judge: Check,
    most: int,
    counts: Callable[[Verdict], bool] = lambda verdict: True,
    until: float = math.inf,
) -> Search:
    """Up to the first failure that `counts` among `most` derandomised examples; `until`: process time, seconds."""
    found = Search()

    @settings(settings.get_profile("ci"), phases=(Phase.generate,), max_examples=most)
    @given(drawn)
    def look(case: Case) -> None:
        if time.process_time() > until:
            raise FoundError
        found.tried += 1
        with limited(MOST_SECONDS):
            verdict = judge(case, implementation)
        found.ran.update(verdict.paths.keys())
        if verdict.status is Status.FAILED and counts(verdict):
            found.verdict = verdict
            raise FoundError

    with suppress(FoundError):
        look()
    return found


class Hurried(TbeKernels):
    """Kernels with a fault that may loop for ever on some smaller case: a run of them is stopped like an example."""

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """A trace. Raises TimeoutError after `MOST_SECONDS`."""
        with limited(MOST_SECONDS):
            return super().run(case, routing, device)


def by_routing(sweep: str) -> Check:
    """The check of the property suite on a sweep of routings."""
    return lambda case, implementation: check(case, implementation, CPU, sweep)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in whatever takes more CPU time than that."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} CPU seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
