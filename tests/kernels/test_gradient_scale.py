"""Loss scaling: a scaled run steps as one without a scale, and a step of infinite or NaN gradients changes nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tbe_kernels as tbe
from oracles import interpreter
from tbe_kernels import scaling
from tbe_kernels.batch import LookupBatch, plain_bags
from tbe_kernels.observe import observing
from tests.kernels import test_small_table
from tests.kernels.sync import nothing_synchronises
from tests.kernels.test_module import batch, make
from tests.kernels.test_module_habits import is_unchanged, state_of

SCALE = 1024.0
Module = tbe.TableBatchedEmbeddingBags


@pytest.fixture(autouse=True)
def _hooks(device: torch.device) -> None:
    if device.type == "cpu":
        interpreter.install()


def long_runs(merge: str) -> dict[str, Any]:
    return {"long_run_threshold": 2, "long_run_merge": merge}


#: How a step can go, with a path that shows it: the module's settings, and whether per-sample weights are trained.
ROUTES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "short runs": ("backward.short_run", {}, False),
    "planned in the forward": ("backward.plan.hoisted", {"config": {"hoist_transpose_to_forward": True}}, False),
    "checked in the lookup": ("check.indices.fused", {"config": {"fused_bounds_check": True}}, False),
    "atomic": ("backward.long_run.atomic", {"config": long_runs("atomic")}, False),
    "ordered": ("backward.long_run.ordered", {"config": long_runs("ordered")}, False),
    "fused": ("backward.long_run.fused", {"config": long_runs("fused")}, False),
    "two nodes": ("backward.psw_gradient", {}, True),
    "clipped": ("backward.psw_gradient", {"gradient_clipping": True, "max_gradient": 0.25}, True),
    "from counts": ("backward.from_counts", {}, False),
}


def one(route: str, device: torch.device, optimizer: tbe.OptimType) -> tuple[Module, dict[str, Any]]:
    """A module of a route, and its batch, in which a bad id is counted, and a row has three lookups."""
    _, settings, trained = ROUTES[route]
    if route == "from counts":
        return test_small_table.make(device, optimizer=optimizer), test_small_table.batch(device)
    inputs = batch(device, indices=torch.tensor([1, 9, 4, 1, 1, 2], device=device))
    if trained:
        inputs["per_sample_weights"] = torch.arange(1.0, 7.0, device=device, requires_grad=True)
    return make(device, optimizer=optimizer, learning_rate=0.5, **settings), inputs


def upstream(output: Tensor) -> Tensor:
    return torch.linspace(-1, 1, output.numel(), device=output.device).view(output.shape)


def scale_on(device: torch.device, number: float = SCALE) -> Tensor:
    return torch.tensor(number, device=device)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("optimizer", [tbe.OptimType.EXACT_ROWWISE_ADAGRAD, tbe.OptimType.ADAM])
def test_a_scaled_run_is_the_run_without_a_scale(route: str, optimizer: tbe.OptimType, device: torch.device) -> None:
    """To the bit, as the scale is a power of two; gradients of per-sample weights stay scaled."""
    (module, inputs), (twin, others) = (one(route, device, optimizer) for _ in range(2))
    module.gradient_scale = scale_on(device)
    heard = set()
    for _ in range(2):
        with observing(lambda path, work: heard.add(path)):
            output = module(**inputs)
            output.backward(SCALE * upstream(output))
        expected = twin(**others)
        expected.backward(upstream(expected))
    assert ROUTES[route][0] in heard
    assert is_unchanged(module, twin.state_dict())
    assert int(module.iter) == 2
    if ROUTES[route][2]:
        assert torch.equal(inputs["per_sample_weights"].grad, SCALE * others["per_sample_weights"].grad)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")  # the interpreter's numpy, at inf * 0
def test_a_step_that_overflowed_is_left_out(route: str, number: float, device: torch.device) -> None:
    """One element is enough; `iter` stays too, and the scaler can see it in the per-sample weights' gradients."""
    module, inputs = one(route, device, tbe.OptimType.ADAM)
    module.gradient_scale = scale_on(device)
    output = module(**inputs)
    output.backward(SCALE * upstream(output))
    before = state_of(module)
    output = module(**inputs)
    gradient = SCALE * upstream(output)
    gradient.view(-1)[0] = number
    if ROUTES[route][2]:
        inputs["per_sample_weights"].grad = None
    output.backward(gradient)
    after = {**module.state_dict(), "bounds_check_warning": before["bounds_check_warning"]}  # of the forward
    assert [name for name in after if not torch.equal(after[name], before[name])] == []
    if ROUTES[route][2]:
        assert not torch.isfinite(inputs["per_sample_weights"].grad).all()
    output = module(**inputs)
    output.backward(SCALE * upstream(output))
    assert int(module.iter) == 2
    assert not is_unchanged(module, before)


def test_without_a_scale_infinite_gradients_are_stepped_with(device: torch.device) -> None:
    """The control: as everywhere else."""
    module = make(device)
    output = module(**batch(device))
    output.backward(torch.full_like(output, float("inf")))
    assert not torch.isfinite(module.weights).all()


def test_a_gradient_that_only_fits_fp16_when_scaled_is_not_lost(device: torch.device) -> None:
    """2**-30 is 0 in fp16, so it may only be divided in fp32."""
    module = make(device, output_dtype=torch.float16, learning_rate=1.0)
    module.weights.detach().zero_()
    module.gradient_scale = scale_on(device, 2.0**20)
    output = module(**batch(device))
    output.backward(torch.full_like(output, 2.0**-10))
    assert module.split_embedding_weights()[0][0].tolist() == [-(2.0**-30)] * 3


