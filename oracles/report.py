"""A failed verdict as text: what differs, where, on which route, in which case, and how to see it again."""

from __future__ import annotations

import platform
from pathlib import Path

import hypothesis
import numpy
import torch
import triton

from corpus.case import Case, bag_length
from corpus.tensors import ids_and_lengths
from oracles import OURS
from oracles.check import Verdict
from oracles.contract import run_lengths


def versions() -> str:
    """The versions that a result depends on, in one line."""
    return (
        f"python {platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}, "
        f"numpy {numpy.__version__}, hypothesis {hypothesis.__version__}"
    )


def report(verdict: Verdict, saved: Path | None, device: str, impl: str = OURS, unsaved: str = "") -> str:
    """The whole report, most telling line first. `impl`: the implementation as MODULE:ATTRIBUTE; `unsaved`: why the
    case could not be saved."""
    lines = [f"{verdict.implementation}: {verdict.findings[0].headline}"]
    for number, finding in enumerate(verdict.findings):
        if number:
            lines.append(finding.headline)
        for d in finding.differences:
            error = f"(error {abs(d.actual - d.expected):.3g}, allowed {d.allowed:.3g})"
            extra = f"  [{d.detail}]" if d.detail else ""
            lines.append(f"  {d.place} = {d.actual!r}, expected {d.expected!r} {error}{extra}")
    lines += [f"Case: {facts(verdict.case)}", f"Paths: {_paths(verdict)}", f"  {verdict.case!r}", versions()]
    if unsaved:
        lines.append(f"Not saved: {unsaved}; the case above is all there is of it")
    if saved is not None:
        again = f"Reproduce: python -m corpus replay {_short(saved)} --device {device}"
        again += f" --relation {verdict.relation}" if verdict.relation else ""
        again += f" --impl {impl}" if impl != OURS else ""
        lines += [f"Saved: {_short(saved)}", again]
    return "\n".join(lines)


def facts(case: Case) -> str:
    """Sizes of a case in one line."""
    parts = [f"{len(case.tables)} tables, {case.num_features} features"]
    for k in range(len(case.batches)):
        ids, lengths = ids_and_lengths(case, k)
        longest = max(run_lengths(case, k), default=0)
        empty = int((lengths == 0).sum())
        parts.append(f"batch {k}: {len(lengths)} bags ({empty} empty), {len(ids)} lookups, longest run {longest}")
    return "; ".join(parts)


def size(case: Case) -> tuple[int, int, int]:
    """(tables, bags, lookups): how small a shrunk case is."""
    bags = [bag for b in case.batches for f in b.features if isinstance(f, tuple) for bag in f]
    return len(case.tables), len(bags), sum(map(bag_length, bags))


def _paths(verdict: Verdict) -> str:
    ran = verdict.paths + verdict.sweep_paths
    return ", ".join(f"{name} {count}" for name, count in sorted(ran.items())) or "none"


def _short(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
