"""Distils the corpus: the cases written by hand, and the fewest others that see what those miss.

`python -m tests.mutants` keeps a failing case of each mutant as it was drawn, so rich that it fails on many others too.
Among those of the mutants that no case written by hand sees, a cover is chosen; each case of it is made as small as it
gets while it fails on every mutant that it was chosen for. They replace what was distilled before.

With `--half SEED` that is done with a random half of the mutants; nothing is stored, and what counts is how many of the
other half are seen. A face like `__main__`.
"""

from __future__ import annotations

import itertools
import random
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from corpus.case import Case
from corpus.shrink.reduce import reduce
from corpus.store import CASES, StoredCase, case_id, from_json, save, stored_cases
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.check import Status, Sweep, Verdict, check
from oracles.report import size
from oracles.shrink import kind_of, least_sweep
from tbe_kernels.paths import PATHS
from tests.mutants import ledger
from tests.mutants.bank import BY_HAND, Mutant, Reach, bank
from tests.mutants.corpus_score import keep
from tests.mutants.cover import cover
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.plant import plant
from tests.mutants.score import Terms
from tests.mutants.search import CPU, Hurried
from tests.mutants.workers import Died, work

#: How the note of a distilled case begins.
DISTILLED = "Distilled."
#: What replaying a case does, from the quickest: a mutant that one shows need not be looked at by the next.
REPLAYED = ("own", "raced", "all")
#: A corpus of more cases is no longer a fast gate.
MOST_CASES = 80


@dataclass(frozen=True)
class Candidate:
    """A case that may be kept. `paths`: the kernel paths that it runs on its own routing."""

    name: str
    case: Case
    paths: frozenset[str]


@dataclass(frozen=True)
class Group:
    """A case, and the mutants that it has to fail on however small it gets."""

    case: Case
    mutants: tuple[Mutant, ...]

    @property
    def id(self) -> str:
        return self.mutants[0].id


Item = TypeVar("Item", Mutant, Group)
Seen = dict[str, set[str]]  # of each mutant, the names of the cases that see it


