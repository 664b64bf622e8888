"""Schedules: each fault of the countdown shows, the true kernel never fails, and what fails shrinks and replays."""

from __future__ import annotations

import dataclasses
import json
import time

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.case import Batch, Case, CaseError, Optimizer, Table
from corpus.store import from_json, to_json
from oracles import interpreter
from oracles.adapters.kernels import IMPLEMENTATION, TbeKernels
from oracles.check import Status, Sweep, check
from oracles.report import size
from oracles.shrink import shrink
from tests.mutants.fault import Fault
from tests.mutants.guarded import COUNTDOWN
from tests.mutants.plant import plant
from tests.programs.explore import CPU, explore

pytestmark = pytest.mark.skipif(not interpreter.interpreting(), reason="about the interpreter; needs --device cpu")
#: Schedules within which a fault of the countdown has to show, and how many the true kernel has to pass.
FEW, MANY = 50, 5000
LEAST_A_SECOND = 100


def fused(*runs: int, chunk: int = 2, dim: int = 4, programs: int = 2, optimizer: str = "EXACT_SGD") -> Case:
    """One table whose rows are looked up so often, merged by the fused kernel."""
    rows = len(runs)
    bag = tuple((row, n) for row, n in enumerate(runs))
    return Case(
        tables=(Table(rows=rows, dim=dim),),
        feature_table_map=(0,),
        batches=(Batch(features=((bag,),)),),
        order=(0, 0),
        optimizer=Optimizer(optimizer),
        routing={
            "long_run_threshold": 1,
            "chunk_size": chunk,
            "long_run_merge": "fused",
            "long_run_programs": programs,
        },
    )


TWO_CHUNKS = fused(4)
TRUE = (
    TWO_CHUNKS,
    fused(5, chunk=2, programs=3),
    fused(2, 3, 1, chunk=1, dim=3, programs=3),
    fused(4, 4, dim=17, optimizer="EXACT_ROWWISE_ADAGRAD"),
    fused(3, 2, chunk=1, dim=2, programs=4, optimizer="EXACT_ADAGRAD"),
)


