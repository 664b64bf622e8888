"""Lookups as a machine draws them, and those whose backward is still to come."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor

from corpus.case import Batch, Case, Values
from corpus.tensors import BatchTensors, batch_tensors
from tests.machine.twin import Twin


@st.composite
def lookup_cases(draw: DrawFn, bare: Case, trained: bool = False, refused: bool = False) -> Case:
    """A case of one small batch. With FATAL, one that is refused or, by default, one that is not."""
    fatal, ranks = bare.bounds_check_mode == "FATAL", draw(st.sampled_from((0, 0, 1, 2)))
    B, features, sizes = draw(st.integers(1, 2)), [], []
    for number, table in enumerate(bare.feature_table_map):
        rows = bare.tables[table].rows
        ids = st.integers(-1, rows - 1) if fatal else st.integers(-2, rows)
        of_ranks = tuple(draw(st.integers(0, 2)) for _ in range(ranks))
        bags = [tuple(draw(st.lists(ids, max_size=3))) for _ in range(sum(of_ranks) if ranks else B)]
        if refused and number == 0:
            bags = [(*bag, rows) for bag in bags]
        features.append(tuple(bags))
        sizes.append(of_ranks)
    psw = "none"
    wanted: tuple[int, ...] = ()
    if bare.pooling_mode == "SUM":
        psw = "trained" if trained else draw(st.sampled_from(("none", "trained", "given", "trained")))
        if psw != "none" and not draw(st.integers(0, 3)):
            wanted = tuple(draw(st.integers(0, 1)) for _ in features)
    batch = Batch(
        features=tuple(features),
        psw=psw,
        feature_requires_grad=wanted,
        batch_size_per_feature_per_rank=tuple(sizes) if ranks else (),
    )
    values = Values(mode=draw(st.sampled_from(("exact", "exact", "general"))), seed=draw(st.integers(0, 63)))
    return dataclasses.replace(bare, batches=(batch,), order=(0,), values=values)


def arguments(case: Case, tensors: BatchTensors, psw: Tensor | None) -> dict[str, Any]:
    """What the module is called with."""
    return {
        "indices": tensors.indices,
        "offsets": tensors.offsets,
        "per_sample_weights": psw,
        "batch_size_per_feature_per_rank": case.batches[0].batch_size_per_feature_per_rank or None,
        "feature_requires_grad": tensors.feature_requires_grad,
    }


def tensors_of(case: Case) -> BatchTensors:
    """The tensors of a case's batch, on the host."""
    tensors = batch_tensors(case, 0, torch.device("cpu"))
    # A step under a scale is left out for a NaN anywhere; what empty bags get is tried by the main job.
    tensors.grad_output = tensors.grad_output.nan_to_num(1.0)
    return tensors


@dataclass
class Pending:
    """A lookup that has been made. `leaf`: its per-sample weights where they are trained; `psw`: what was passed, which
    may be no leaf. `twin`: of the tensors that it was made with; None for what a reentrant checkpoint makes anew.
    `steps`: whether the tables were trained then."""

    case: Case
    tensors: BatchTensors
    output: Tensor
    leaf: Tensor | None
    psw: Tensor | None
    twin: Twin | None
    steps: bool
    way: str
    freed: bool = False
