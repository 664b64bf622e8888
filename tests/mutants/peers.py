"""The ways of peers, as strategies and oracles of their own, to be measured on the same mutants.

Each draws what the peer's tests draw and compares as they compare: one plain tolerance, one step, default knobs. The
guards of the interpreter are lent to them, and so is the fp64 reference, which is better than what they compare with.
Batches are cut to what the interpreter runs in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from corpus.case import Batch, Case, Optimizer, Table, Values
from corpus.tensors import table_rows
from oracles.adapters.kernels import TbeKernels
from oracles.adapters.torch_reference import IMPLEMENTATION as REFERENCE
from oracles.check import Status, Verdict
from oracles.implementation import Backward, Forward, Trace
from oracles.interpreter.findings import GuardError
from oracles.values.compare import Finding

#: Lookups of one case, at the most.
MOST_LOOKUPS = 128
ROWWISE, ADAGRAD, SGD = (
    Optimizer("EXACT_ROWWISE_ADAGRAD", 0.5, eps=0.25),
    Optimizer("EXACT_ADAGRAD", 0.5, eps=0.25),
    Optimizer("EXACT_SGD", 0.5),
)


@dataclass(frozen=True)
class Peer:
    """`cases`: what its tests draw. `tolerance` of a case: absolute and relative. `touched_only`: other rows are not
    looked at. `source`: where that can be read."""

    name: str
    cases: st.SearchStrategy[Case]
    tolerance: Callable[[Case], float]
    touched_only: bool
    source: str


def uniform_ids(draw: st.DrawFn, rows: int, count: int) -> list[int]:
    """Ids of a generator of one seed, as in a test that calls numpy or torch beside its strategies."""
    seed = draw(st.integers(0, 2**16))
    return torch.randint(rows, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def bags_of(ids: list[int], lengths: list[int]) -> tuple[tuple[int, ...], ...]:
    """The ids cut into bags."""
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return tuple(tuple(ids[end - n : end]) for end, n in zip(ends, lengths, strict=True))


@st.composite
def fbgemm_cases(draw: st.DrawFn) -> Case:
    """One bag length for the whole batch, one table named by two features, widths that are multiples of 4."""
    tables_number, width = draw(st.integers(1, 5)), 4 * draw(st.integers(2, 32))
    features = tuple(sorted([*range(tables_number), tables_number // 2]))
    length = draw(st.integers(0, 20))
    most = max(1, MOST_LOOKUPS // (len(features) * max(1, length)))
    samples = draw(st.integers(1, min(128, most)))
    rows = 10 ** draw(st.integers(3, 5))
    weighted = draw(st.booleans())
    bags = tuple(bags_of(uniform_ids(draw, rows, samples * length), [length] * samples) for _ in features)
    return Case(
        tables=(Table(rows, width),) * tables_number,
        feature_table_map=features,
        batches=(Batch(bags, psw="trained" if weighted else "none"),),
        order=(0, 0),
        pooling_mode="SUM" if weighted else draw(st.sampled_from(("SUM", "MEAN"))),
        optimizer=draw(st.sampled_from((ROWWISE, ADAGRAD, SGD))),
        weights_dtype=draw(st.sampled_from(("float32", "float16"))),
        output_dtype=draw(st.sampled_from(("float32", "float16", "bfloat16"))),
        values=Values("general", draw(st.integers(0, 2**16)), spread=1),
    )


@st.composite
def torchrec_cases(draw: st.DrawFn) -> Case:
    """fp16 rows, bags of 8 to 12, one step."""
    tables_number, width = draw(st.integers(1, 3)), 4 * draw(st.sampled_from((4, 8, 16, 32)))
    samples = max(1, MOST_LOOKUPS // (10 * tables_number))  # 128 there
    rows = draw(st.sampled_from((100, 1000)))
    bags = []
    for _ in range(tables_number):
        lengths = draw(st.lists(st.integers(8, 12), min_size=samples, max_size=samples))
        bags.append(bags_of(uniform_ids(draw, rows, sum(lengths)), lengths))
    return Case(
        tables=(Table(rows, width),) * tables_number,
        feature_table_map=tuple(range(tables_number)),
        batches=(Batch(tuple(bags), psw=draw(st.sampled_from(("none", "given")))),),
        order=(0, 0),
        optimizer=ROWWISE,
        weights_dtype="float16",
        values=Values("general", draw(st.integers(0, 2**16)), spread=1),
    )


@st.composite
def textbook_cases(draw: st.DrawFn) -> Case:
    """One table, any width to 100, bags of any length, fp32."""
    rows, width, samples = draw(st.integers(10, 1000)), draw(st.integers(1, 100)), draw(st.integers(1, 8))
    lengths = draw(st.lists(st.integers(1, MOST_LOOKUPS // samples), min_size=samples, max_size=samples))
    return Case(
        tables=(Table(rows, width),),
        feature_table_map=(0,),
        batches=(Batch((bags_of(uniform_ids(draw, rows, sum(lengths)), lengths),)),),
        order=(0, 0),
        pooling_mode=draw(st.sampled_from(("SUM", "MEAN"))),
        optimizer=SGD,
        values=Values("general", draw(st.integers(0, 2**16)), spread=1),
    )


def _fbgemm_tolerance(case: Case) -> float:
    return 1e-4 if case.weights_dtype == case.output_dtype == "float32" else 1e-2


PEERS = {
    "fbgemm": Peer(
        "FBGEMM-like",
        fbgemm_cases(),
        _fbgemm_tolerance,
        True,
        "pytorch/FBGEMM fbgemm_gpu/test/tbe/training/backward_adagrad_common.py, 04d8370 (without its early return)",
    ),
    "torchrec": Peer("TorchRec-Triton-like", torchrec_cases(), lambda _: 1e-3, False, "TorchRec's Triton TBE, 2026-08"),
    "textbook": Peer("textbook", textbook_cases(), lambda _: 1e-5, False, "torch.testing.assert_close's fp32 default"),
}


def compared(peer: Peer, case: Case, implementation: TbeKernels) -> Verdict:
    """What the peer's comparison says of a case on the default knobs."""
    cpu = torch.device("cpu")
    verdict = Verdict(case, implementation.name)
    try:
        trace = implementation.run(case, {}, cpu)
    except GuardError as error:
        verdict.findings = [Finding(str(error), guard=error.guard)]
    except Exception as error:
        verdict.findings = [Finding(f"{type(error).__name__}: {error}", raised=type(error).__name__)]
    else:
        verdict.paths = trace.paths
        verdict.findings = [Finding(f"{name} differs") for name in _different(peer, case, trace)]
    verdict.status = Status.FAILED if verdict.findings else Status.PASSED
    return verdict


