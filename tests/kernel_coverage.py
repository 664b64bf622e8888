"""Branch coverage of `@triton.jit` functions: the pytest plugin behind `--kernel-coverage`.

`oracles.interpreter.arcs` notes in each process which line followed which; xdist workers send that home; coverage.py
knows which lines and branches there are and says at the end which never ran. Only bodies count: no signature, no
decorator, no docstring. A branch is the step from a line to one of several that may come next; `a if b else c` is none.
"""

from __future__ import annotations

import ast
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest

from oracles.interpreter import arcs
from tbe_kernels.aot.reach import PACKAGE, jit_files

Arcs = dict[str, set[tuple[int, int]]]


@dataclass(frozen=True)
class Covered:
    """What ran of some functions, out of how much, and a line for each thing that did not."""

    functions: int
    statements: tuple[int, int]
    branches: tuple[int, int]
    missing: tuple[str, ...]

    @property
    def percent(self) -> float:
        """Of statements and branches together, rounded down to hundredths: 100 is everything."""
        ran, count = (a + b for a, b in zip(self.statements, self.branches, strict=True))
        return math.floor(10_000 * ran / count) / 100

    def table(self) -> list[str]:
        """The summary; one line if nothing is missing."""
        counts = "{} of {} branches, {} of {} statements".format(*self.branches, *self.statements)
        return [f"{self.functions} @triton.jit functions: {self.percent:g} % ({counts})", *self.missing]


def covered(noted: Arcs, package: Path = PACKAGE) -> Covered:
    """What has run, as `noted` says, of the `@triton.jit` functions below `package`."""
    files = jit_files(package)
    known = functions(noted, list(files))
    regions = [(path, node, known[path][node.name]) for path, nodes in files.items() for node in nodes]
    totals = [region["summary"] for _, _, region in regions]
    return Covered(
        functions=len(regions),
        statements=(sum(t["covered_lines"] for t in totals), sum(t["num_statements"] for t in totals)),
        branches=(sum(t["covered_branches"] for t in totals), sum(t["num_branches"] for t in totals)),
        missing=tuple(
            f"{path.relative_to(package)}:{line} {node.name}: {what}"
            for path, node, region in regions
            for line, what in _missing(node, region)
        ),
    )


def functions(noted: Arcs, files: list[Path]) -> dict[Path, Any]:
    """What coverage.py makes of what ran: the part "functions" of each file in its JSON report."""
    arcs_of = {Path(file).resolve(): pairs for file, pairs in noted.items()}
    measured = coverage.Coverage(data_file=None, branch=True, config_file=False)
    measured.get_data().add_arcs({str(file.resolve()): arcs_of.get(file.resolve(), set()) for file in files})
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        measured.json_report([str(file) for file in files], outfile=str(report))
        found = json.loads(report.read_text())["files"]
    by_file = {Path(name).resolve(): file["functions"] for name, file in found.items()}
    return {file: by_file[file.resolve()] for file in files}


def _missing(node: ast.FunctionDef, region: Any) -> list[tuple[int, str]]:
    """What is missing, and at which line. Branches of lines that never ran go without saying."""
    if not region["executed_lines"]:
        return [(node.lineno, "never ran")]
    lines = region["missing_lines"]
    branches = [(a, "end" if b < 0 else b) for a, b in region["missing_branches"] if a not in lines]
    found = [(a, f"the branch {a} -> {b} never taken") for a, b in branches]
    if lines:
        found.append((lines[0], f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))} never ran"))
    return sorted(found)


class KernelCoverage:
    """Notes what runs, brings together what processes noted, prints it, and fails a run that covers less than `least`
    percent. To be made before any kernel runs."""

    def __init__(self, least: float | None, package: Path = PACKAGE) -> None:
        self._least, self._package = least, package
        self._noted, self._lines = Arcs(), list[str]()
        arcs.install(package)

    def _add(self, noted: Mapping[str, Iterable[Sequence[int]]]) -> None:
        for file, pairs in noted.items():
            self._noted.setdefault(file, set()).update((a, b) for a, b in pairs)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._add(json.loads(getattr(node, "workeroutput", {}).get("kernel arcs", "{}")))

    def pytest_sessionfinish(self, session: Any) -> None:
        self._add(arcs.noted(self._package))
        output = getattr(session.config, "workeroutput", None)
        if output is not None:  # an xdist worker: send them home
            output["kernel arcs"] = json.dumps({file: sorted(pairs) for file, pairs in self._noted.items()})
            return
        found = covered(self._noted, self._package)
        self._lines = found.table()
        if self._least is not None and found.percent < self._least:
            self._lines.append(f"Kernel coverage of {found.percent:g} % is below the bound of {self._least:g} %.")
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("kernel branch coverage")
        for line in self._lines:
            terminalreporter.write_line(line)
