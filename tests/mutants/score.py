"""How the suite does against one mutant: who sees it, after how many examples, and how small the case gets.

In the order of what they cost: the drawn routing on a few examples of each path; the race detector; the drawn routing
on many; several routings of a case; schedules; the stored cases, which hold what is not drawn on a CPU, such as a table
beyond 2**31 elements. By default no more than 500 examples in all, as the `ci` profile draws for three paths.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from corpus.case import Case
from corpus.store import stored_cases, to_json
from oracles import interpreter
from oracles.adapters.kernels import TbeKernels
from oracles.check import Sweep, Verdict, check
from oracles.report import size
from oracles.shrink import shrink
from strategies.cases import cases
from tbe_kernels.paths import PATHS
from tests.mutants.bank import Mutant
from tests.mutants.peers import PEERS, compared
from tests.mutants.plant import plant
from tests.mutants.search import CPU, Check, Hurried, aimed, by_routing, search
from tests.programs.explore import explore

#: Paths whose programs meet in memory.
MEET = ("backward.long_run.atomic", "backward.long_run.fused")
SCHEDULES = 40
#: Examples that stages other than the plain one may take.
OTHERS = 260
CRASH = "crash"
#: Instead of a peer's name: our way, on all paths in turn.
UNAIMED = "unaimed"


@dataclass(frozen=True)
class Outcome:
    """`status`: "killed", "alive", or "error" for a mutant that does not import or runs nothing.

    `by`: who saw it: "values", "routings" (takes two to see), "schedules", a guard's name ("races"), or "crash: " and
    what was raised. `seconds`: CPU, without shrinking. `case`: the failing one as it was drawn (JSON);
    `size`: its (tables, bags, lookups) once it was shrunk, if it was.
    """

    id: str
    operator: str
    file: str
    status: str
    by: str = ""
    examples: int = 0
    seconds: float = 0.0
    size: tuple[int, int, int] | None = None
    case: str = ""

    @property
    def crashed(self) -> bool:
        return self.by.startswith(CRASH)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        data = json.loads(text)
        return cls(**{**data, "size": tuple(data["size"]) if data["size"] else None})


@dataclass(frozen=True)
class Terms:
    """`examples` and CPU `seconds` for each mutant, at the most; `shrinks`: make the failing case small; `peer`: the
    one of `PEERS` whose way is measured, "" for ours, `UNAIMED`."""

    examples: int = 500
    seconds: float = math.inf
    shrinks: bool = True
    peer: str = ""


@dataclass(frozen=True)
class Stage:
    """One way to look: with which check, at how many examples of each of some strategies."""

    name: str
    judge: Check
    most: int
    drawn: list[st.SearchStrategy[Case]]


def stages(mutant: Mutant, examples: int) -> Iterator[Stage]:
    """The ways to look for a mutant, cheapest first. What `examples` leaves over goes to the plain one."""
    by_path = {path: aimed(path, mutant.optimizers, mutant.case) for path in mutant.paths}
    paths, meeting = list(by_path.values()), [drawn for path, drawn in by_path.items() if path in MEET]
    yield Stage("values", by_routing(Sweep.OWN), 20, paths)
    yield Stage("races", by_routing(Sweep.RACED), 30 // max(1, len(paths)), paths)
    yield Stage("values", by_routing(Sweep.OWN), max(240, examples - OTHERS) // max(1, len(paths)), paths)
    yield Stage("routings", by_routing(Sweep.SOME), 60 // max(1, len(paths)), paths)
    yield Stage("schedules", scheduled, 40 // max(1, len(meeting)), meeting)
    yield Stage("corpus", by_routing(Sweep.OWN), 1, [st.just(stored.case) for stored in stored_cases()])


def stages_of(peer: str) -> Iterator[Stage]:
    """A peer has one, until its time is up; and so have we where we are not told which paths a mutant is on."""
    if peer == UNAIMED:
        yield Stage("values", by_routing(Sweep.RACED), 10_000, [st.one_of([cases(path=path) for path in PATHS])])
    else:
        yield Stage("values", partial(compared, PEERS[peer]), 10_000, [PEERS[peer].cases])


def judged(mutant: Mutant, terms: Terms) -> Outcome:
    """Look for a mutant until somebody sees it."""
    interpreter.install()
    began, tried, ran = time.process_time(), 0, 0

    def outcome(status: str, by: str = "", **more: Any) -> Outcome:
        seconds = round(seen - began, 1)
        return Outcome(mutant.id, mutant.operator, mutant.file, status, by, tried, seconds, **more)

    warnings.simplefilter("ignore")  # a mutant may compute anything
    seen = began
    try:
        implementation = TbeKernels(plant(*mutant.edits))
    except Exception as error:
        return outcome("error", f"{type(error).__name__}: {error}"[:200])
    for stage in stages_of(terms.peer) if terms.peer else stages(mutant, terms.examples):
        for drawn in stage.drawn:
            most = min(stage.most, terms.examples - tried)
            if most <= 0 or time.process_time() - began > terms.seconds:
                continue
            found = search(drawn, implementation, stage.judge, most, until=began + terms.seconds)
            tried, seen = tried + found.tried, time.process_time()
            ran += sum(n for path, n in found.ran.items() if terms.peer or path in mutant.paths)
            if found.verdict is not None:
                kept = _kept(found.verdict, implementation, terms.shrinks)
                return outcome("killed", _who(found.verdict, stage.name), **kept)
    return outcome("alive") if ran else outcome("error", "no example ran a kernel of it")


def died(mutant: Mutant, code: int | None) -> Outcome:
    """Of a mutant whose process ended: by a signal, it was killed; by an exception, that was the suite's own."""
    by_signal = code is not None and code < 0
    by = f"{CRASH}: signal {-code}" if code is not None and by_signal else f"the suite ended with {code}"
    return Outcome(mutant.id, mutant.operator, mutant.file, "killed" if by_signal else "error", by)


def _who(verdict: Verdict, stage: str) -> str:
    first = verdict.findings[0]
    if first.raised:
        return f"{CRASH}: {first.raised}"
    if first.guard:
        return first.guard
    return "routings" if first.across else "schedules" if stage == "schedules" else "values"


def _kept(verdict: Verdict, implementation: TbeKernels, shrinks: bool) -> dict[str, Any]:
    """The failing case, and how small it gets, if it is to be made small and ended in no crash."""
    kept, first = {"case": to_json(verdict.case, "")}, verdict.findings[0]
    if not shrinks or first.raised:
        return kept
    return {**kept, "size": size(shrink(verdict, Hurried(implementation.package), CPU).case)}


def scheduled(case: Case, implementation: TbeKernels) -> Verdict:
    """The check under many schedules, where sums are exact."""
    from oracles.interpreter.concurrency.schedules import schedules

    if case.values.mode != "exact":
        return check(case, implementation, CPU, Sweep.OWN)
    return explore(case, schedules(0, SCHEDULES), implementation.package).verdict
