"""What is kept of a failure: the smallest case, or as it was found where making it small never ends."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from corpus.case import Batch, Case, Table
from corpus.store import load, save
from oracles import shrink
from oracles.adapters.torch_reference import IMPLEMENTATION as RIGHT
from oracles.check import Status, Sweep, Verdict, check
from oracles.implementation import Trace
from oracles.report import size
from tests.programs.broken import IMPLEMENTATION

CPU = torch.device("cpu")
CASE = Case((Table(5, 8), Table(3, 4)), (0, 1), (Batch((((1, 2), (3,)), ((), (0,)))),), (0,))


@pytest.fixture
def found() -> Verdict:
    """A failure on a case that can be made smaller."""
    verdict = check(CASE, IMPLEMENTATION, CPU, Sweep.OWN)
    assert verdict.status is Status.FAILED
    return verdict


@pytest.fixture(autouse=True)
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inbox of its own."""
    monkeypatch.setattr(shrink, "save", partial(save, directory=tmp_path))
    monkeypatch.setattr("corpus.store.INBOX", tmp_path)
    return tmp_path


def test_the_small_case_alone_is_kept(found: Verdict, inbox: Path) -> None:
    text = shrink.shrink_and_report(found, IMPLEMENTATION, CPU)
    (kept,) = inbox.iterdir()
    assert sum(size(load(kept).case)) < sum(size(CASE))
    assert str(kept) in text


def test_a_case_that_cannot_be_smaller_is_kept(found: Verdict, inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "reduce", lambda case, fails: case)
    shrink.shrink_and_report(found, IMPLEMENTATION, CPU)
    assert [load(path).case for path in inbox.iterdir()] == [found.case]


def test_a_failure_is_kept_before_it_is_made_small(
    found: Verdict, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_ends(case: Case, fails: object) -> Case:
        raise KeyboardInterrupt

    monkeypatch.setattr(shrink, "reduce", never_ends)
    with pytest.raises(KeyboardInterrupt):
        shrink.shrink_and_report(found, IMPLEMENTATION, CPU)
    assert [load(path).case for path in inbox.iterdir()] == [found.case]


def test_a_case_that_is_tried_is_kept_while_it_runs(
    found: Verdict, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    plain = IMPLEMENTATION.run

    def run(*given: Any) -> Trace:
        kept.append(len(list(inbox.glob("running-*"))))
        return plain(*given)

    monkeypatch.setattr(IMPLEMENTATION, "run", run)
    shrink.shrink_and_report(found, IMPLEMENTATION, CPU)
    assert len(kept) > 1
    assert set(kept) == {1}


def test_where_nothing_can_be_written_the_report_holds_the_case(
    found: Verdict, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*args: object) -> Path:
        raise OSError(errno.EROFS, "Read-only file system", "corpus/inbox")

    monkeypatch.setattr(shrink, "save", read_only)
    monkeypatch.setattr("corpus.store.save", read_only)
    text = shrink.shrink_and_report(found, IMPLEMENTATION, CPU).splitlines()
    assert text[-1].startswith("Not saved: [Errno 30] Read-only file system: 'corpus/inbox'")
    assert sum(line.startswith("  Case(tables=") for line in text) == 1
    assert not any(line.startswith(("Saved:", "Reproduce:")) for line in text)
    assert list(inbox.iterdir()) == []
    assert check(CASE, RIGHT, CPU, Sweep.OWN, journal=True).status is Status.PASSED  # and what is right passes
