"""Distilling the corpus: the cover is small, and a case that gets small fails on all that it was chosen for."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus.case import Batch, Case, Optimizer, Table
from corpus.store import CASES, load, save
from oracles.report import size
from tests.mutants import corpus_score
from tests.mutants.bank import bank
from tests.mutants.cover import cover
from tests.mutants.distill import REPLAYED, Candidate, Group, free_name, seen_by, small

EMPTY_BAG, NO_STEP = "an empty bag is not written", "the learning rate never changes"
RACE = "the workspace is added to without atomics"


def test_the_cover_takes_what_adds_most_and_the_smaller_of_two() -> None:
    seen = {"a": {"small", "large"}, "b": {"small", "large"}, "c": {"one", "large"}, "d": {"one"}, "nobody's": set()}
    assert cover(seen, {"small": 1, "large": 9, "one": 1}) == {"large": ["a", "b", "c"], "one": ["d"]}
    assert cover({"a": {"small", "large"}}, {"small": 1, "large": 9}) == {"small": ["a"]}


def test_a_case_sees_a_mutant_where_it_runs() -> None:
    mutant = next(m for m in bank() if m.id == EMPTY_BAG)
    names = ("empty-bags-and-duplicates-sum", "run-of-4096")
    cases = [load(Path(CASES) / f"{name}.json").case for name in names]
    there = [Candidate(n, c, frozenset({"forward.pooled"})) for n, c in zip(names, cases, strict=True)]
    assert seen_by(mutant, there, ("own",)) == {"empty-bags-and-duplicates-sum"}
    elsewhere = [Candidate(n, c, frozenset({"check.offsets"})) for n, c in zip(names, cases, strict=True)]
    assert seen_by(mutant, elsewhere, ("own", "raced")) == set()
    assert seen_by(mutant, elsewhere[:1], ("own", "all")) == {"empty-bags-and-duplicates-sum"}


def test_a_case_gets_small_and_still_fails_on_every_mutant_of_its_group() -> None:
    """Alone, the first mutant leaves a bag without a lookup, where no learning rate shows."""
    bags = ((0, 1), (), (2,))
    case = Case(
        (Table(5, 3),),
        (0,),
        (Batch((bags,), learning_rate=0.5), Batch((bags,), learning_rate=0.25)),
        (0, 0, 1, 1),
        optimizer=Optimizer(learning_rate=0.5),
    )
    mutants = {m.id: m for m in bank()}
    alone = small(Group(case, (mutants[EMPTY_BAG],)))
    both = small(Group(case, (mutants[EMPTY_BAG], mutants[NO_STEP])))
    assert alone is not None
    assert both is not None
    assert size(alone) < size(both) < size(case)
    for name in (EMPTY_BAG, NO_STEP):
        assert seen_by(mutants[name], [Candidate("both", both, frozenset())], ("all",)) == {"both"}
    assert seen_by(mutants[NO_STEP], [Candidate("alone", alone, frozenset())], ("all",)) == set()


def test_what_only_the_race_detector_sees_is_distilled_too() -> None:
    mutant = next(m for m in bank() if m.id == RACE)
    path = "backward.long_run.atomic"
    knobs = {"long_run_threshold": 1, "chunk_size": 1, "long_run_merge": "atomic"}
    bags = ((0, 1, 2), (0, 1), ())
    case = Case((Table(5, 3),), (0,), (Batch((bags,)),), (0, 0), routing=knobs)
    least = small(Group(case, (mutant,)))
    assert least is not None
    assert size(least) == (1, 1, 2)
    candidates = [Candidate("least", least, frozenset({path}))]
    assert seen_by(mutant, candidates, ("own",)) == set()
    assert seen_by(mutant, candidates, REPLAYED) == {"least"}


def test_a_new_case_takes_no_name_that_is_taken(tmp_path: Path) -> None:
    mutant = next(m for m in bank() if m.id == EMPTY_BAG)
    taken = ("an-empty-bag-is-not-written-2", "an-empty-bag-is-not-written-elsewhere")
    for name in taken:
        (tmp_path / f"{name}.json").touch()
    assert free_name(mutant, tmp_path) == "an-empty-bag-is-not-written"
    (tmp_path / "an-empty-bag-is-not-written.json").touch()
    assert free_name(mutant, tmp_path) == "an-empty-bag-is-not-written-3"


def test_the_kept_score_says_when_the_corpus_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_score, "SCORE", tmp_path / "score.json")
    monkeypatch.setattr(corpus_score, "stored_cases", lambda: [load(path) for path in sorted(tmp_path.glob("c*.json"))])
    assert "not been measured" in corpus_score.told()
    save(Case((Table(3, 1),), (0,), (Batch((((0,),),)),), (0,)), "one", tmp_path, "c1")
    corpus_score.keep(19, 20)
    assert corpus_score.told() == "these cases see 19 of 20 mutants that the suite kills (95.0 %)"
    save(Case((Table(4, 1),), (0,), (Batch((((0,),),)),), (0,)), "two", tmp_path, "c2")
    assert corpus_score.told().endswith("(95.0 %), or did before 1 of them came, went or changed")