def _different(peer: Peer, case: Case, trace: Trace) -> list[str]:
    """Results that are not close: the output, the weights after the step and the gradient of per-sample weights."""
    tolerance, names = peer.tolerance(case), []
    expected_steps = REFERENCE.run(case, {}, torch.device("cpu")).steps
    if len(trace.steps) != len(expected_steps):
        return ["number of steps"]
    for ours, theirs in zip(trace.steps, expected_steps, strict=True):
        if isinstance(ours, Forward) and isinstance(theirs, Forward):
            names += ["output"] * (not _close(ours.output, theirs.output, tolerance))
        elif isinstance(ours, Backward) and isinstance(theirs, Backward):
            for before, now, expected in zip(table_rows(case), ours.weights, theirs.weights, strict=True):
                if peer.touched_only:
                    touched = (expected.nan_to_num() != before.values.nan_to_num()).any(dim=1)
                    now, expected = now[touched], expected[touched]
                names += ["weights"] * (not _close(now, expected, tolerance))
            one, other = ours.psw_gradient, theirs.psw_gradient
            if one is None or other is None:
                names += ["psw gradient"] * (one is not other)
            else:
                names += ["psw gradient"] * (not _close(one, other, tolerance))
    return names


def _close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    # Rows that nobody looks up hold NaN in cases of ours.
    return torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
