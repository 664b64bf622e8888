"""Replays stored cases: finds them, checks each on its sweep of routings, and says how it went.

A face of the project like `__main__`, in a module of its own so that processes can import it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import multiprocessing
import os
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from corpus.case import CaseError
from corpus.store import CASES, INBOX, find, load
from oracles.check import Status

#: (what happened, seconds, what to print below)
Replayed = tuple[str, float, str]
#: A process of its own is worth its start for so many cases.
FEWEST = 8


def replay(given: Namespace) -> int:
    """Replay what the command line names; returns the exit code."""
    try:
        paths = [path for wanted in given.cases or [str(CASES)] for path in find(wanted)]
        name = attribute(given.impl).name
        if given.relation:
            _demand_relation(given.relation)
    except (CaseError, ImportError, AttributeError, ValueError) as error:
        print(f"ERROR  {error}", file=sys.stderr)
        return 2
    if not paths:
        print(f"ERROR  no cases in {', '.join(given.cases) or CASES}", file=sys.stderr)
        return 2
    counts = {"ok": 0, "FIXED": 0, "FAILED": 0, "ERROR": 0, "not checked": 0}
    begin = time.perf_counter()
    for number, (path, (outcome, seconds, text)) in enumerate(zip(paths, _outcomes(paths, given), strict=True), 1):
        counts[outcome] += 1
        print(f"[{number}/{len(paths)}] {outcome:6} {path.stem}  {seconds:.2f} s", flush=True)
        if text:
            print(text, flush=True)
    total = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    print(f"{total} in {time.perf_counter() - begin:.1f} s on {given.device}, {name}")
    return 2 if counts["ERROR"] else 1 if counts["FAILED"] else 0


def _demand_relation(name: str) -> None:
    from oracles.relations.relate import RELATIONS

    if name not in RELATIONS:
        raise ValueError(f"--relation: expected one of {', '.join(RELATIONS)}, got {name!r}")


def _outcomes(paths: list[Path], given: Namespace) -> Iterator[Replayed]:
    """The outcome of each case, in order, as they come in."""
    options = {name: getattr(given, name) for name in ("impl", "device", "sweep", "relation")}
    replay_one = functools.partial(_replay_one, **options)
    jobs = given.jobs or (1 if given.device == "cuda" else os.cpu_count() or 1)
    if min(jobs, len(paths) // FEWEST) <= 1:
        yield from map(replay_one, paths)
        return
    # On a CPU the processes begin with what this one has imported; a process that uses a GPU cannot be copied.
    start = "spawn" if given.device == "cuda" else "fork"
    with ProcessPoolExecutor(jobs, multiprocessing.get_context(start), initializer=gc.freeze) as pool:
        yield from pool.map(replay_one, paths)


def _replay_one(path: Path, *, impl: str, device: str, sweep: str, relation: str | None) -> Replayed:
    import torch

    from oracles.check import check
    from oracles.relations.relate import relate
    from oracles.report import report

    begin = time.perf_counter()
    try:
        stored = load(path)
    except CaseError as error:
        return "ERROR", 0.0, str(error)
    try:
        if relation:
            verdict = relate(relation, stored.case, attribute(impl), torch.device(device))
        else:
            verdict = check(stored.case, attribute(impl), torch.device(device), sweep)
    except Exception:  # not the implementation's, which is a finding: no tensors or no reference of this case
        return "ERROR", time.perf_counter() - begin, f"{path}: cannot be judged\n{traceback.format_exc()}"
    seconds = time.perf_counter() - begin
    if verdict.status is Status.FAILED:
        return "FAILED", seconds, report(verdict, path, device, impl)
    if verdict.status is Status.NOT_CHECKED:
        return "not checked", seconds, verdict.reason
    return ("FIXED" if path.parent == INBOX else "ok"), seconds, ""


def attribute(name: str) -> Any:
    """What MODULE:ATTRIBUTE names. Raises ValueError, ImportError or AttributeError."""
    module, _, member = name.partition(":")
    if not member:
        raise ValueError(f"--impl: expected MODULE:ATTRIBUTE, got {name!r}")
    return getattr(importlib.import_module(module), member)
