"""The operators that graphs hold in the place of launches: what they say is so, and who enters them.

Opcheck, fake-tensor passes, `make_fx` and `torch.export`; `torch.compile` is in `tests/kernels/test_compiled.py`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import tbe_kernels as tbe
from oracles import interpreter
from tbe_kernels import batch as bags
from tbe_kernels import operators
from tbe_kernels.functional import lookup
from tests.kernels.test_compiled import (
    SETTINGS,
    Check,
    Compiled,
    Kind,
    Module,
    Pooling,
    assert_same,
    backward,
    in_graph,
    lookups,
)
from tests.kernels.test_module import batch, make
from tests.kernels.test_module_habits import is_unchanged, state_of


@pytest.fixture(autouse=True)
def _hooks(device: torch.device) -> Iterator[None]:
    if device.type == "cpu":
        interpreter.install()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


EXAMPLES: dict[str, tuple[dict[str, Any], str]] = {
    "SUM": ({}, "SUM"),
    "MEAN": ({"pooling_mode": Pooling.MEAN, "optimizer": Kind.ADAM}, "SUM"),
    "weighted": ({}, "weighted"),
    "trained": ({"config": {"fused_bounds_check": True}}, "trained"),
    "no pooling": (SETTINGS["no pooling"], "SUM"),
    "variable": ({"optimizer": Kind.PARTIAL_ROWWISE_ADAM}, "variable"),
    "unchecked": ({"bounds_check_mode": Check.NONE, "weights_precision": torch.bfloat16}, "trained"),
}


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("trains", [True, False])
def test_the_operators_are_what_they_say(example: str, trains: bool, device: torch.device) -> None:
    settings, kind = EXAMPLES[example]
    inputs = lookups(6, device, kind)
    calls: list[tuple[Any, tuple[Any, ...]]] = []

    class Note(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if f.namespace == operators.NAMESPACE:
                calls.append((f, tuple(a.clone() if isinstance(a, Tensor) else a for a in args)))
            return f(*args, **(kwargs or {}))

    module = make(device, **settings)
    module.weights.requires_grad_(trains)
    with Note():
        output = in_graph(module)(**inputs)
        if output.requires_grad:
            backward(output)
    noted = {f._opname for f, _ in calls}
    assert noted == {"lookup"} | ({"step"} if trains else set()) | ({"psw_gradient"} if kind == "trained" else set())
    for f, args in calls:
        args = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
        if f._opname == "lookup":
            psw = args[8] if kind != "trained" else args[8].requires_grad_()
            args = (args[0].requires_grad_(trains), *args[1:8], psw, *args[9:])
        torch.library.opcheck(f, args)


def test_nothing_that_a_step_touches_is_saved(device: torch.device) -> None:
    module = make(device, optimizer=Kind.ADAM)
    output: Any = in_graph(module)(**lookups(6, device, "weighted"))
    saved = {t.data_ptr() for t in output.grad_fn.saved_tensors if t is not None and t.numel()}
    assert len(saved) == 3  # ids, offsets, per-sample weights
    assert not saved & {t.data_ptr() for t in module.state_dict().values()}


def test_the_operators_are_handed_all_that_a_step_touches(device: torch.device) -> None:
    """And all that never changes: a tensor or a setting of the tables that they do not know fails here."""
    known = {"weights", "bounds_check_warning", *operators.STATE}
    for optimizer in Kind:
        assert set(make(device, optimizer=optimizer).tables.tensors()) <= known


def variable(device: torch.device) -> dict[str, Any]:
    """Batch sizes that no other test has."""
    return lookups(6, device, "variable", batch_size_per_feature_per_rank=[[2, 0], [2, 1], [0, 2]])


def fake(module: Module, inputs: dict[str, Any]) -> Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = {k: mode.from_tensor(v) if isinstance(v, Tensor) else v for k, v in inputs.items()}
        output = module(**given)
        bags.variable_bags(module.tables.layout, inputs["batch_size_per_feature_per_rank"], output.device)
        output.sum().backward()
    return output


def fakes_outside(module: Module, inputs: dict[str, Any]) -> Tensor:
    """Without the mode that they are of."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return module(**{k: mode.from_tensor(v) if isinstance(v, Tensor) else v for k, v in inputs.items()})


def traced(module: Module, inputs: dict[str, Any], kind: Any) -> Tensor:
    def call(indices: Tensor, offsets: Tensor) -> Tensor:
        return module(indices, offsets, batch_size_per_feature_per_rank=inputs["batch_size_per_feature_per_rank"])

    given = inputs["indices"], inputs["offsets"]
    return make_fx(call, tracing_mode=kind, _allow_non_fake_inputs=True)(*given)(*given)


PASSES: dict[str, Callable[..., Tensor]] = {
    "fake": fake,
    "fakes outside": fakes_outside,
    "make_fx real": lambda module, inputs: traced(module, inputs, "real"),
    "make_fx fake": lambda module, inputs: traced(module, inputs, "fake"),
    "make_fx symbolic": lambda module, inputs: traced(module, inputs, "symbolic"),
    "compiled": lambda module, inputs: Compiled(module, inputs["indices"].device)(**inputs),
}


