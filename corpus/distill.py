"""Distils the corpus: the fewest cases that see every mutant anybody saw, and that run every kernel path.

Every stored case is run, on its own routing, on every mutant of a file that it runs kernels of. What none of them sees
is shrunk from the failing case that `python -m tests.mutants` kept, and those are run on each other's mutants; a greedy
cover of them is stored. Stored cases stay: each guards something that its note names. A face like `__main__`.
"""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from corpus.case import Case
from corpus.store import CASES, case_id, find, from_json, load, save
from oracles.check import check
from oracles.kernels import IMPLEMENTATION, TbeKernels
from oracles.report import size
from tests.failures import shrink
from tests.mutants import tally
from tests.mutants.bank import Mutant, Reach, bank
from tests.mutants.crew import Died, work
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.plant import plant
from tests.mutants.score import Terms
from tests.mutants.search import CPU, Hurried, limited

#: CPU seconds for one case on one mutant.
MOST_SECONDS = 20
#: A corpus of more cases is no longer a fast gate.
MOST_CASES = 80


@dataclass(frozen=True)
class Candidate:
    """A case that may be kept. `stored`: it is in the corpus already. `paths`: the kernel paths it runs."""

    name: str
    case: Case
    stored: bool
    paths: frozenset[str]


def distill(given: Namespace) -> int:
    """Choose, report, and store what is chosen; returns the exit code."""
    place = given.outcomes or tally.place(Terms())
    outcomes = {o.id: o for o in tally.read(place) if o.status == "killed" and o.id not in EQUIVALENT}
    mutants = [m for m in bank() if m.id in outcomes]
    if not mutants:
        print(f"ERROR  {place} holds no killed mutant: run `python -m tests.mutants` first", file=sys.stderr)
        return 2
    stored = [_candidate(path.stem, load(path).case, True) for path in find(str(CASES))]
    kills = {name: seen or set() for name, seen in _each(mutants, given.jobs, partial(seen_by, candidates=stored))}
    _say("the stored cases", {c.name for c in stored}, kills)
    unseen = [m for m in mutants if not kills[m.id] and outcomes[m.id].case]
    found = {m.id: from_json(outcomes[m.id].case)[0] for m in unseen}
    cases = {case_id(c): c for _, c in _each(unseen, given.jobs, partial(shrunk, found=found)) if c is not None}
    new = [_candidate(name, case, False) for name, case in cases.items()]
    for name, seen in _each(unseen, given.jobs, partial(seen_by, candidates=new)):
        kills[name] |= seen or set()
    candidates = [*stored, *new]
    chosen = cover(kills, candidates, kept={c.name for c in stored})
    _say(f"with {len(chosen) - len(stored)} more", chosen, kills)
    _say("the fewest that do", cover(kills, candidates), kills)
    _halves(mutants, kills, candidates)
    for candidate in new:
        if candidate.name in chosen:
            guards = sorted(name for name, seen in kills.items() if candidate.name in seen)
            print(f"new: {save(candidate.case, _note(guards), CASES, candidate.name)}")
    return int(len(chosen) > MOST_CASES)


def _each(mutants: Sequence[Mutant], jobs: int, task: Callable[[Mutant], Any]) -> Iterator[tuple[str, Any]]:
    """(mutant, what the task gave, or None if its process died), with a line for each."""
    for number, (mutant, result) in enumerate(work(mutants, jobs, task), 1):
        print(f"[{number}/{len(mutants)}] {mutant.id}", flush=True)
        yield mutant.id, None if isinstance(result, Died) else result


def _candidate(name: str, case: Case, stored: bool) -> Candidate:
    return Candidate(name, case, stored, frozenset(check(case, IMPLEMENTATION, CPU, "own").paths))


def shrunk(mutant: Mutant, found: Mapping[str, Case]) -> Case | None:
    """The failing case that was kept, made small; None if a plain run of it does not fail with a wrong result."""
    implementation = Hurried(plant(*mutant.edits))
    verdict = check(found[mutant.id], implementation, CPU, "own")
    if verdict.status != "failed" or verdict.findings[0].raised:
        return None
    small = shrink(verdict, implementation, CPU).case
    return small if check(small, IMPLEMENTATION, CPU, "own").status == "passed" else None


def seen_by(mutant: Mutant, candidates: Sequence[Candidate]) -> set[str]:
    """The cases that fail on a mutant."""
    implementation, paths, seen = TbeKernels(plant(*mutant.edits)), Reach().of_file(mutant.file), set()
    for candidate in candidates:
        if candidate.paths & paths:
            with limited(MOST_SECONDS):
                if check(candidate.case, implementation, CPU, "own").status == "failed":
                    seen.add(candidate.name)
    return seen


def cover(kills: Mapping[str, set[str]], candidates: Sequence[Candidate], kept: set[str] | None = None) -> set[str]:
    """Cases that see every mutant which any of them sees, and run every path that any runs: `kept`, and then always
    the one that adds most, the smaller of two."""
    chosen = set(kept or ())
    wants = {name: seen for name, seen in kills.items() if seen and not seen & chosen}
    wants |= {
        path: {c.name for c in candidates if path in c.paths} for path in set().union(*(c.paths for c in candidates))
    }
    wants = {name: seen for name, seen in wants.items() if not seen & chosen}
    sizes = {c.name: sum(size(c.case)) for c in candidates}
    while wants:
        gain: dict[str, int] = {}
        for seen in wants.values():
            for name in seen & sizes.keys():
                gain[name] = gain.get(name, 0) + 1
        best = max(gain, key=lambda name: (gain[name], -sizes[name], name))
        chosen.add(best)
        wants = {name: seen for name, seen in wants.items() if best not in seen}
    return chosen


def _say(what: str, chosen: set[str], kills: Mapping[str, set[str]]) -> None:
    killed = sum(bool(seen & chosen) for seen in kills.values())
    print(f"{what}: {len(chosen)} cases see {killed} of {len(kills)} ({100 * killed / len(kills):.1f} %)")


def _halves(mutants: Sequence[Mutant], kills: Mapping[str, set[str]], candidates: Sequence[Candidate]) -> None:
    """Does a corpus distilled from half of the mutants see the other half? Without the stored cases' help."""
    names = [m.id for m in mutants]
    random.Random(0).shuffle(names)
    half, other = names[: len(names) // 2], names[len(names) // 2 :]
    chosen = cover({name: kills[name] for name in half}, candidates)
    _say("distilled from a random half, of that half", chosen, {name: kills[name] for name in half})
    _say("distilled from a random half, of the other", chosen, {name: kills[name] for name in other})


def _note(guards: Sequence[str]) -> str:
    more = f" and {len(guards) - 2} more" if len(guards) > 2 else ""
    return "Distilled. Sees " + "; ".join(guards[:2]) + more
