"""The room that knows Triton's interpreter: known quirks are pinned, and every hook does what it is for.

A strict xfail that passes says that Triton mended a quirk; a control that fails says that a new Triton disarmed a hook.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from corpus.case import Batch, Case, Table
from oracles import interpreter
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.check import Status, Sweep, check
from oracles.interpreter import launch
from oracles.interpreter.faithful.casts import bf16_to_fp32, fp32_to_bf16, fp64_to_fp32_odd
from oracles.values.interval import round_to
from tbe_kernels.aot.compile import TRITON

pytestmark = pytest.mark.skipif(not interpreter.interpreting(), reason="about the interpreter; needs --device cpu")
HELPERS = Path(__file__).parents[1] / "programs"
PROGRAMS = 150
QUIRKS = (
    "bf16_cast_rounds",
    "fp64_to_bf16_keeps_the_value",
    "bf16_adds",
    "bf16_atomic_adds",
    "masked_lanes_are_not_zero",
    "int32_overflow_is_told",
    "a_block_and_a_scalar_make_a_mask",
    "histograms_drop_what_is_just_beyond",
)
#: Quirks that came with a later Triton than the first that interprets here, and those that went again.
SINCE = {"a_block_and_a_scalar_make_a_mask": (3, 9)}
BEFORE = {"histograms_drop_what_is_just_beyond": (3, 9)}


@pytest.fixture(scope="module")
def as_it_comes() -> dict[str, bool]:
    """What the interpreter does without our hooks."""
    done = subprocess.run(
        [sys.executable, str(HELPERS / "quirks.py")], capture_output=True, text=True, check=True, env={**os.environ}
    )
    return json.loads(done.stdout.splitlines()[-1])


def quirk_of(name: str) -> Any:
    """A parameter whose test has to fail in the Tritons that have the quirk."""
    is_there = SINCE.get(name, TRITON) <= TRITON < BEFORE.get(name, (99,))
    return pytest.param(name, marks=pytest.mark.xfail(is_there, reason="a quirk", strict=True))


@pytest.mark.parametrize("quirk", [quirk_of(name) for name in QUIRKS])
def test_quirk(quirk: str, as_it_comes: dict[str, bool]) -> None:
    assert as_it_comes[quirk]


@triton.jit
def _cast_kernel(out, x, SHAPE: tl.constexpr):
    at = tl.arange(0, SHAPE)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def _widen_kernel(out, x, SHAPE: tl.constexpr):
    at = tl.arange(0, SHAPE)
    tl.store(out + at, tl.load(x + at).to(tl.float32) * 2)


@triton.jit
def _masked_kernel(out, x, WITH_OTHER: tl.constexpr, SHAPE: tl.constexpr):
    at = tl.arange(0, SHAPE)
    if WITH_OTHER:
        value = tl.load(x + at, mask=at < SHAPE // 2, other=0)
    else:
        value = tl.load(x + at, mask=at < SHAPE // 2)
    tl.store(out + at, value)


numbers = st.floats(width=32, allow_nan=False) | st.floats(-4, 4, width=32)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@given(values=st.lists(numbers, min_size=8, max_size=8))
def test_casts_to_bf16_round_once_to_nearest_even(wide: torch.dtype, values: list[float]) -> None:
    interpreter.install()
    x = torch.tensor(values, dtype=torch.float64)
    if wide == torch.float64:
        x = x * (1 + 2.0**-30)
    x = x.to(wide)
    out = torch.zeros(8, dtype=torch.bfloat16)
    with np.errstate(all="ignore"):
        _cast_kernel[(1,)](out, x, 8)
    expected = round_to(x.to(torch.float64), torch.bfloat16)
    assert torch.equal(out.to(torch.float64), expected)


@pytest.mark.parametrize("pace", ["0", "1"])
def test_every_patch_is_taken_out_again(pace: str) -> None:
    """In a process of its own, twice: with the patches a fault is seen, without them nothing of Triton's is another."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.programs.patched"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "TBE_PACE": pace})
    first, *turns = ran.stdout.splitlines()
    assert first.endswith("seen: False, changed: []")
    assert turns == ["installed, seen: True, changed: True", "taken out, seen: False, changed: []"] * 2


