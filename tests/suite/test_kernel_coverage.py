"""What a run leaves out of a kernel is named, and what it covers is what coverage.py's own tracer sees."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from oracles import interpreter

pytestmark = pytest.mark.skipif(not interpreter.interpreting(), reason="about the interpreter; needs --device cpu")
ROOT = Path(__file__).parents[2]
KERNELS = '''
import triton
import triton.language as tl


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def step(out, n, UP: tl.constexpr):
    """Ends in an if."""
    if UP:
        return
    if n > 4:
        tl.store(out, 9)


@triton.jit(do_not_specialize=["n"])
def kernel(
    out,
    n,
    UP: tl.constexpr,
):
    """Over

    some lines."""
    total = tl.zeros(
        [4], dtype=tl.int32
    )
    for i in range(
        0,
        n,
    ):
        if i == 1:
            continue
        if i == 2:
            total += 1
        elif (
            i == 3
            and UP
        ):
            break
    else:
        total += 7
    left = n
    while left > 2:
        left -= 2
    tl.store(out + tl.arange(0, 4), total + tl.associative_scan(tl.arange(0, 4), 0, larger))
    step(out, n, UP)


def wrapper(flag):
    if flag:
        return 1
'''
#: Runs with (n, UP), and what they leave out.
LEFT_OUT: dict[tuple[tuple[int, bool], ...], list[str]] = {
    ((4, True), (5, False), (2, False)): [],
    ((4, True), (2, False)): [
        "part/kernels.py:16 step: the branch 16 -> 17 never taken",
        "part/kernels.py:17 step: line 17 never ran",
    ],
    ((4, True), (5, False)): ["part/kernels.py:16 step: the branch 16 -> end never taken"],
    ((5, False), (2, False)): [
        "part/kernels.py:14 step: the branch 14 -> 15 never taken",
        "part/kernels.py:15 step: line 15 never ran",
        "part/kernels.py:40 kernel: the branch 40 -> 44 never taken",
        "part/kernels.py:44 kernel: line 44 never ran",
    ],
    ((0, True),): [
        "part/kernels.py:14 step: the branch 14 -> 16 never taken",
        "part/kernels.py:16 step: lines 16, 17 never ran",
        "part/kernels.py:32 kernel: the branch 32 -> 36 never taken",
        "part/kernels.py:36 kernel: lines 36, 37, 38, 39, 40, 44, 49 never ran",
        "part/kernels.py:48 kernel: the branch 48 -> 49 never taken",
    ],
    (): [
        "part/kernels.py:7 larger: never ran",
        "part/kernels.py:12 step: never ran",
        "part/kernels.py:21 kernel: never ran",
    ],
}


class Session:
    """A package of its own and the coverage plugin, for what is below `root`, as in one process of a run."""

    def __init__(self, directory: Path, least: float | None = None, root: Path | None = None) -> None:
        interpreter.install()
        from tests.kernel_coverage import KernelCoverage

        self.file = directory / "part" / "kernels.py"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(KERNELS)
        self.plugin, self.config, self.exitstatus = KernelCoverage(least, root or directory), SimpleNamespace(), 0
        self.kernel = self._load()

    def _load(self) -> Any:
        spec = importlib.util.spec_from_file_location("kernels", self.file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.kernel

    def run(self, *runs: tuple[int, bool]) -> None:
        for n, up in runs:
            self.kernel[(1,)](torch.zeros(4, dtype=torch.int32), n, up)

    def finish(self) -> list[str]:
        """End; the lines of the summary."""
        lines: list[str] = []
        self.plugin.pytest_sessionfinish(self)
        self.plugin.pytest_terminal_summary(SimpleNamespace(section=lines.append, write_line=lines.append))
        assert lines[0] == "kernel branch coverage"
        return lines[1:]


@pytest.mark.parametrize("runs", LEFT_OUT, ids=str)
def test_what_was_left_out_is_named(runs: tuple[tuple[int, bool], ...], tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.run(*runs)
    first, *missing = session.finish()
    assert missing == LEFT_OUT[runs]
    assert ("100 % (14 of 14 branches, 19 of 19 statements)" in first) == (not missing)
    assert first.startswith("3 @triton.jit functions: ")
    assert session.exitstatus == 0


@pytest.mark.parametrize(("least", "fails"), [(96.96, False), (96.97, True), (100.0, True)])
def test_a_run_below_the_bound_fails(least: float, fails: bool, tmp_path: Path) -> None:
    session = Session(tmp_path, least)
    session.run((4, True), (5, False))  # 32 of 33
    line = f"Kernel coverage of 96.96 % is below the bound of {least:g} %."
    assert (line in session.finish()) == fails
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if fails else 0)


def test_a_run_that_failed_anyhow_keeps_its_exit_code(tmp_path: Path) -> None:
    session = Session(tmp_path, 100.0)
    session.exitstatus = pytest.ExitCode.INTERRUPTED
    session.finish()
    assert session.exitstatus == pytest.ExitCode.INTERRUPTED


def test_a_kernel_that_ran_before_is_refused(tmp_path: Path) -> None:
    Session(tmp_path, root=tmp_path / "elsewhere").run((0, True))
    with pytest.raises(RuntimeError, match="kernel, step ran before lines were noted"):
        Session(tmp_path)


def test_processes_are_taken_together(tmp_path: Path) -> None:
    """Either of two workers leaves something out, both nothing; the controller runs no kernel."""
    controller = Session(tmp_path / "controller")
    for name, runs in {"a": ((4, True), (5, False)), "b": ((2, False),)}.items():
        worker = Session(tmp_path / name)
        worker.run(*runs)
        sent: dict[str, str] = {}
        worker.config.workeroutput = sent
        worker.plugin.pytest_sessionfinish(worker)
        text = sent["kernel arcs"].replace(str(tmp_path / name), str(tmp_path / "controller"))
        controller.plugin.pytest_testnodedown(SimpleNamespace(workeroutput={"kernel arcs": text}))
    controller.plugin.pytest_testnodedown(SimpleNamespace())  # one that crashed
    assert len(controller.finish()) == 1


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_option_fails_a_run_whose_worker_covers_too_little() -> None:
    test = "tests/kernels/test_module.py::test_the_output_of_a_batch_by_hand"
    done = python("pytest", test, "-n1", "-pno:cacheprovider", "--kernel-coverage-least=99")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    lines = (ROOT / "tbe_kernels/forward/pooled.py").read_text().splitlines()
    at = next(n for n, line in enumerate(lines, 1) if line.strip() == "if check is not None:")
    assert f"forward/pooled.py:{at} pooled_forward_kernel: the branch {at} -> {at + 1} never taken" in done.stdout
    assert " pooled_forward_kernel: never ran" not in done.stdout
    assert " unpooled_forward_kernel: never ran" in done.stdout
    assert "% is below the bound of 99 %." in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


def test_our_notes_are_what_a_tracer_sees() -> None:
    """Also where programs take turns, in scans, and where a kernel is rewritten: same files, lines and branches."""
    cases = "a-relaxed-countdown", "knobs-that-keep-a-small-table-out", "small-table-windows"
    done = python("tests.programs.traced", *cases)
    ran, *differences = done.stdout.splitlines()
    assert differences == [], done.stderr
    assert int(ran) >= 25
