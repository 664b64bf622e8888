"""Distilling the corpus: the cover sees what any case sees, runs every path and is small; cases see mutants."""

from __future__ import annotations

from pathlib import Path

from corpus.case import Batch, Case, Table
from corpus.distill import Candidate, cover, seen_by, shrunk
from corpus.store import CASES, load
from tests.mutants.bank import bank


def candidate(name: str, lookups: int, *paths: str, stored: bool = False) -> Candidate:
    case = Case((Table(3, 1),), (0,), (Batch((((0,) * lookups,),)),), (0, 0))
    return Candidate(name, case, stored, frozenset(paths))


def test_the_cover_takes_what_adds_most_and_the_smaller_of_two() -> None:
    some = [candidate("small", 1, "p"), candidate("large", 9, "p"), candidate("one", 1, "p")]
    kills = {"a": {"small", "large"}, "b": {"small", "large"}, "c": {"one"}, "nobody sees it": set()}
    assert cover(kills, some) == {"small", "one"}


def test_what_is_kept_is_not_covered_twice() -> None:
    some = [candidate("stored", 9, "p", stored=True), candidate("new", 1, "p"), candidate("other", 1, "p")]
    kills = {"a": {"stored", "new"}, "b": {"other", "new"}}
    assert cover(kills, some, kept={"stored"}) in ({"stored", "other"}, {"stored", "new"})
    assert cover(kills, some) == {"new"}


def test_every_path_is_run() -> None:
    some = [candidate("first", 1, "p"), candidate("second", 1, "q")]
    assert cover({"a": {"first"}}, some) == {"first", "second"}


def test_a_case_sees_a_mutant_and_is_made_small() -> None:
    mutant = next(m for m in bank() if m.id == "an empty bag is not written")
    names = ("empty-bags-and-duplicates-sum", "run-of-4096")
    stored = {name: load(Path(CASES) / f"{name}.json").case for name in names}
    paths = frozenset({"forward.pooled"})
    assert seen_by(mutant, [Candidate(n, c, True, paths) for n, c in stored.items()]) == {
        "empty-bags-and-duplicates-sum"
    }
    assert seen_by(mutant, [Candidate(n, c, True, frozenset({"check.offsets"})) for n, c in stored.items()]) == set()
    assert shrunk(mutant, {mutant.id: stored["run-of-4096"]}) is None