def test_bf16_widens_exactly_for_every_pattern() -> None:
    interpreter.install()
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    out = torch.zeros(2**16)
    with np.errstate(all="ignore"):
        _widen_kernel[(1,)](out, x, 2**16)
    assert torch.equal(out.nan_to_num(7.5), (x.float() * 2).nan_to_num(7.5))
    bits = np.arange(2**16, dtype=np.uint16)
    kept = ~np.isnan(bf16_to_fp32(bits))
    assert np.array_equal(fp32_to_bf16(bf16_to_fp32(bits))[kept], bits[kept])


def test_rounding_to_odd_remembers_what_was_cut_off() -> None:
    tie, above = 1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-40  # half way between two bf16, and just beyond
    odd = fp64_to_fp32_odd(np.array([tie, above]))
    assert fp32_to_bf16(odd).tolist() == fp32_to_bf16(np.array([1.0, 1 + 2.0**-7], np.float32)).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [1, 2, 8])
def test_masked_lanes_without_other_are_poisoned(dtype: torch.dtype, shape: int) -> None:
    interpreter.install()
    x, out = torch.ones(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
    _masked_kernel[(1,)](out, x, False, shape)
    masked = out[shape // 2 :]
    assert bool((masked.isnan() if dtype.is_floating_point else masked == 7777).all())
    assert bool((out[: shape // 2] == 1).all())


@pytest.mark.parametrize("shape", [1, 2, 8])
def test_masked_lanes_with_other_are_left_alone(shape: int) -> None:
    """Also where `other` is a single zero, which Triton's builder does not pass on."""
    interpreter.install()
    x, out = torch.ones(shape), torch.full((shape,), torch.nan)
    _masked_kernel[(1,)](out, x, True, shape)
    assert out.tolist() == [1.0] * (shape // 2) + [0.0] * (shape - shape // 2)


def test_a_quicker_interpreter_gives_the_same_bits() -> None:
    """Single operations, and traces of stored cases, with and without `pace`, each in a process of its own."""

    def digest(pace: str) -> str:
        command, environment = [sys.executable, "-m", "tests.programs.digest"], {**os.environ, "TBE_PACE": pace}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    quick, plain = digest("1"), digest("0")
    assert sum("int32 torch.int64 __add__" in line for line in quick.splitlines()) >= 30
    assert len(quick.splitlines()) >= 20_000
    assert quick.splitlines() == plain.splitlines()


@triton.jit
def _each_program_kernel(out):
    tl.store(out + tl.program_id(0), tl.program_id(0))


def most_page_faults() -> int:
    """Of launches at every sixth depth of Python's stack; one of them begins where a piece of it ends."""
    out = torch.zeros(PROGRAMS, dtype=torch.int32)

    def deep(depth: int) -> int:
        if depth:
            return deep(depth - 1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        _each_program_kernel[(PROGRAMS,)](out)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    deep(0)
    return max(min(deep(depth), deep(depth)) for depth in range(0, 240, 6))


def test_a_launch_costs_the_same_at_any_depth_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where room is not made for it, some depth has a page fault in each program (CPython 3.11 to 3.13)."""
    interpreter.install()
    assert most_page_faults() < PROGRAMS
    monkeypatch.setattr(launch.run, "__code__", launch.run.__code__.replace(co_stacksize=32))
    if sys.version_info < (3, 14):
        assert most_page_faults() >= PROGRAMS


def test_what_numpy_warns_of_is_no_finding() -> None:
    """The largest of nothing but NaN, as lanes of an empty bag are; pytest makes the warning an error."""
    bags = ((), (0,))
    case = Case(
        (Table(1, 16),),
        (0,),
        (Batch((bags,), offsets_edits=((1, 1),)),),
        (0, 0),
        weights_dtype="float16",
        routing={"small_table": "always"},
    )
    verdict = check(case, IMPLEMENTATION, torch.device("cpu"), Sweep.OWN)
    assert verdict.status is Status.PASSED, verdict.findings