def distill(given: Namespace) -> int:
    """Choose, make small, report and store; returns the exit code."""
    place = given.outcomes or ledger.place(Terms())
    outcomes = {o.id: o for o in ledger.read(place) if o.status == "killed" and o.id not in EQUIVALENT}
    mutants = [m for m in bank() if m.id in outcomes]
    if not mutants:
        print(f"ERROR  {place} holds no killed mutant: run `python -m tests.mutants` first", file=sys.stderr)
        return 2
    others: list[Mutant] = []
    if given.half is not None:
        random.Random(given.half).shuffle(mutants)
        mutants, others = mutants[: len(mutants) // 2], mutants[len(mutants) // 2 :]
    stored = list(stored_cases())
    by_hand = [_candidate(one.case, one.id) for one in stored if not one.note.startswith(DISTILLED)]
    seen = _seen(mutants, by_hand, given.jobs, ("own", "raced"))
    _say(f"{len(by_hand)} cases written by hand", seen)
    missed = [m for m in mutants if not seen[m.id]]
    found = [from_json(outcomes[m.id].case)[0] for m in missed if outcomes[m.id].case]
    new = _distilled(missed, found, given.jobs, MOST_CASES - len(by_hand))
    cases = [*by_hand, *new]
    if others:
        seen = _seen(others, cases, given.jobs, REPLAYED)
    else:
        seen |= _seen(missed, new, given.jobs, REPLAYED)
        new = [c for c in new if any(c.name in names for names in seen.values())]
        cases = [*by_hand, *new]
        seen |= _seen([m for m in missed if not seen[m.id]], by_hand, given.jobs, ("all",))
    killed = _say(f"{len(cases)} cases{', of the other half' if others else ''}", seen)
    for mutant, names in seen.items():
        if not names:
            print(f"not seen: {mutant}")
    if others:
        return 0
    _store(new, seen, stored, {m.id: m for m in mutants})
    keep(killed, len(seen))
    lost = {path.name for path in PATHS} - {path for candidate in cases for path in candidate.paths}
    if lost:
        print(f"no case runs {', '.join(sorted(lost))}")
    return int(len(cases) > MOST_CASES or bool(lost))


def _distilled(missed: Sequence[Mutant], found: Sequence[Case], jobs: int, room: int) -> list[Candidate]:
    """The fewest small cases, out of those found, that see these mutants; and as far as there is room, others that see
    them once more, and again: a corpus that sees each mutant in one way only is good for little but these mutants."""
    candidates = {case_id(case): _candidate(case, case_id(case)) for case in found}
    fails = _seen(missed, list(candidates.values()), jobs, ("own", "raced"))
    sizes = {name: sum(size(c.case)) for name, c in candidates.items()}
    by_id, chosen = {m.id: m for m in missed}, dict[str, list[str]]()
    while len(chosen) < room and (more := cover({m: cases - chosen.keys() for m, cases in fails.items()}, sizes)):
        chosen |= more
    groups = [Group(candidates[case].case, tuple(by_id[m] for m in names)) for case, names in chosen.items()][:room]
    cases = {case for _, case in _each(groups, jobs, small) if case is not None}
    return [_candidate(case, case_id(case)) for case in sorted(cases, key=case_id)]


def small(group: Group) -> Case | None:
    """The group's case, made small, but no plainer: what is plain sees little but what it was chosen for. None if the
    true kernels fail on it."""
    implementations = [Hurried(plant(*mutant.edits)) for mutant in group.mutants]
    verdicts = [_looked(group.case, implementation) for implementation in implementations]

    def fails(case: Case) -> bool:
        for implementation, first in zip(implementations, verdicts, strict=True):
            verdict = check(case, implementation, CPU, least_sweep(first))
            if verdict.status is not Status.FAILED or kind_of(verdict) != kind_of(first):
                return False
        return True

    case = reduce(group.case, fails, plain=False)
    return case if check(case, IMPLEMENTATION, CPU, Sweep.ALL).status is Status.PASSED else None


def _looked(case: Case, implementation: Hurried) -> Verdict:
    """On the case's own routing, under the race detector if nothing is wrong without."""
    verdict = check(case, implementation, CPU, Sweep.OWN)
    return verdict if verdict.status is Status.FAILED else check(case, implementation, CPU, Sweep.RACED)


def seen_by(mutant: Mutant, candidates: Sequence[Candidate], sweeps: Sequence[str]) -> set[str]:
    """The cases that fail on a mutant on the first of these sweeps on which any does. A case is run on its own routing
    only where the changed file has kernels."""
    implementation, paths = Hurried(plant(*mutant.edits)), Reach().of_file(mutant.file)
    seen: set[str] = set()
    for sweep in sweeps:
        near = [c for c in candidates if sweep == Sweep.ALL or c.paths & paths]
        seen = seen or {c.name for c in near if check(c.case, implementation, CPU, sweep).status is Status.FAILED}
    return seen


def _seen(mutants: Sequence[Mutant], candidates: Sequence[Candidate], jobs: int, sweeps: Sequence[str]) -> Seen:
    task = partial(seen_by, candidates=candidates, sweeps=sweeps)
    return {mutant.id: seen or set() for mutant, seen in _each(mutants, jobs, task)}


def _each(items: Sequence[Item], jobs: int, task: Callable[[Item], Any]) -> Iterator[tuple[Item, Any]]:
    """Each item with what the task gave, or None if its process died. Shows a line for each."""
    for number, (item, result) in enumerate(work(items, jobs, task), 1):
        print(f"[{number}/{len(items)}] {item.id}", flush=True)
        yield item, None if isinstance(result, Died) else result


def _candidate(case: Case, name: str) -> Candidate:
    return Candidate(name, case, frozenset(check(case, IMPLEMENTATION, CPU, Sweep.OWN).paths))


def _say(what: str, seen: Seen) -> int:
    killed = sum(map(bool, seen.values()))
    print(f"{what}: {killed} of {len(seen)} mutants seen ({100 * killed / max(1, len(seen)):.1f} %)", flush=True)
    return killed


def _store(new: Sequence[Candidate], seen: Seen, stored: Sequence[StoredCase], mutants: Mapping[str, Mutant]) -> None:
    """The new cases in the place of those that were distilled before, each with what it guards."""
    for one in stored:
        if one.note.startswith(DISTILLED):
            one.path.unlink()
    for candidate in new:
        guards = sorted((m for m in mutants if candidate.name in seen[m]), key=lambda m: mutants[m].operator != BY_HAND)
        more = f" and {len(guards) - 2} more" if len(guards) > 2 else ""
        note = f"{DISTILLED} Sees {'; '.join(guards[:2])}{more}"
        print(f"new: {save(candidate.case, note, CASES, free_name(mutants[guards[0]], CASES))}")


def free_name(mutant: Mutant, directory: Path) -> str:
    """A readable name that no file of the directory has."""
    text = mutant.id if mutant.operator == BY_HAND else f"{mutant.function} {mutant.operator}"
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not (directory / f"{name}.json").exists())
