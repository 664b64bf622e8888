"""The corpus: cases survive the way to disk and back, bad files are refused kindly, replay says what happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from corpus.case import *  # noqa: F403  (a case prints as a constructor call; this is where it is called)
from corpus.case import Batch, Case, CaseError, Table
from corpus.store import CASES, case_id, find, from_json, left_running, load, running, save, stored_cases, to_json
from oracles import OURS
from oracles.replay import _replay_one
from strategies.cases import cases
from strategies.routing import GPU
from tests.mutants.distill import MOST_CASES

quick = settings(max_examples=100, derandomize=True, database=None, deadline=None)


@quick
@given(case=cases(limits=GPU))
def test_a_case_survives_json_and_its_own_repr(case: Case) -> None:
    again, note = from_json(to_json(case, "why"))
    assert (again, note) == (case, "why")
    assert hash(again) == hash(case)
    assert case_id(again) == case_id(case)
    assert eval(repr(case)) == case


def test_stored_cases_are_few_small_and_say_why() -> None:
    stored = list(stored_cases())
    assert 20 <= len(stored) <= MOST_CASES, "`python -m corpus distill` makes room: it counts what is written by hand"
    for one in stored:
        assert len(one.note) > 20, one.path
        assert one.path.stat().st_size < 6000, one.path


def _fields(some: str) -> str:
    return f'{{"format": 1, "feature_table_map": [0], "batches": [], "order": [], {some}}}'


BAD_FILES = {
    "{": "not JSON",
    "[1]": "expected an object",
    '{"format": 99}': "a newer checkout can read it",
    "{}": "format: expected 1, got None",
    '{"format": 1, "tables": []}': "the field 'feature_table_map' is missing",
    _fields('"tables": [], "colour": 1'): "no field 'colour'",
    _fields('"tables": []'): "tables: expected at least one",
    _fields('"tables": [{"rows": "3", "dim": 1}]'): "case.tables[0].rows: expected int, got '3'",
    _fields('"tables": [{"rows": 3, "dim": 1}, [4]]'): "case.tables[1]: expected an object, got list",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_malformed_file_is_refused_by_name_and_kept(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(CaseError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert BAD_FILES[text] in str(caught.value)
    assert path.read_text() == text


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m corpus replay` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "corpus", "replay", *arguments], capture_output=True, text=True, check=False
    )


REFERENCE = ("--impl", "oracles.adapters.torch_reference:IMPLEMENTATION")


def test_replay_says_fixed_failed_and_error(tmp_path: Path) -> None:
    passing = replay("no-lookups", *REFERENCE)
    assert passing.returncode == 0, passing.stdout + passing.stderr
    assert "1 ok" in passing.stdout

    broken = ("--impl", "tests.programs.broken:IMPLEMENTATION")
    failing = replay("empty-bags-and-duplicates-sum", *broken)
    assert failing.returncode == 1
    assert "FAILED" in failing.stdout
    assert "outputs, batch 0" in failing.stdout
    again = "Reproduce: python -m corpus replay corpus/cases/empty-bags-and-duplicates-sum.json --device cpu"
    assert f"{again} {' '.join(broken)}" in failing.stdout

    bad = tmp_path / "bad.json"
    bad.write_text("{")
    malformed = replay(str(bad), *REFERENCE)
    assert malformed.returncode == 2
    assert "not JSON" in malformed.stdout
    assert bad.exists()

    assert replay("no-such-case", *REFERENCE).returncode == 2
    assert replay("no-lookups", "--impl", "nowhere").returncode == 2


def test_find_takes_files_folders_and_beginnings_of_names() -> None:
    assert find(str(CASES)) == sorted(CASES.glob("*.json"))
    assert [p.stem for p in find("run-of-4")] == ["run-of-4096"]
    assert find(str(CASES / "no-samples.json")) == [CASES / "no-samples.json"]
    with pytest.raises(CaseError, match="neither a file nor"):
        find("no-such-case")


def test_a_killed_process_leaves_its_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corpus.store.INBOX", tmp_path)
    case = next(stored_cases()).case
    with running(case, journal=True):
        (left,) = tmp_path.glob("running-*.json")
        assert load(left).case == case
        assert left_running() == []  # this process is alive
    assert list(tmp_path.iterdir()) == []
    save(case, "left behind", tmp_path, "running-999999999")
    assert left_running() == [tmp_path / "running-999999999.json"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pooling_mode": "MAX"}, "pooling_mode"),
        ({"order": (0, 0, 0)}, "order"),
        ({"order": (3,)}, "order"),
        ({"feature_table_map": (99,) * 31}, "feature_table_map"),
        ({"tables": (Table(0, 1),)}, "tables"),
        ({"weights_dtype": "float8"}, "weights_dtype"),
    ],
)
def test_a_senseless_case_is_refused(changes: dict[str, object], problem: str) -> None:
    import dataclasses

    with pytest.raises(CaseError, match=problem):
        dataclasses.replace(next(stored_cases()).case, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (Batch((((1, 2),),), offsets_edits=((2, 0),)), r"offsets_edits: expected places from 0 to 1 .*, got \(2, 0\)"),
        (Batch((((1, 2),),), offsets_edits=((0, 2**40),)), "offsets_edits: .* values of int32"),
        (Batch((((2**40,),),)), r"features: expected ids of int32, .* got \(1099511627776, 1\)"),
        (Batch(((((1, -3),),),)), "features: .* at least 0 times"),
    ],
)
def test_a_senseless_batch_is_refused(batch: Batch, problem: str) -> None:
    with pytest.raises(CaseError, match=problem):
        Case((Table(5, 1),), (0,), (batch,), (0,), indices_dtype="int32", offsets_dtype="int32")


def test_a_case_that_cannot_be_judged_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: object) -> None:
        raise RuntimeError("no tensors")

    monkeypatch.setattr("oracles.check.check", check)
    outcome, _, text = _replay_one(CASES / "no-samples.json", impl=OURS, device="cpu", sweep="own", relation=None)
    assert outcome == "ERROR"
    assert "no-samples.json: cannot be judged" in text
    assert "no tensors" in text
