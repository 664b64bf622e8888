"""The guards of a single access: bounds, overflow, and the controls that keep every guard armed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from corpus.case import Batch, Case, Table
from oracles import interpreter
from oracles.adapters.kernels import IMPLEMENTATION, TbeKernels
from oracles.check import Status, Sweep, check
from oracles.interpreter.findings import GuardError
from oracles.report import size
from oracles.shrink import shrink
from tests.mutants.fault import Fault
from tests.mutants.guarded import BOUNDS, HINTS, OVERFLOW, VALUES
from tests.mutants.plant import plant
from tests.mutants.search import CPU
from tests.programs.hunt import hunt

pytestmark = pytest.mark.skipif(not interpreter.interpreting(), reason="about the interpreter; needs --device cpu")


class Leaf(NamedTuple):
    rows: Tensor


class Tree(NamedTuple):
    leaf: Leaf


@triton.jit
def _shift(out, x, n, SHIFT: tl.constexpr, LANES: tl.constexpr):
    at = tl.arange(0, LANES)
    value = tl.load(x.leaf.rows + at + SHIFT, mask=at < n, other=0)  # named by findings
    tl.store(out + at, value, mask=at < n)


@triton.jit
def _either(out, x, y, shift):
    """Pointers whose argument is not known."""
    at = tl.arange(0, 2)
    tl.store(out + at, tl.load(tl.where(at == 0, x + at, y + at + shift)))


@triton.jit
def _wrap(out, x, row, D, LANES: tl.constexpr, DROPPED: tl.constexpr):
    """The product goes through a cast, a shift, a sum and a block before it is an address: 0 if it wrapped."""
    start = tl.load(row) * D
    if DROPPED:
        start = tl.where(start == 0, 1, start)
    start = (start.to(tl.int64) + 1) % 4 + tl.zeros([LANES], dtype=tl.int64)
    tl.store(out + tl.arange(0, LANES), tl.load(x + start))


def shift_by(shift: int, x: Tensor, n: int = 4) -> None:
    interpreter.install()
    _shift[(1,)](torch.zeros(8), Tree(Leaf(x)), n, shift, 8)


def test_a_finding_names_kernel_argument_program_line_and_distance() -> None:
    with pytest.raises(GuardError) as caught:
        shift_by(3, torch.arange(5.0))
    message = str(caught.value)
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# named by findings" in text)
    for part in ("load 1 element behind the end of x.leaf.rows float32[5]", "2 lanes", "_shift", "program (0, 0, 0)"):
        assert part in message
    assert f"suite/test_bounds.py:{line}" in message


@pytest.mark.parametrize("shift", [-(2**50), -(2**31), 2**31, 2**50])
def test_a_far_address_is_a_finding_and_kills_nobody(shift: int) -> None:
    with pytest.raises(GuardError, match="bounds"):
        shift_by(shift, torch.arange(5.0))


@pytest.mark.parametrize(
    ("view", "right"),
    [
        (lambda b: b[4:8], True),
        (lambda b: b[4:7], False),  # the buffer goes on, the view does not
        (lambda b: b.view(4, 4)[:, 0].as_strided((4,), (1,)), True),
        (lambda b: b.view(4, 4)[:2, :2], False),  # elements 2 and 3 lie in the gap
        (lambda b: b.view(4, 4)[:, :1].expand(4, 4), False),
        (lambda b: b.view(4, 4).t(), True),
        (lambda b: b.view(2, 8).t()[:, :1], True),
        (lambda b: b[:0], False),
        (lambda b: b[:1].expand(4), False),
    ],
)
def test_what_a_view_holds_is_exact(view, right: bool) -> None:
    buffer = torch.arange(16.0)
    if right:
        shift_by(0, view(buffer))
    else:
        with pytest.raises(GuardError, match="bounds"):
            shift_by(0, view(buffer))


def test_a_pointer_of_unknown_origin_may_point_into_any_argument() -> None:
    interpreter.install()
    out, x, y = torch.zeros(2), torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    _either[(1,)](out, x, y, 0)
    assert out.tolist() == [1.0, 4.0]
    with pytest.raises(GuardError, match="bounds"):
        _either[(1,)](out, x, y, 2**20)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("row", [2**20, 3])
def test_an_overflow_counts_where_it_reaches_an_address(row: int, dropped: bool) -> None:
    interpreter.install()

    def run() -> None:
        _wrap[(1,)](torch.zeros(2), torch.zeros(4), torch.tensor([row], dtype=torch.int32), 2**12, 2, dropped)

    if row == 3 or dropped:
        run()
    else:
        with pytest.raises(GuardError, match="overflow"):
            run()
        run_plain = torch.zeros(2), torch.zeros(4), torch.tensor([3], dtype=torch.int32)
        _wrap[(1,)](*run_plain, 2**12, 2, False)  # and the next launch is a new one


@pytest.mark.parametrize("fault", [*BOUNDS, *HINTS, *VALUES], ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault_is_seen_and_shrinks(fault: Fault) -> None:
    hunt(fault, TbeKernels(plant(*fault.edits)), fault.guard)


def big_table(rows: int = 2**21 + 2, dim: int = 1024) -> Case:
    """A table beyond 2**31 elements of lazily mapped memory, of which a few rows are in use."""
    ids = (rows - 1, 0, rows - 2, rows // 2)
    return Case(
        tables=(Table(rows=rows, dim=dim),),
        feature_table_map=(0,),
        batches=(Batch(features=((ids, (rows - 1,)),)),),
        order=(0, 0),
        weights_dtype="float16",
        indices_dtype="int32",
    )


def test_tables_beyond_2_to_the_31_elements_and_int32_ids() -> None:
    assert big_table().tables[0].rows * big_table().tables[0].dim > 2**31
    verdict = check(big_table(), IMPLEMENTATION, CPU, Sweep.OWN)
    assert verdict.status is Status.PASSED, verdict.findings


def test_overflow_of_row_times_D_is_seen_and_shrinks() -> None:
    implementation = TbeKernels(plant(*OVERFLOW.edits))
    verdict = check(big_table(), implementation, CPU, Sweep.OWN)
    assert verdict.status is Status.FAILED
    assert verdict.findings[0].guard == OVERFLOW.guard
    small = shrink(verdict, implementation, CPU)
    assert small.findings[0].guard == OVERFLOW.guard
    assert "weights" in small.findings[0].headline
    assert size(small.case)[2] == 1
