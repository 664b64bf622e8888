"""The race detector: what it has to see, and the order of programs that it must not mistake for a race."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from corpus.case import Batch, Case, Table
from oracles import interpreter
from oracles.adapters.kernels import IMPLEMENTATION, TbeKernels
from oracles.check import Status, Sweep, check
from oracles.interpreter.concurrency.order import Order, knows
from oracles.interpreter.findings import GuardError
from oracles.shrink import shrink
from tests.mutants.fault import Fault
from tests.mutants.guarded import COUNTDOWN, RACES
from tests.mutants.plant import plant
from tests.mutants.search import CPU
from tests.programs.hunt import hunt

pytestmark = pytest.mark.skipif(not interpreter.interpreting(), reason="about the interpreter; needs --device cpu")


@triton.jit
def _hand_over(out, data, flags, FIRST: tl.constexpr, SECOND: tl.constexpr, RESET: tl.constexpr, LANES: tl.constexpr):
    """Program 0 stores and raises flag 0; 1 sees it, raises flag 1; 2 sees that and reads what 0 stored."""
    me = tl.program_id(0)
    at = tl.arange(0, LANES)
    if me == 0:
        tl.store(data + at, at.to(tl.float32))
        tl.debug_barrier()
        tl.atomic_add(flags, 1, sem=FIRST)
    elif me == 1:
        if RESET:
            tl.store(flags, 1)
        tl.atomic_add(flags, 0, sem="acquire")
        tl.debug_barrier()
        tl.atomic_add(flags + 1, 1, sem=SECOND)
    else:
        tl.atomic_add(flags + 1, 0, sem="acquire")
        tl.debug_barrier()
        tl.store(out + at, tl.load(data + at))


@triton.jit
def _within(data, KIND: tl.constexpr, BARRIER: tl.constexpr, LANES: tl.constexpr):
    """One program, whose lanes meet."""
    at = tl.arange(0, LANES)
    if KIND == "same lanes":
        tl.store(data + at, tl.load(data + at) + 1)
    elif KIND == "a block of one":
        tl.store(data + tl.arange(0, 1), tl.load(data + tl.arange(0, 1)) + 1)
    elif KIND == "neighbours":
        value = tl.load(data + at + 1)
        if BARRIER:
            tl.debug_barrier()
        tl.store(data + at, value)
    elif KIND == "two shapes":
        value = tl.load(data + tl.arange(0, LANES)[:, None] * 2 + tl.arange(0, 2)[None, :])
        if BARRIER:
            tl.debug_barrier()
        tl.store(data + at, tl.sum(value, axis=1))
    elif KIND == "one lane after another":
        tl.store(data, 1.0)
        tl.store(data, 2.0)
    elif KIND == "stored, then loaded by all":
        tl.store(data, 1.0)
        if BARRIER:
            tl.debug_barrier()
        tl.store(data + 1, tl.load(data))


@triton.jit
def _same_value(data):
    tl.store(data, 1.0)


@triton.jit
def _of_their_own(data, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    tl.store(data + at, tl.load(data + at) + 1)


def found(run) -> str:
    """What the detector says of a run, "" for nothing."""
    interpreter.install()
    from oracles.interpreter.concurrency import races

    try:
        with races.watching():
            run()
    except GuardError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("first", "second", "reset", "right"),
    [
        ("acq_rel", "acq_rel", False, True),
        ("release", "release", False, True),
        ("relaxed", "acq_rel", False, False),
        ("acquire", "acq_rel", False, False),
        ("acq_rel", "relaxed", False, False),
        ("acq_rel", "acq_rel", True, False),  # a plain store ends what was published, and is a race of its own
    ],
)
def test_what_is_handed_on_from_program_to_program(first: str, second: str, reset: bool, right: bool) -> None:
    def run() -> None:
        _hand_over[(3,)](torch.zeros(4), torch.zeros(4), torch.zeros(2, dtype=torch.int32), first, second, reset, 4)

    assert (found(run) == "") == right


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize(
    ("kind", "always_right"),
    [
        ("same lanes", True),
        ("a block of one", True),
        ("one lane after another", True),
        ("neighbours", False),
        ("two shapes", False),
        ("stored, then loaded by all", False),
    ],
)
def test_lanes_of_one_program(kind: str, always_right: bool, barrier: bool) -> None:
    message = found(lambda: _within[(1,)](torch.zeros(16), kind, barrier, 4))
    assert (message == "") == (always_right or barrier)
    if message:
        assert message.startswith("races:")
        assert "without a barrier between them" in message


def test_programs_of_their_own_do_not_race_and_those_that_share_do() -> None:
    assert found(lambda: _of_their_own[(4,)](torch.zeros(16), 4)) == ""
    message = found(lambda: _same_value[(2,)](torch.zeros(1)))
    for part in ("data[0]", "store of program 0", "store of program 1", "test_races.py:", "in _same_value"):
        assert part in message


def test_clocks_know_what_a_barrier_and_a_release_made_known() -> None:
    order = Order()
    one, two = order.of(1), order.of(2)
    block, scalar = one.number(), one.number()
    order.atomic(1, [8], "release")
    order.atomic(2, [8], "acquire")
    assert not knows(two.acquired, 1, block, False)  # no barrier lay between
    assert knows(two.acquired, 1, scalar, True)  # the releasing lane's own
    assert not knows(two.known, 1, scalar, True)  # not passed on yet
    two.barrier()
    assert knows(two.known, 1, scalar, True)
    one.barrier()
    order.atomic(1, [8], "release")
    order.atomic(2, [8], "relaxed")
    assert not knows(two.acquired, 1, block, False)
    order.atomic(2, [8], "acquire")
    assert knows(two.acquired, 1, block, False)


@pytest.mark.parametrize("fault", [*RACES, *COUNTDOWN], ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault_is_seen_and_shrinks(fault: Fault) -> None:
    interpreter.install()
    hunt(fault, TbeKernels(plant(*fault.edits)), guard="races")


def test_the_whole_sweep_ends_with_the_race_detector() -> None:
    """So a race that was stored is seen again when it is replayed; a schedule of the case is left aside."""
    planted = TbeKernels(plant(*RACES[0].edits))
    two_chunks = {"long_run_threshold": 1, "chunk_size": 1, "long_run_merge": "atomic"}
    batch = Batch((((0,), (0,)),))
    case = Case((Table(1, 1),), (0,), (batch,), (0, 0), routing=two_chunks, schedule=(1, 0))
    alone, whole = (check(case, planted, CPU, sweep) for sweep in ("own", Sweep.ALL))
    assert (alone.status, whole.status, whole.findings[0].guard) == ("passed", "failed", "races")
    assert whole.raced
    assert whole.met
    assert check(shrink(whole, planted, CPU).case, planted, CPU, Sweep.RACED).status is Status.FAILED
    true = check(case, IMPLEMENTATION, CPU, Sweep.RACED)
    assert (true.status, true.raced, true.runs) == ("passed", False, 2)
    assert true.watched > true.met > 0
    apart = check(replace(case, routing={}, schedule=()), IMPLEMENTATION, CPU, Sweep.RACED)
    assert (apart.runs, apart.met) == (1, 0)  # the other way round nothing can be different
    elsewhere = check(case, IMPLEMENTATION, torch.device("cuda"), Sweep.RACED)
    assert (elsewhere.status, elsewhere.reason) == ("not checked", "the race detector lives in the interpreter")
