"""Metamorphic relations: what two runs of one implementation have to say about each other, without a reference.

A relation makes two cases of one, such as a batch and the same batch with its samples in another order, and knows how
the results of one follow from those of the other. Both are run, and have to agree bit for bit (zeros of either sign are
one number, and so are NaNs). That can be asked where sums are exact, as is proved from the numbers
(`oracles.relations.exactness`), and of relations that leave the order of additions alone, if the implementation keeps
to it. What is not proved is not compared, and a case of which nothing is compared is reported as not checked.

On a GPU a kernel is compiled anew for other types and for addresses that are divisible otherwise, which changes how
lanes hold a row, and with it the order in which its columns are added up. So there two runs add up in one order only if
they are given the very same; otherwise a step has to add exact numbers over the columns too, or none.

That every routing gives the same is asked by `oracles.check`: all are held to one reference, and to each other where
they round with noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from corpus.case import Case
from corpus.store import running
from corpus.tensors import table_rows
from oracles.check import Status, Verdict, attempt
from oracles.implementation import Implementation, Trace
from oracles.relations.exactness import Exactness
from oracles.relations.pieces import take_apart
from oracles.relations.prerequisites import exact_values
from oracles.relations.rearranged import features, ids, rows, samples, stacked
from oracles.relations.rewritten import integers, layout, mean, ones, twice, units
from oracles.relations.split import apart, batches
from oracles.relations.steps import COUNTERS, Key, Pair, StepPieces, steps_of
from oracles.values.compare import SHOWN, Difference, Finding, Sharpness

#: From a case to two that say something about each other; None where the relation does not apply.
Relation = Callable[[Case], Pair | None]
RELATIONS: Mapping[str, Relation] = {
    "samples": samples,
    "ids": ids,
    "features": features,
    "rows": rows,
    "stacked": stacked,
    "apart": apart,
    "batches": batches,
    "ones": ones,
    "mean": mean,
    "units": units,
    "integers": integers,
    "layout": layout,
    "twice": twice,
}


def relate(
    relation: str, case: Case, implementation: Implementation, device: torch.device, journal: bool = False
) -> Verdict:
    """Run the two cases that a relation makes of `case`, on its own routing, and compare them.

    "not checked": the relation does not apply, the implementation does not support one of them, or nothing could be
    compared. `journal` as of `oracles.check.check`.
    """
    verdict = Verdict(case, implementation.name, relation=relation)
    pair = _pair(relation, case, implementation, device)
    reason = "the relation does not apply"
    if pair is not None:
        reason = implementation.supports(pair.case) or implementation.supports(pair.other) or ""
    if pair is None or reason:
        verdict.status, verdict.reason = Status.NOT_CHECKED, reason
        return verdict
    traces = []
    for one, paths in ((pair.case, verdict.paths), (pair.other, verdict.sweep_paths)):
        with running(case, journal):
            trace, verdict.findings = attempt(one, implementation, one.routing, device)
        verdict.runs += 1
        if trace is not None:
            paths.update(trace.paths)
            verdict.findings = [Finding(line) for line in trace.damage]
            traces.append(trace)
        if verdict.findings:
            break
    else:
        _compare(pair, traces[0], traces[1], implementation, device, verdict)
    if verdict.findings:
        verdict.status = Status.FAILED
    elif not any(sharpness.exact for sharpness in verdict.sharpness.values()):
        verdict.status, verdict.reason = Status.NOT_CHECKED, "nothing was proved to be exact"
    return verdict


def _pair(relation: str, case: Case, implementation: Implementation, device: torch.device) -> Pair | None:
    """With the values of the case, if their sums need not be exact."""
    pair = RELATIONS[relation](case)
    if pair is not None and pair.in_order and not _repeats(implementation, pair, device):
        return RELATIONS[relation](exact_values(case))
    return pair


def _one_program(pair: Pair, device: torch.device) -> bool:
    """Whether both runs execute the same instructions."""
    return device.type == "cpu" or pair.case is pair.other


def _repeats(implementation: Any, pair: Pair, device: torch.device) -> bool:
    """Whether both runs add up in the same order, as far as the implementation says so."""
    repeats = getattr(implementation, "repeats", None)
    said = repeats is not None and repeats(pair.case, pair.case.routing, device)
    return said and _one_program(pair, device)


def _compare(
    pair: Pair, trace: Trace, other: Trace, implementation: Any, device: torch.device, verdict: Verdict
) -> None:
    """Compare step by step what is proved exact, or all of it, up to the first step that differs."""
    if trace.refusal != other.refusal:
        verdict.findings = [Finding(f"the bounds check gave {trace.refusal}, and {other.refusal} the other way")]
        return
    try:
        have, want = steps_of(pair.case, trace), pair.back(steps_of(pair.other, other))
    except ValueError as error:
        verdict.findings = [Finding(str(error))]
        return
    if len(have) != len(want):
        verdict.findings = [Finding(f"{len(have)} steps, and {len(want)} the other way")]
        return
    all_of_it = pair.in_order and _repeats(implementation, pair, device)
    pieces = None if all_of_it else take_apart(pair.case)
    exactness = None if pieces is None else Exactness(pieces)
    weights = [table.values for table in table_rows(pair.case)]
    learns_exactly = all_of_it or (exactness is not None and (not pair.adds_changes or exactness.changes()))
    for (kind, number), mine, theirs in zip(pair.case.steps(), have, want, strict=False):
        exact = {"output": all_of_it, "psw_gradient": all_of_it}
        if exactness is not None and kind == "forward":
            exact["output"] = exactness.outputs(number, weights)
        if exactness is not None and kind == "backward":
            exact["psw_gradient"] = exactness.psw_gradients(number, weights)
            learns_exactly &= exactness.row_gradients(number)
            learns_exactly &= _one_program(pair, device) or exactness.columns(number)
        verdict.findings = _compare_step(mine, theirs, exact, learns_exactly, pair.case, verdict)
        if verdict.findings:
            return
        if kind == "backward":
            if not learns_exactly:
                return
            weights = [piece for (name, _), piece in mine.items() if name == "weights" and piece is not None]


def _compare_step(
    mine: StepPieces, theirs: StepPieces, exact: dict[str, bool], learns_exactly: bool, case: Case, verdict: Verdict
) -> list[Finding]:
    if mine.keys() != theirs.keys():
        only = sorted(mine.keys() ^ theirs.keys())
        return [Finding(f"one of the two runs gave no {', '.join(f'{name}[{i}]' for name, i in only)}")]
    findings = []
    for key, have in mine.items():
        want, name = theirs[key], key[0]
        if have is None or want is None or not (name in COUNTERS or exact.get(name, learns_exactly)):
            continue
        if name not in COUNTERS:
            tally = (case.optimizer.name, case.weights_dtype, verdict.relation, name)
            verdict.sharpness.setdefault(tally, Sharpness()).exact += have.numel()
        findings += _differences(verdict.relation, key, have, want)
    return findings


def _differences(relation: str, key: Key, have: Tensor, want: Tensor) -> list[Finding]:
    """A finding unless two pieces are the same numbers."""
    name = f"{key[0]}[{key[1]}]"
    if have.shape != want.shape or have.dtype != want.dtype:
        line = f"{name} is {tuple(have.shape)} {have.dtype}, and {tuple(want.shape)} {want.dtype} the other way"
        return [Finding(f"{relation}: {line}")]
    places = [tuple(map(int, at)) for at in ((have != want) & ~(have.isnan() & want.isnan())).nonzero()]
    if not places:
        return []
    shown = tuple(Difference(f"{name}{list(at)}", float(have[at]), float(want[at]), 0.0) for at in places[:SHOWN])
    return [Finding(f"{relation}: {len(places)} of {have.numel()} {name} differ the other way", shown)]