@pytest.mark.parametrize("name", PASSES)
def test_what_only_looks_on_leaves_nothing_behind(name: str, device: torch.device) -> None:
    bags._variable_bags.cache_clear()
    operators._blank.cache_clear()
    module, twin, inputs = make(device), make(device), variable(device)
    before = state_of(module)
    output = PASSES[name](module, inputs)
    assert is_unchanged(module, before)
    assert output.shape == twin(**inputs).shape
    if name.startswith("fake"):
        assert isinstance(output, FakeTensor)
    else:
        assert torch.equal(output, twin(**inputs))
    for one in (module, twin):
        backward(one(**inputs))
    assert_same(module, twin)
    backward(Compiled(module, device)(**inputs))
    backward(twin(**inputs))
    assert_same(module, twin)


def test_eager_enters_no_operator(device: torch.device) -> None:
    """Also where somebody watches."""
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(f.namespace)
            return f(*args, **(kwargs or {}))

    with Watch():
        backward(make(device)(**lookups(6, device, "trained")))
    assert "aten" in seen
    assert operators.NAMESPACE not in seen
    with Watch():
        in_graph(make(device))(**batch(device))
    assert operators.NAMESPACE in seen


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_forward_looks_up(strict: bool, device: torch.device) -> None:
    module = make(device, optimizer=Kind.ADAM).eval()
    N, entries = torch.export.Dim("N", min=2), 3 * torch.export.Dim("B", min=2) + 1
    given = batch(device)
    with torch.no_grad():
        shapes = {"indices": {0: N}, "offsets": {0: entries}}
        program = torch.export.export(module, (), given, dynamic_shapes=shapes, strict=strict)
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        loaded: Any = torch.export.load(file).module()
        indices = torch.tensor([3, 2, 1, 0, 3, 4, 9], device=device)
        offsets = torch.tensor([0, 1, 2, 3, 3, 4, 5, 5, 6, 7], device=device)
        assert torch.equal(loaded(indices=indices, offsets=offsets), module(indices, offsets))
    assert int(loaded.bounds_check_warning) == int(module.bounds_check_warning) == 2
    (operator,) = (n for n in program.graph.nodes if getattr(n.target, "namespace", "") == operators.NAMESPACE)
    assert operator.args[1:6] == (None,) * 5  # no state


ERRORS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "ids that are no integers": ({}, {"indices": torch.ones(6)}, "indices: expected torch.int32 or torch.int64"),
    "offsets of two dimensions": (
        {},
        {"offsets": torch.ones(1, 7, dtype=torch.int64)},
        "offsets: expected one dimension",
    ),
    "weights of a mean": (
        {"pooling_mode": Pooling.MEAN},
        {"per_sample_weights": torch.ones(6)},
        "per_sample_weights: only SUM takes them",
    ),
    "offsets of no whole batch": (
        {},
        {"offsets": torch.tensor([0, 1, 2, 3, 4, 6])},
        r"offsets: expected T \* B \+ 1 entries with T = 3",
    ),
    "ranks that differ": (
        {},
        {"batch_size_per_feature_per_rank": [[2, 0], [2], [2]]},
        r"batch_size_per_feature_per_rank\[1\]: expected as many",
    ),
    "a bad id": (
        {"bounds_check_mode": Check.FATAL},
        {"indices": torch.tensor([0, 1, 9, 3, 3, 3])},
        r"indices\[2\] = 9",
    ),
    "no optimizer": ({"optimizer": Kind.NONE}, {}, "optimizer: NONE leaves row_gradients with the module"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_eager_refuses_is_refused_compiled(name: str, device: torch.device) -> None:
    settings, changes, message = ERRORS[name]
    module = make(device, **settings)
    before = state_of(module)
    changes = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in changes.items()}
    with pytest.raises(Exception, match=message) as error:
        Compiled(module, device)(**batch(device, **changes))
    assert name != "a bad id" or isinstance(error.value, tbe.BoundsCheckError)
    assert is_unchanged(module, before)


def test_no_graph_divides_by_a_scale(device: torch.device) -> None:
    module = make(device)
    module.gradient_scale = torch.full((), 1024.0, device=device)
    before = state_of(module)
    with pytest.raises(Exception, match="gradient_scale: expected None in a graph"):
        Compiled(module, device)(**batch(device))
    assert is_unchanged(module, before)
    with torch.no_grad():
        Compiled(module, device)(**batch(device))


def test_what_no_number_makes_right_is_refused_when_the_graph_is_made(device: torch.device) -> None:
    """Before anything runs."""
    for name in ("ids that are no integers", "offsets of two dimensions", "weights of a mean", "no optimizer"):
        settings, changes, message = ERRORS[name]
        with FakeTensorMode():
            module = make(device, **settings)
            given = {k: torch.empty(v.shape, dtype=v.dtype, device=device) for k, v in changes.items()}
            inputs = batch(device, **given)
            with pytest.raises((ValueError, RuntimeError), match=message):
                module(**inputs)


def test_the_eager_lookup_is_not_compiled_into_zeros(device: torch.device) -> None:
    tables = make(device).tables
    compiled = Compiled(lambda given: lookup(tables, **given), device)
    with pytest.raises(Exception, match="lookup: no graph can hold its launches"):
        compiled(batch(device))
