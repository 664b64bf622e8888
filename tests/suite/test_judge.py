"""What the judge must not let pass: each way in which a trace can be wrong, planted in a right one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from corpus.case import Batch, Case, Optimizer, Table, Values
from oracles.adapters.kernels import TbeKernels
from oracles.adapters.sweep import MERGES
from oracles.adapters.torch_reference import IMPLEMENTATION, TorchReference
from oracles.check import Status, Sweep, check
from oracles.contract import Refusal
from oracles.implementation import Backward, Forward, Routing, Trace
from oracles.values.interval import neighbours
from strategies.cases import cases

CASE = Case(
    tables=(Table(4, 2), Table(3, 3)),
    feature_table_map=(0, 1),
    batches=(
        Batch((((0, 1, 1), ()), ((2,), (-1, 0))), psw="trained"),
        Batch((((3,), (1,)), ((9,), ())), psw="given"),
    ),
    order=(0, 0, 1, 1),
    optimizer=Optimizer("EXACT_ROWWISE_ADAGRAD", 0.5, eps=0.25),
    values=Values(grad_bits=2),
)
CPU = torch.device("cpu")
Spoil = Callable[[Trace], None]


class Spoiled(TorchReference):
    """The reference, whose trace somebody changes before the judge sees it."""

    def __init__(self, spoil: Spoil) -> None:
        self.spoil = spoil

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """A right trace, spoiled."""
        trace = copy.deepcopy(super().run(case, routing, device))
        self.spoil(trace)
        return trace


def bump(tensor: torch.Tensor, *place: int) -> None:
    """The next number up."""
    tensor[place] = torch.nextafter(tensor[place], torch.tensor(torch.inf, dtype=tensor.dtype))


def forward(trace: Trace, number: int = 0) -> Forward:
    """The forward of a batch."""
    step = trace.steps[2 * number]
    assert isinstance(step, Forward)
    return step


def backward(trace: Trace, number: int = 0) -> Backward:
    """The backward of a batch."""
    step = trace.steps[2 * number + 1]
    assert isinstance(step, Backward)
    return step


def _narrow_output(trace: Trace) -> None:
    forward(trace).output = forward(trace).output.half()


def _shorten_output(trace: Trace) -> None:
    forward(trace).output = forward(trace).output[:1]


def _lose_psw_gradient(trace: Trace) -> None:
    backward(trace).psw_gradient = None


def _invent_psw_gradient(trace: Trace) -> None:
    backward(trace, 1).psw_gradient = torch.zeros(3)


def _nan_in_an_empty_bag(trace: Trace) -> None:
    forward(trace).output[1, 0] = torch.nan


def _leave_a_gradient(trace: Trace) -> None:
    backward(trace).weights_grad_is_none = False


def _bump_psw_gradient(place: int) -> Spoil:
    def spoil(trace: Trace) -> None:
        gradient = backward(trace).psw_gradient
        assert gradient is not None
        bump(gradient, place)

    return spoil


def _lose_a_step(trace: Trace) -> None:
    trace.steps.pop()


def _step_twice(trace: Trace) -> None:
    backward(trace).weights[0][1] *= 2


def _set(step: Callable[[Trace], object], name: str, value: object) -> Spoil:
    return lambda trace: setattr(step(trace), name, value)


SPOILS: dict[str, tuple[Spoil, str]] = {
    "an output one ulp off": (lambda t: bump(forward(t).output, 0, 0), "1 of 10 outputs, batch 0"),
    "a NaN for an empty bag": (_nan_in_an_empty_bag, "outputs"),
    "an output of the wrong dtype": (_narrow_output, "output is"),
    "an output of the wrong shape": (_shorten_output, "output is"),
    "a touched weight one ulp off": (lambda t: bump(backward(t).weights[0], 1, 1), "weights of table 0"),
    "an untouched weight changed": (lambda t: bump(backward(t).weights[0], 3, 0), "untouched rows changed"),
    "a touched state one ulp off": (lambda t: bump(backward(t).state[0]["momentum1"], 1), "momentum1 of table 0"),
    "an untouched state changed": (lambda t: bump(backward(t).state[1]["momentum1"], 1), "untouched rows changed"),
    "a psw gradient one ulp off": (_bump_psw_gradient(2), "psw gradients"),
    "a psw gradient for a pruned id": (_bump_psw_gradient(4), "psw gradients"),
    "no psw gradient": (_lose_psw_gradient, "per_sample_weights.grad has shape None"),
    "a psw gradient nobody asked for": (_invent_psw_gradient, "nobody asked for it"),
    "a warning not counted": (_set(lambda t: forward(t, 1), "warnings", 0), "bounds_check_warning = 0, expected 1"),
    "a backward not counted": (_set(lambda t: backward(t, 1), "iterations", 1), "iter = 1, expected 2"),
    "a gradient left on the weights": (_leave_a_gradient, "weights.grad is not None"),
    "damage": (lambda t: t.damage.append("something was overwritten"), "something was overwritten"),
    "a step missing": (_lose_a_step, "expected the backward of batch 1, found nothing"),
    "a second step on one row": (_step_twice, "weights of table 0"),
}


def test_the_right_trace_passes() -> None:
    verdict = check(CASE, IMPLEMENTATION, CPU)
    assert (verdict.status, verdict.findings, verdict.changed) == ("passed", [], True)


@pytest.mark.parametrize("name", SPOILS)
def test_a_spoiled_trace_fails(name: str) -> None:
    spoil, headline = SPOILS[name]
    verdict = check(CASE, Spoiled(spoil), CPU)
    assert verdict.status is Status.FAILED
    assert headline in verdict.findings[0].headline


class Rerouted(TorchReference):
    """Two routings, of which the second's trace is changed."""

    def __init__(self, spoil: Spoil) -> None:
        self.spoil = spoil

    def routings(self, case: Case, device: torch.device) -> Iterator[Routing]:
        """Two."""
        yield {}
        yield {"second": True}

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """A right trace, changed on the second routing."""
        trace = copy.deepcopy(super().run(case, routing, device))
        if routing:
            self.spoil(trace)
        return trace


