"""`python -m corpus replay [PATH | ID ...]`: run stored cases again, on the CPU (interpreter) or a GPU.

Exit codes: 0, every case holds (FIXED, for one from the inbox); 1, some case FAILED; 2, an ERROR: a file that holds no
case, a name that matches none, or nothing to run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from corpus.case import CaseError
from corpus.store import CASES, INBOX, StoredCase, find, load


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m corpus", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    replay = commands.add_parser("replay", help="run stored cases on every routing")
    replay.add_argument("cases", nargs="*", metavar="PATH|ID", help="files, folders or names; default: corpus/cases")
    replay.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    replay.add_argument("--impl", default="oracles.kernels:IMPLEMENTATION", metavar="MODULE:ATTRIBUTE")
    replay.add_argument("--sweep", choices=("own", "some", "all"), default="all", help="which routings to run")
    given = parser.parse_args(arguments)
    if given.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton
    return _replay(given)


def _replay(given: argparse.Namespace) -> int:
    try:
        paths = [path for wanted in given.cases or [str(CASES)] for path in find(wanted)]
        implementation = _attribute(given.impl)
    except (CaseError, ImportError, AttributeError, ValueError) as error:
        print(f"ERROR  {error}", file=sys.stderr)
        return 2
    if not paths:
        print(f"ERROR  no cases in {', '.join(given.cases) or CASES}", file=sys.stderr)
        return 2
    counts = {"ok": 0, "FIXED": 0, "FAILED": 0, "ERROR": 0, "not checked": 0}
    begin = time.perf_counter()
    for number, path in enumerate(paths, 1):
        outcome, seconds, text = _replay_one(path, implementation, given)
        counts[outcome] += 1
        print(f"[{number}/{len(paths)}] {outcome:6} {path.stem}  {seconds:.2f} s", flush=True)
        if text:
            print(text, flush=True)
    total = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    print(f"{total} in {time.perf_counter() - begin:.1f} s on {given.device}, {implementation.name}")
    return 2 if counts["ERROR"] else 1 if counts["FAILED"] else 0


def _replay_one(path: Path, implementation: Any, given: argparse.Namespace) -> tuple[str, float, str]:
    """(outcome, seconds, what to print below)."""
    import torch

    from oracles.check import check
    from oracles.report import report

    begin = time.perf_counter()
    try:
        stored: StoredCase = load(path)
    except CaseError as error:
        return "ERROR", 0.0, str(error)
    verdict = check(stored.case, implementation, torch.device(given.device), given.sweep)
    seconds = time.perf_counter() - begin
    if verdict.status == "failed":
        return "FAILED", seconds, report(verdict, path, given.device)
    if verdict.status == "not checked":
        return "not checked", seconds, verdict.reason
    return ("FIXED" if path.parent == INBOX else "ok"), seconds, ""


def _attribute(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"--impl: expected MODULE:ATTRIBUTE, got {name!r}")
    return getattr(importlib.import_module(module), attribute)


if __name__ == "__main__":
    sys.exit(main())
