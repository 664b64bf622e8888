"""`python -m tests.mutants.whole --bank NAME`: which faults that the search left alive the unit tests see.

Each is planted in a copy of the whole repository, whose tests then run until one fails: those of the kernels and the
module, and the compile gate. Left out are property tests, which the search stands for, and tests that plant faults
themselves, since those name the text that has been changed. The copy without a fault has to pass first.

A fault that cannot be imported is an error, and counts for nothing. Exit codes: 0; 2, if the copy without one fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import ledger, strangers
from tests.mutants.bank import Mutant
from tests.mutants.plant import Change

ROOT = Path(__file__).parents[2]
#: What the search stands for.
SEARCHED = ("test_contract", "test_metamorphic", "test_races", "test_schedules", "test_corpus")
PLANTING = re.compile(r"\bplant\w*\(|tests\.mutants")
#: The folders and files that tests need.
NEEDED = ("tbe_kernels", "corpus", "strategies", "oracles", "tests", "pyproject.toml", "README.md", "CONTRIBUTING.md")
UNIT_TESTS = "unit tests"
#: Of files that plant faults too, what is about right kernels alone.
RIGHT = ("tests/kernels/test_machine.py",)
NO_FAULTS = ("-k", "not test_a_fault_of_the_module_is_found")


class ImportFailedError(Exception):
    """A fault with which the package cannot even be imported. Never one that a test saw."""


def unit_tests() -> list[str]:
    """The test files that say whether a fault is seen."""
    files = [*sorted((ROOT / "tests" / "kernels").glob("test_*.py")), ROOT / "tests" / "suite" / "test_registry.py"]
    return [
        str(file.relative_to(ROOT))
        for file in files
        if file.stem not in SEARCHED and (str(file.relative_to(ROOT)) in RIGHT or not PLANTING.search(file.read_text()))
    ]


def first_failure(edits: Sequence[Change]) -> str:
    """The first test that fails, or what else the gate says; "" if all is well. Raises ImportFailedError."""
    with tempfile.TemporaryDirectory(prefix="whole-") as folder:
        copy = Path(folder)
        for name in NEEDED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        for edit in edits:
            file = copy / "tbe_kernels" / edit.file
            file.write_text(edit.apply(file.read_text() if file.exists() else ""))
        environment = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("TRITON_INTERPRET", None)
        imports = [sys.executable, "-c", "import tbe_kernels"]
        ran = subprocess.run(imports, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ImportFailedError(ran.stderr.strip().splitlines()[-1])
        tests = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *NO_FAULTS, *unit_tests()]
        ran = subprocess.run(tests, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
            return failed[0] if failed else f"pytest ended with {ran.returncode}"
        gate = [sys.executable, "-m", "tbe_kernels", "compile", "--target", "sm_90", "--jobs", "1"]
        ran = subprocess.run(gate, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        return "the compile gate" if ran.returncode else ""


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.whole", description=__doc__)
    parser.add_argument("--bank", required=True, choices=strangers.NAMES)
    parser.add_argument("--only", default="", metavar="TEXT", help="in the name")
    parser.add_argument("--all", action="store_true", help="those that a unit test is known to see, too")
    given = parser.parse_args(arguments)
    stored = ledger.stored(given.bank)
    left: list[Mutant] = [
        m
        for m in strangers.bank(given.bank)
        if given.only in m.id and (stored[m.id].status != "killed" or (given.all and stored[m.id].by == UNIT_TESTS))
    ]
    control = first_failure(())
    if control:
        print(f"without a fault: {control}", file=sys.stderr)
        return 2
    for number, mutant in enumerate(left, 1):
        try:
            seen = first_failure(mutant.edits)
        except ImportFailedError as error:
            print(f"[{number}/{len(left)}] ERROR {error}: {mutant.id}", flush=True)
            continue
        print(f"[{number}/{len(left)}] {seen or 'alive'}: {mutant.id}", flush=True)
        status, by = ("killed", UNIT_TESTS) if seen else ("alive", "")
        outcome = dataclasses.replace(stored[mutant.id], status=status, by=by)
        ledger.store([outcome], [m.id for m in strangers.bank(given.bank)], given.bank)
    return 0


if __name__ == "__main__":
    sys.exit(main())