def made(seed: int, count: int) -> list[tuple[int, ...]]:
    interpreter.install()
    from oracles.interpreter.concurrency.schedules import schedules

    return list(schedules(seed, count))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("fault", COUNTDOWN, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault_of_the_countdown_shows_and_shrinks(fault: Fault, seed: int) -> None:
    package = plant(*fault.edits)
    explored = explore(TWO_CHUNKS, made(seed, FEW), package)
    assert explored.verdict.status is Status.FAILED, f"not found in {FEW} schedules"
    assert explored.verdict.case.schedule
    assert not explored.verdict.findings[0].raised, explored.verdict.findings[0].headline
    if seed > 1:
        return
    begin = time.perf_counter()
    small = shrink(explored.verdict, TbeKernels(package), CPU)
    print(
        f"\n{fault.name}: {explored.schedules} schedules ({explored.what}), shrunk in "
        f"{time.perf_counter() - begin:.1f} s: {small.findings[0].headline}\n  {small.case}"
    )
    assert small.status is Status.FAILED
    assert size(small.case)[:2] == (1, 1)
    assert -(-size(small.case)[2] // small.case.routing.get("chunk_size", 256)) == 2
    assert 0 < len(small.case.schedule) <= 8
    # Replayed from its file it fails again, and the true kernel passes it.
    again, _ = from_json(to_json(small.case, "a schedule"))
    assert check(again, TbeKernels(package), CPU, Sweep.OWN).status is Status.FAILED
    assert check(again, IMPLEMENTATION, CPU, Sweep.OWN).status is Status.PASSED


def test_the_true_kernel_passes_every_schedule() -> None:
    schedules = seconds = launches = 0.0
    for seed, case in enumerate(TRUE):
        explored = explore(case, made(100 + seed, MANY // 2 if case is TWO_CHUNKS else MANY // (2 * len(TRUE) - 2)))
        assert explored.verdict.status is Status.PASSED, (explored.what, explored.verdict.case)
        schedules, seconds = schedules + explored.schedules, seconds + explored.seconds
        launches += explored.launches
    print(f"\n{schedules:.0f} schedules, {schedules / seconds:.0f} a second")
    assert schedules >= MANY
    assert launches == len(TRUE)


def test_a_hundred_schedules_a_second() -> None:
    """The best of some tries: the machine may be busy."""
    rates = []
    for seed in range(10):
        explored = explore(TWO_CHUNKS, made(seed, 100))
        rates.append(explored.schedules / explored.seconds)
    print(f"\nschedules a second: {', '.join(f'{rate:.0f}' for rate in rates)}")
    assert max(rates) >= LEAST_A_SECOND


@given(schedule=st.lists(st.integers(0, 12), max_size=24).map(tuple))
@settings(max_examples=40)
def test_a_schedule_is_part_of_the_case(schedule: tuple[int, ...]) -> None:
    case = dataclasses.replace(TRUE[1], schedule=schedule)
    assert from_json(to_json(case, ""))[0] == case
    assert check(case, IMPLEMENTATION, CPU, Sweep.OWN).status is Status.PASSED


def test_a_schedule_of_negative_choices_is_no_case() -> None:
    with pytest.raises(CaseError, match="schedule"):
        dataclasses.replace(TWO_CHUNKS, schedule=(0, -1))
    assert "schedule" not in json.loads(to_json(TWO_CHUNKS, ""))


@triton.jit
def _pass_a_note(note, seen, flag, SEM: tl.constexpr, LANES: tl.constexpr):
    """Program 0 writes a note and raises a flag; program 1 reads the flag, then the note twice."""
    at = tl.arange(0, LANES)
    if tl.program_id(0) == 0:
        tl.store(note + at, at + 1)
        tl.store(note + at, at + 2)
        tl.debug_barrier()
        tl.atomic_add(flag, 1, sem=SEM)
    else:
        raised = tl.atomic_add(flag, 0, sem=SEM)
        tl.debug_barrier()
        tl.store(seen + at, tl.load(note + at))
        tl.store(seen + LANES + at, tl.load(note + at))
        tl.store(seen + 2 * LANES, raised)


@triton.jit
def _mine(own, other):
    """Each program reads back what it wrote, and counts."""
    me = tl.program_id(0)
    tl.store(own + me, me + 1)
    tl.store(other + me, tl.load(own + me))
    tl.atomic_add(own + 2, 1, sem="relaxed")
    tl.atomic_add(own + 2, 1, sem="relaxed")


def outcomes(kernel, tensors: list[torch.Tensor], schedules: list[tuple[int, ...]], *args) -> set[tuple[int, ...]]:
    """What the last tensor holds after each schedule."""
    interpreter.install()
    from oracles.interpreter.concurrency.schedules import following

    out = set()
    for schedule in schedules:
        copies = [t.clone() for t in tensors]
        with following(schedule), np.errstate(all="ignore"):
            kernel[(2,)](*copies, *args)
        out.add(tuple(copies[1].tolist()))
    return out


@pytest.mark.parametrize("sem", ["acq_rel", "relaxed"])
def test_what_a_reader_may_see(sem: str) -> None:
    """With release and acquire a raised flag means that the note is there; without, old values show, but never in
    reverse order, and lanes may differ."""
    note, seen, flag = (torch.zeros(n, dtype=torch.int32) for n in (2, 5, 1))

    results = outcomes(_pass_a_note, [note, seen, flag], made(5, 1500), sem, 2)
    assert (2, 3, 2, 3, 1) in results
    assert (0, 0, 0, 0, 0) in results
    for one, two, later_one, later_two, raised in results:
        assert later_one >= one
        assert later_two >= two
        if raised and sem == "acq_rel":
            assert (one, two, later_one, later_two) == (2, 3, 2, 3)
    late = {r for r in results if r[4] and r[:4] != (2, 3, 2, 3)}
    assert bool(late) == (sem == "relaxed")
    if sem == "relaxed":
        assert {r[:2] for r in late} & {(1, 3), (2, 2)}  # one lane's store is there, the other's is not
        assert any(r[:2] == (0, 0) and r[2:4] == (2, 3) for r in late)


def test_a_program_sees_its_own_writes_and_no_add_is_lost() -> None:
    own, other = torch.zeros(3, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    assert outcomes(_mine, [own, other], made(6, 200)) == {(1, 2)}
    interpreter.install()
    from oracles.interpreter.concurrency.schedules import following

    for schedule in made(7, 200):
        copy = own.clone()
        with following(schedule):
            _mine[(2,)](copy, other)
        assert copy.tolist() == [1, 2, 4]
