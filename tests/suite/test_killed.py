"""int32 arithmetic on a table beyond 2**31 elements: true kernels are right, the fault is caught, the case survives.

The planted fault reads gigabytes before the table. That may fail the comparison or kill the process; either way the
case can be read afterwards.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from corpus.store import load
from oracles import interpreter
from tests.programs.killed import CASE

pytestmark = pytest.mark.skipif(not interpreter.interpreting(), reason="about the interpreter; needs --device cpu")


def run(inbox: Path, kernels: str) -> int:
    """The exit code of a check in a process of its own; negative if a signal ended it."""
    command = [sys.executable, "-m", "tests.programs.killed", str(inbox), kernels]
    return subprocess.run(command, capture_output=True, check=False).returncode


def test_a_table_beyond_two_to_the_31_elements_on_a_cpu(tmp_path: Path) -> None:
    assert run(tmp_path, "true") == 0
    assert list(tmp_path.iterdir()) == []


def test_row_times_width_in_int32_is_caught(tmp_path: Path) -> None:
    code = run(tmp_path, "planted")
    assert code != 0
    if code < 0:  # killed: the write-ahead file is there
        (left,) = tmp_path.glob("running-*.json")
        assert load(left).case == CASE
