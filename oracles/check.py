"""The only way to ask: does an implementation do on a case, on every routing, what the contract says?

Property tests, corpus replay, the command line and the planted faults all call `check`.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.store import case_id, running
from corpus.tensors import ids_and_lengths, random_bits
from oracles import interpreter
from oracles.implementation import Implementation, Routing, Trace
from oracles.interpreter.findings import GuardError
from oracles.values.compare import Finding, Sharpness
from oracles.values.judge import Judge

#: Routings of a sweep of SOME beyond the case's own, and how many bags and lookups they may work on together. A lookup
#: of a row wider than this many columns counts as several.
SOME = 8
MOST_WORK = 160
WIDE = 256


class Status(StrEnum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


class Sweep(StrEnum):
    """Which routings of a case are run.

    OWN: the case's alone. SOME: and up to eight more, fewer for a large case: the next two of the implementation's
    list, and others drawn from the case. ALL of them, and in the end, where kernels are interpreted, what RACED does:
    the own one once more, without a schedule, under the race detector, first program first and, where programs met,
    last program first.
    """

    OWN = "own"
    SOME = "some"
    ALL = "all"
    RACED = "raced"


@dataclass
class Verdict:
    """What a check found. `reason`: why it is not checked.

    `case` pins the routing that failed. `paths` counts path launches of the case's own routing, `sweep_paths` those of
    the other runs. `raced`: the run that failed was one under the race detector; `watched`: launches that it saw,
    `met`: those whose programs meet in memory. `sharpness` and `changed` as in `Judgement`, over all runs. `relation`:
    the one that was checked instead (`oracles.relations.relate`), or "".
    """

    case: Case
    implementation: str
    status: Status = Status.PASSED
    reason: str = ""
    findings: list[Finding] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)
    sweep_paths: Counter[str] = field(default_factory=Counter)
    sharpness: dict[tuple[str, str, str, str], Sharpness] = field(default_factory=dict)
    runs: int = 0
    raced: bool = False
    watched: int = 0
    met: int = 0
    changed: bool = False
    relation: str = ""


def check(
    case: Case,
    implementation: Implementation,
    device: torch.device,
    sweep: Sweep | str = Sweep.SOME,
    journal: bool = False,
) -> Verdict:
    """Run `case` on its own routing and on others, and compare each with the reference.

    Where kernels are compiled, RACED is not checked. Stops at the first run that fails. `journal`: before each run,
    write the case with its routing to the inbox, so that a process that is killed leaves it behind.

    Raises ValueError for a name of no sweep.
    """
    sweep = Sweep(sweep)
    verdict = Verdict(case, implementation.name)
    can_race = device.type == "cpu" and interpreter.interpreting()
    reason = implementation.supports(case)
    if reason is None and sweep is Sweep.RACED and not can_race:
        reason = "the race detector lives in the interpreter"
    if reason is not None:
        verdict.status, verdict.reason = Status.NOT_CHECKED, reason
        return verdict
    judge = Judge(case)
    run = partial(_run, verdict, judge, implementation=implementation, device=device, journal=journal)
    if sweep is not Sweep.RACED:
        with interpreter.remembering():
            run(case, _sweep(case, implementation, device, sweep))
        if sweep is not Sweep.OWN and verdict.status is Status.PASSED:
            _demand_paths(case, implementation, verdict)
    if sweep in (Sweep.RACED, Sweep.ALL) and can_race:
        for backwards in (False, True):
            # Where no program touches what another one writes, they do the same in any order.
            if verdict.status is Status.PASSED and (verdict.met or not backwards):
                with _racing(backwards) as watch:
                    run(dataclasses.replace(case, schedule=()), _sweep(case, implementation, device, Sweep.OWN))
                verdict.raced = verdict.status is Status.FAILED
                verdict.watched, verdict.met = verdict.watched + watch.launches, verdict.met + watch.shared
    return verdict


def _racing(backwards: bool) -> AbstractContextManager[Any]:
    """The race detector, in an interpreter that is ready for it."""
    interpreter.install()
    from oracles.interpreter.concurrency import races

    return races.watching(backwards)


def _run(
    verdict: Verdict,
    judge: Judge,
    case: Case,
    routings: Iterator[Routing],
    implementation: Implementation,
    device: torch.device,
    journal: bool,
) -> None:
    """Run and judge one routing after the other, up to the first that fails."""
    for routing in routings:
        pinned = dataclasses.replace(case, routing=dict(routing))
        paths = verdict.sweep_paths if verdict.runs else verdict.paths
        with running(pinned, journal):
            trace, findings = attempt(case, implementation, routing, device)
        verdict.runs += 1
        if trace is not None:
            judgement = judge.judge(trace, implementation, routing)
            findings = judgement.findings
            paths.update(trace.paths)
            verdict.changed |= judgement.changed
            for key, sharpness in judgement.sharpness.items():
                verdict.sharpness.setdefault(key, Sharpness()).add(sharpness)
        if findings:
            verdict.case, verdict.status, verdict.findings = pinned, Status.FAILED, findings
            return


def attempt(
    case: Case, implementation: Implementation, routing: Routing, device: torch.device
) -> tuple[Trace | None, list[Finding]]:
    """The trace of a run; or None, and what ended it as a finding."""
    try:
        return implementation.run(case, routing, device), []
    except GuardError as error:  # the kernel was stopped before it did what a guard forbids
        return None, [Finding(str(error), guard=error.guard)]
    except Exception as error:  # a kernel that crashes is a finding, with its traceback
        name = type(error).__name__
        return None, [Finding(f"{name}: {error}\n{traceback.format_exc()}", raised=name)]


def _sweep(case: Case, implementation: Implementation, device: torch.device, sweep: Sweep) -> Iterator[Routing]:
    routings = list(implementation.routings(case, device))
    if sweep is Sweep.OWN:
        return iter(routings[:1])
    if sweep is Sweep.ALL:
        return iter(routings)
    work = sum(case.bag_starts(k)[-1] + ids_and_lengths(case, k)[1].sum() for k in case.order)
    work *= max(1, max(t.dim for t in case.tables) // WIDE)
    some = min(SOME, max(2, MOST_WORK // max(1, int(work))))
    keys = random_bits(int(case_id(case), 16), 0, len(routings))
    others = sorted(range(3, len(routings)), key=lambda i: int(keys[i]))
    return iter(routings[:3] + [routings[i] for i in others[: some - 2]])


def _demand_paths(case: Case, implementation: Implementation, verdict: Verdict) -> None:
    """A sweep that never ran a path it was meant to run is a failure, not a pass."""
    ran = set(verdict.paths) | set(verdict.sweep_paths)
    for alternatives in implementation.sweep_paths(case):
        if not alternatives & ran:
            verdict.status = Status.FAILED
            verdict.findings.append(Finding(f"the sweep ran none of {sorted(alternatives)}, only {sorted(ran)}"))