#: Weights that are integers take a step of 1 / 128 times an integer: hardly one of them is a bf16 afterwards.
ROUNDED = replace(
    CASE,
    batches=CASE.batches[:1],
    order=(0, 0),
    optimizer=Optimizer(learning_rate=2.0**-7),
    weights_dtype="bfloat16",
    stochastic_rounding=True,
    values=Values(weight_bits=7),
)


def _to_the_other_neighbour(trace: Trace) -> None:
    """Row 1 of table 0: of the two bf16 beside what fp32 weights become, the one that is not there."""
    wide = TorchReference().run(replace(ROUNDED, weights_dtype="float32"), {}, CPU)
    weights, exact = backward(trace).weights[0], backward(wide).weights[0][1]
    ends = torch.stack(neighbours(exact.to(torch.float64), torch.bfloat16)).to(torch.bfloat16)
    weights[1] = torch.where(weights[1] == ends[0], ends[1], ends[0])


def _one_neighbour_too_far(trace: Trace) -> None:
    _to_the_other_neighbour(trace)
    row = backward(trace).weights[0][1]
    row += torch.where(row > 0, 1.0, -1.0).to(torch.bfloat16)


def test_either_neighbour_passes_and_no_other() -> None:
    assert check(ROUNDED, Spoiled(_to_the_other_neighbour), CPU).findings == []
    assert check(ROUNDED, Spoiled(_one_neighbour_too_far), CPU).status is Status.FAILED
    assert (
        check(replace(ROUNDED, stochastic_rounding=False), Spoiled(_to_the_other_neighbour), CPU).status
        is Status.FAILED
    )


def test_routings_have_to_round_alike() -> None:
    alike = check(ROUNDED, Rerouted(lambda trace: None), CPU)
    assert (alike.status, alike.runs) == ("passed", 2)
    assert alike.sharpness["EXACT_SGD", "bfloat16", "", "alike"].exact > 0
    verdict = check(ROUNDED, Rerouted(_to_the_other_neighbour), CPU)
    assert "weights of table 0 rounded otherwise than on another routing, batch 0" in verdict.findings[0].headline
    assert verdict.findings[0].across
    assert verdict.case.routing == {"second": True}
    # Where it is not certain which number is stored, routings may differ.
    general = replace(ROUNDED, values=Values("general"))
    assert check(general, Rerouted(lambda trace: None), CPU).status is Status.PASSED


FATAL = Case((Table(2, 1),), (0,), (Batch((((0,), (5,)),)),), (0, 0), bounds_check_mode="FATAL", optimizer=Optimizer())


def test_a_refusal_has_to_name_the_right_place_and_change_nothing() -> None:
    assert check(FATAL, IMPLEMENTATION, CPU).status is Status.PASSED
    right = Refusal("indices", 0, 1, 5, 2, 1)

    def wrong_bag(trace: Trace) -> None:
        trace.refusal = Refusal("indices", 0, 0, 5, 2, 1)

    def no_refusal(trace: Trace) -> None:
        trace.refusal = None

    def changed(trace: Trace) -> None:
        last = trace.steps[-1]
        assert isinstance(last, Backward)
        bump(last.weights[0], 0, 0)

    for spoil, headline in ((wrong_bag, str(right)), (no_refusal, "gave None"), (changed, "after refusal changed")):
        verdict = check(FATAL, Spoiled(spoil), CPU)
        assert verdict.status is Status.FAILED
        assert headline in verdict.findings[0].headline


