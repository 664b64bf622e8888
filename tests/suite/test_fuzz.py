"""The fuzzer finds what is planted, tells causes apart, keeps small cases, and outlives what it runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from corpus.__main__ import main as corpus_main
from corpus.case import Batch, Case, Table
from corpus.store import load, save
from oracles import interpreter
from oracles.check import Status, Verdict
from oracles.report import size
from oracles.values.compare import Finding
from tests.fuzz.__main__ import main
from tests.fuzz.causes import Cause, cause_of, what_differs
from tests.fuzz.found import Found
from tests.fuzz.pool import Death, Member, Pool
from tests.fuzz.session import Session
from tests.fuzz.sorting import Failure
from tests.fuzz.worker import TURN, Task, draw, turns

needs_interpreter = pytest.mark.skipif(not interpreter.interpreting(), reason="fuzzes on a CPU; needs --device cpu")


def fuzz(inbox: Path, impl: str, *more: str, enough: Callable[[Session], bool]) -> int:
    """The exit code of a run that `enough` ends; the minutes are for when it is broken."""
    usual = ["--minutes", "4", "--jobs", "1", "--seed", "7", "--sweep", "own"]
    return main([*usual, "--impl", impl, "--inbox", str(inbox), *more], enough)


def failures(session: Session, least: int) -> bool:
    """Whether so many failures were counted, and what was found first is small."""
    causes = session.found.causes()
    return sum(entry.count for _, entry in causes) >= least and any(entry.small for _, entry in causes)


@needs_interpreter
def test_a_planted_fault_is_one_cause_with_a_small_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    impl = "tests.programs.fuzzed:ONE_FAULT"
    paths = ("--path", "forward.pooled", "check.offsets")
    assert fuzz(tmp_path, impl, *paths, enough=lambda session: failures(session, 5)) == 1
    printed = capsys.readouterr().out
    assert "[1/1] outputs (forward.pooled): " in printed
    assert re.search(r"\d+ failures, 1 cause$", printed, re.MULTILINE)
    (kept,) = tmp_path.iterdir()
    assert size(load(kept).case) == (1, 1, 0)
    command = f"Reproduce: python -m corpus replay {kept} --device cpu --impl {impl}"
    assert printed.splitlines().count(command) == 1
    assert corpus_main(command.split()[4:]) == 1


@needs_interpreter
def test_two_planted_faults_are_two_causes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def enough(session: Session) -> bool:
        return len({cause.what for cause, entry in session.found.causes() if entry.small}) == 2

    paths = ("--path", "forward.pooled", "backward.psw_gradient")
    assert fuzz(tmp_path, "tests.programs.fuzzed:TWO_FAULTS", *paths, enough=enough) == 1
    printed = capsys.readouterr().out
    assert sorted(re.findall(r"^\[./2\] (\w+ ?\w+) \(", printed, re.MULTILINE)) == ["outputs", "psw gradients"]
    assert printed.count("Reproduce: ") == 2
    assert len(list(tmp_path.iterdir())) == 2


@needs_interpreter
def test_nothing_is_found_in_the_true_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--minutes", "0.1", "--jobs", "1", "--sweep", "own", "--inbox", str(tmp_path / "inbox")]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "Nothing found." in printed
    assert int(re.findall(r"^(\d+) examples, ", printed, re.MULTILINE)[-1]) > 0
    assert list((tmp_path / "inbox").iterdir()) == []


@needs_interpreter
def test_a_worker_that_is_killed_is_a_finding_and_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox = tmp_path / "inbox"
    assert fuzz(inbox, "tests.programs.fuzzed:WILD", "--path", "forward.unpooled", enough=lambda session: False) == 1
    assert (tmp_path / "done").stat().st_size >= 2  # the second life has interrupted this process
    printed = capsys.readouterr().out
    assert "A worker's end: killed by SIGKILL. Another takes its place." in printed
    assert "[1/1] killed by SIGKILL: 1 failure" in printed
    (kept,) = inbox.iterdir()
    assert load(kept).case.pooling_mode == "NONE"
    assert f"Reproduce: python -m corpus replay {kept} --device cpu --impl tests.programs.fuzzed:WILD" in printed


class Stub:
    """A process that does nothing until it is killed."""

    exitcode = -9

    def __init__(self, end: Connection) -> None:
        self.end = end

    def kill(self) -> None:
        """The end of its pipe goes with it."""
        self.end.close()

    def join(self, timeout: float | None = None) -> None:
        """Nothing to wait for."""


def stubs(inbox: Path, ready: bool) -> Callable[[Pool, int, int], Member]:
    """Instead of `Pool._start`: members that are processes in name only."""

    def start(pool: Pool, number: int, life: int) -> Member:
        here, there = Pipe()
        stub: Any = Stub(there)
        if not ready:
            stub.kill()
        return Member(number, life, stub, here, inbox / f"running-{life}.json", ready)

    return start


def test_a_run_without_end_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.pool.ENDLESS", 0.2)
    monkeypatch.setattr("tests.fuzz.pool.GRACE", 0.2)
    monkeypatch.setattr(Pool, "_start", stubs(tmp_path, ready=True))
    pool = Pool(Task("", (), "own", 0, tmp_path), 1)
    save(CASE, "runs", tmp_path, "running-0")
    heard: list[Any] = []
    while not heard:
        heard += pool.messages(0.05)
    assert heard == [Death("no end after 0.2 s", CASE)]
    assert [(member.life, member.journal.exists()) for member in pool.members] == [(1, False)]
    assert list(pool.messages(0.3)) == []  # who runs nothing may take its time
    assert list(pool.stop()) == []


@needs_interpreter
def test_workers_that_cannot_start_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Pool, "_start", stubs(tmp_path, ready=False))
    assert fuzz(tmp_path, "tests.programs.broken:IMPLEMENTATION", enough=lambda session: False) == 2
    assert "ERROR  a worker never began: killed by SIGKILL" in capsys.readouterr().out


WRONG: tuple[list[str], ...] = (
    ["--minutes", "0"],
    ["--minutes", "inf"],
    ["--minutes", "1", "--jobs", "0"],
    ["--minutes", "1", "--path", "forward.nowhere"],
    ["--minutes", "1", "--impl", "tests.programs.fuzzed:NOWHERE"],
    [],
)


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2


HEADLINES = {
    "3 of 96 outputs, batch 0, 2 rows": "outputs",
    "1 of 1 outputs, batch 12, 1 row": "outputs",
    "3 of 96 weights of table 0 after the backward of batch 0, 1 row": "weights",
    "2 of 8 momentum1 of table 1 after the backward of batch 2, 1 row": "momentum1",
    "2 of 8 weights[t=0] of untouched rows changed": "weights of untouched rows changed",
    "2 weights of table 0 rounded otherwise than on another routing, batch 1": "weights rounded otherwise than on "
    "another routing",
    "bounds_check_warning = 3, expected 2": "bounds_check_warning",
    "the bounds check gave None, expected Refusal(kind='offsets', feature=0)": "the bounds check gave None",
    "output is (1, 4) torch.float32, expected (1, 3) torch.float32": "output is",
    "5 elements before a buffer float16[3, 4] were overwritten": "elements before a buffer were overwritten",
    "row gradients: count = 2 of 5, expected 3": "row gradients: count",
    "expected the forward of batch 1, found nothing; refused: None": "expected the forward",
    "the sweep ran none of ['forward.small_table'], only ['x']": "the sweep ran none of ['forward.small_table']",
}


@pytest.mark.parametrize("headline", HEADLINES)
def test_a_quantity_is_told_without_its_numbers(headline: str) -> None:
    assert what_differs(Finding(headline)) == HEADLINES[headline]


CASE = Case((Table(3, 1),), (0,), (Batch((((0, 1), ()),)),), (0, 0))
SMALLER = replace(CASE, batches=(Batch((((0,),),)),))
OUTPUTS = Finding("3 of 96 outputs, batch 0, 2 rows")


def failed(finding: Finding, *paths: str, case: Case = CASE) -> Verdict:
    """A failed verdict."""
    return Verdict(case, "some", Status.FAILED, findings=[finding], paths=Counter(paths), runs=1)


def test_a_cause_is_what_differs_and_the_paths_that_may_have_done_it() -> None:
    plan = ("forward.pooled", "backward.plan")
    assert cause_of(failed(OUTPUTS, *plan)) == Cause("outputs", ("forward.pooled",))
    psw = Finding("1 of 2 psw gradients, batch 0, 1 row")
    assert cause_of(failed(psw, *plan)) == Cause("psw gradients", ("backward.plan", "forward.pooled"))
    bounds = Finding(
        "bounds: load 1 element before table, 1 lane, in a_kernel, program (1, 0, 0), a.py:3", guard="bounds"
    )
    assert cause_of(failed(bounds, *plan)) == Cause("guard bounds in a_kernel")
    races = Finding("races: table[3]: a store and a load without a barrier between them, in a_kernel", guard="races")
    assert cause_of(failed(races)) == Cause("guard races in a_kernel")


def test_an_exception_is_told_by_the_place_that_began_it() -> None:
    def begin() -> None:
        raise KeyError("x")

    def go_on() -> None:
        try:
            begin()
        except KeyError as error:
            raise ValueError("y") from error

    import traceback

    with pytest.raises(ValueError, match="y") as caught:
        go_on()
    lines = "".join(traceback.format_exception(caught.value))
    assert what_differs(Finding(f"ValueError: y\n{lines}", raised="ValueError")) == "ValueError in test_fuzz.py:begin"


def test_a_cause_explains_the_same_on_more_paths_and_on_paths_of_the_same_kernels() -> None:
    cause = Cause("weights", ("backward.plan", "backward.short_run"))
    assert cause.explains(Cause("weights", ("backward.plan.hoisted", "backward.short_run", "check.offsets")))
    assert not cause.explains(Cause("weights", ("backward.plan", "backward.long_run.fused")))
    assert not cause.explains(Cause("outputs", cause.paths))


def test_found_keeps_the_smallest_case_of_each_cause_and_moves_what_led_elsewhere(tmp_path: Path) -> None:
    found = Found("some", tmp_path)
    seems = Cause("outputs", ("check.offsets", "forward.pooled"))
    other = Cause("outputs", ("forward.pooled", "forward.unpooled"))
    cause = Cause("outputs", ("forward.pooled",))
    assert found.failure(Failure(seems, failed(OUTPUTS)))
    assert len(list(tmp_path.iterdir())) == 1
    assert not found.failure(Failure(cause, failed(OUTPUTS, case=SMALLER), small=True, was=seems))
    assert not found.failure(Failure(cause, None))
    assert not found.failure(Failure(other, failed(OUTPUTS)))
    assert [(c, entry.count) for c, entry in found.causes()] == [(cause, 2), (other, 1)]
    assert len(list(tmp_path.iterdir())) == 2
    found.settle()
    ((left, entry),) = found.causes()
    assert (left, entry.count, entry.verdict and entry.verdict.case) == (cause, 3, SMALLER)
    assert [load(path).case for path in tmp_path.iterdir()] == [SMALLER]
    assert found.failure(Failure(Cause("weights"), failed(OUTPUTS)))


def test_a_case_that_was_in_the_inbox_before_stays_there(tmp_path: Path) -> None:
    earlier = Found("some", tmp_path)
    earlier.failure(Failure(Cause("outputs"), failed(OUTPUTS)))
    found = Found("some", tmp_path)
    found.failure(Failure(Cause("outputs"), failed(OUTPUTS)))
    found.failure(Failure(Cause("outputs"), failed(OUTPUTS, case=SMALLER)))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_seed_settles_what_a_worker_draws(tmp_path: Path) -> None:
    def drawn(seed: int, number: int, life: int) -> list[Case]:
        seen: list[Case] = []
        path, turn = next(turns(Task("", ("forward.unpooled",), "own", seed, tmp_path), number, life))
        draw(path, turn, seen.append)
        return seen

    first = drawn(5, 0, 0)
    assert len(set(first)) >= TURN - 1
    assert first == drawn(5, 0, 0)
    for other in (drawn(6, 0, 0), drawn(5, 1, 0), drawn(5, 0, 1)):
        assert len(set(first) & set(other)) <= 2  # the plainest case, and by accident