def test_row_gradients_are_unscaled_or_none(device: torch.device) -> None:
    module = make(device, optimizer=tbe.OptimType.NONE)
    module.gradient_scale = scale_on(device)
    for number, count in ((SCALE, 6), (float("nan"), 0)):
        output = module(**batch(device))
        output.backward(torch.full_like(output, number))
        left = module.row_gradients
        assert left is not None
        assert int(left.count) == count
    output = module(**batch(device))
    output.backward(torch.full_like(output, SCALE))
    assert module.row_gradients is not None
    assert set(module.row_gradients.gradients[:, :2].flatten().tolist()) == {1.0}


def test_a_scaler_is_wired_as_the_documentation_says(device: torch.device) -> None:
    """Two steps of which the first overflows, in the dense layer and in the tables."""
    module, twin = make(device), make(device)
    dense, dense_twin = nn.Linear(3, 1).to(device), nn.Linear(3, 1).to(device)
    dense_twin.load_state_dict(dense.state_dict())
    outer, outer_twin = (torch.optim.SGD(layer.parameters(), lr=0.5) for layer in (dense, dense_twin))
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE, growth_interval=1)
    unit = torch.ones((), device=device)
    ones = torch.ones(2, 3, device=device)
    for factor in (float("inf"), 1.0, 1.0):
        outer.zero_grad()
        loss = (module(**batch(device))[:, :3] * 0.5 + dense(ones)).sum() * factor
        module.gradient_scale = scaler.scale(unit)
        scaler.scale(loss).backward()
        scaler.step(outer)
        scaler.update()
    assert scaler.get_scale() == SCALE * 0.5 * 2 * 2
    for _ in range(2):
        outer_twin.zero_grad()
        (twin(**batch(device))[:, :3] * 0.5 + dense_twin(ones)).sum().backward()
        outer_twin.step()
    assert int(module.iter) == 2
    assert is_unchanged(module, twin.state_dict())
    assert torch.equal(dense.weight, dense_twin.weight)


def test_a_scale_is_followed_where_it_is_changed_in_place_and_left_with_none(device: torch.device) -> None:
    module, twin = make(device), make(device)
    scale = scale_on(device)
    module.gradient_scale = scale
    for number in (8.0, 2.0, None):
        if number is None:
            module.gradient_scale = None
            assert module.gradient_scale is None
        else:
            scale.fill_(number)
        output, expected = module(**batch(device)), twin(**batch(device))
        output.backward(torch.full_like(output, number or 1.0))
        expected.backward(torch.ones_like(expected))
        assert is_unchanged(module, twin.state_dict())


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_have_the_scale_and_state_dicts_do_not(
    make_copy: Callable[[Module], Module], device: torch.device
) -> None:
    module = make(device)
    names = set(module.state_dict())
    module.gradient_scale = scale_on(device)
    other = make_copy(module)
    assert other.gradient_scale is not None
    assert float(other.gradient_scale) == SCALE
    assert set(module.state_dict()) == names


BAD_SCALES: dict[str, tuple[Callable[[torch.device], Any], str]] = {
    "a number": (lambda device: 1024.0, "gradient_scale: expected None or a tensor .* got a float: 1024.0"),
    "two numbers": (lambda device: torch.ones(2, device=device), r"one fp32 number, got shape \(2,\)"),
    "fp16": (lambda device: torch.ones((), dtype=torch.float16, device=device), "got shape .* of torch.float16"),
    "another device": (lambda device: torch.ones((), device="meta"), "gradient_scale: expected device .*, got meta"),
}


@pytest.mark.parametrize("name", BAD_SCALES)
def test_a_bad_scale_is_refused_and_the_old_one_stays(name: str, device: torch.device) -> None:
    make_bad, told = BAD_SCALES[name]
    module = make(device)
    module.gradient_scale = scale_on(device)
    with pytest.raises(ValueError, match=told):
        module.gradient_scale = make_bad(device)
    assert module.gradient_scale is not None
    assert float(module.gradient_scale) == SCALE


def test_nothing_of_it_reads_a_result_back(device: torch.device) -> None:
    """On the meta device there are none; on a GPU, a whole step of each kind."""
    meta = torch.ones(3, device="meta")
    gradient, keep = scaling.unscaled(meta[0], meta.half())
    assert (gradient.dtype, keep.dtype, keep.shape) == (torch.float32, torch.bool, ())
    tables = make(torch.device("meta"), gradient_clipping=True).tables
    tables.gradient_scale = meta[0]
    _, factor = scaling.to_be_clamped(tables, meta)
    assert scaling.scaled_again(meta, factor).is_meta
    given = LookupBatch(meta.long(), meta.long(), None, plain_bags(tables.layout, 0))
    _, batch_left, counts, plan = scaling.as_unscaled(tables, meta, given, meta.int(), object())
    assert batch_left.indices.is_meta
    assert (counts is not None and counts.dtype) == torch.int32
    assert plan is None
    module, inputs = one("clipped", device, tbe.OptimType.ADAM)
    unit = scale_on(device, 1.0)
    for _ in range(2):  # the first compiles
        with nothing_synchronises() if device.type == "cuda" else nullcontext():
            module.gradient_scale = SCALE * unit
            output = module(**inputs)
            output.backward(SCALE * torch.ones_like(output))