class Crashing(TorchReference):
    """Raises in the second routing of its two."""

    def routings(self, case: Case, device: torch.device) -> Iterator[Routing]:
        """Two, of which the second is bad."""
        yield {}
        yield {"crash": True}

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """A right trace, or a crash."""
        if routing.get("crash"):
            raise ZeroDivisionError("planted")
        return super().run(case, routing, device)


def test_a_crash_is_a_finding_and_its_routing_is_pinned() -> None:
    verdict = check(CASE, Crashing(), CPU)
    assert verdict.status is Status.FAILED
    assert verdict.findings[0].raised == "ZeroDivisionError"
    assert verdict.case.routing == {"crash": True}


class Choosy(TorchReference):
    """Supports nothing, and would crash if it was run."""

    def supports(self, case: Case) -> str | None:
        """Why not."""
        return "it does not want to"

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """Never called."""
        raise AssertionError


def test_an_unsupported_case_is_not_checked_and_not_passed() -> None:
    verdict = check(CASE, Choosy(), CPU)
    assert (verdict.status, verdict.reason) == ("not checked", "it does not want to")


class Lazy(TorchReference):
    """Claims a path that it never runs."""

    def sweep_paths(self, case: Case) -> list[set[str]]:
        """The promise."""
        return [{"backward.long_run"}]


def test_a_sweep_that_never_ran_its_path_fails() -> None:
    verdict = check(CASE, Lazy(), CPU)
    assert verdict.status is Status.FAILED
    assert "the sweep ran none of ['backward.long_run']" in verdict.findings[0].headline


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(case=cases())
def test_the_reference_passes_its_own_judge(case: Case) -> None:
    assert check(case, IMPLEMENTATION, CPU).findings == []


def test_what_was_admitted_is_counted_again_and_what_is_not_the_same_is_looked_at() -> None:
    once, twice = check(CASE, IMPLEMENTATION, CPU, Sweep.OWN), check(CASE, Rerouted(lambda trace: None), CPU)
    assert (once.runs, twice.runs) == (1, 2)
    for key, sharpness in once.sharpness.items():
        assert twice.sharpness[key] == replace(sharpness, exact=2 * sharpness.exact, bounded=2 * sharpness.bounded)
    bumped = check(CASE, Rerouted(lambda trace: bump(backward(trace).weights[0], 1, 0)), CPU)
    assert (bumped.runs, bumped.status) == (2, "failed")


@pytest.mark.parametrize("lengths", [(1,), (1, 1), (2,), (1, 4), (3, 5, 9), (40,)])
def test_a_sweep_has_every_split_by_every_merge_and_none_twice(lengths: tuple[int, ...]) -> None:
    """Runs are short or long, on each side of each length; long ones of one chunk, of two, of a lookup each."""
    bags = tuple((row,) * length for row, length in enumerate(lengths))
    case = Case((Table(9, 2),), (0,), (Batch((bags,)),), (0, 0))
    _own, *others = TbeKernels().routings(case, CPU)
    starts = {1, *(t for n in lengths for t in (n, n + 1) if t <= max(lengths))}
    splits = [tuple(n >= routing["long_run_threshold"] for n in lengths) for routing in others]
    for merge in MERGES:
        merged = [(split, r) for split, r in zip(splits, others, strict=True) if r.get("long_run_merge") == merge]
        assert {split for split, _ in merged} == {tuple(n >= t for n in lengths) for t in starts}
        chunks = {routing.get("chunk_size", 256) for split, routing in merged if all(split)}
        assert chunks >= {-(-max(lengths) // 32), max(lengths)}
        assert max(chunks) > max(lengths)
    assert sum(not any(split) for split in splits) == 1
    at = [(r["long_run_threshold"], r.get("chunk_size"), r.get("long_run_merge")) for r in others]
    assert len(set(at)) == len(at)


def test_a_sweep_cuts_no_run_into_many_pieces() -> None:
    """But for the case's own: two thousand chunks of a lookup each, on thirty routings, cost half a minute."""
    case = Case((Table(5, 2),), (0,), (Batch(((((3, 2048),),),)),), (0, 0), routing={"chunk_size": 1})
    own, *others = TbeKernels().routings(case, CPU)
    assert own == case.routing
    assert {routing["chunk_size"] for routing in others} == {64, 128, 2047, 2048}


def test_a_sweep_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'most' is not a valid Sweep"):
        check(CASE, IMPLEMENTATION, CPU, "most")
