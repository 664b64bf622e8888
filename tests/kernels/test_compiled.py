"""What is compiled trains what eager trains, bit for bit; and where it does not, what it does instead.

On a CPU the backend is `aot_eager`, with the interpreter inside the operators; on a GPU it is Inductor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import tbe_kernels as tbe
from oracles import interpreter
from tbe_kernels import operators
from tests.kernels.test_module import batch, make
from tests.kernels.test_module_habits import _AsksForNothing, dots, is_unchanged, state_of, weighted

BACKENDS = {"cpu": "aot_eager", "cuda": "inductor"}
Module = tbe.TableBatchedEmbeddingBags


@pytest.fixture(autouse=True)
def _hooks(device: torch.device) -> Iterator[None]:
    if device.type == "cpu":
        interpreter.install()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Compiled:
    """A function as `torch.compile` makes it; `graphs`: how many were made."""

    def __init__(self, function: Callable[..., Any], device: torch.device) -> None:
        self.counter = CompileCounterWithBackend(BACKENDS[device.type])
        self.function = torch.compile(function, fullgraph=True, backend=self.counter)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def graphs(self) -> int:
        return self.counter.frame_count


def lookups(N: int, device: torch.device, kind: str = "SUM", **changes: Any) -> dict[str, Any]:
    """B = 2, T = 3, N lookups, at least 4; `kind` as in `KINDS`."""
    ids = torch.randint(0, 4, (N,), generator=torch.Generator().manual_seed(N)).to(device)
    inputs: dict[str, Any] = {"indices": ids, "offsets": torch.tensor([0, 1, 2, 3, 4, N, N], device=device)}
    if kind in ("weighted", "trained"):
        psw = torch.arange(1.0, N + 1, device=device) % 4
        inputs["per_sample_weights"] = psw.requires_grad_(kind == "trained")
    if kind == "variable":
        inputs["offsets"] = torch.tensor([0, 1, 2, 2, 4, N, N, N], device=device)
        inputs["batch_size_per_feature_per_rank"] = [[2], [3], [2]]
    return {**inputs, **changes}


def backward(output: Tensor) -> None:
    """With gradients 1, 2, 3, ..."""
    output.backward(torch.arange(1.0, output.numel() + 1, device=output.device).to(output).view_as(output))


def assert_same(one: nn.Module, other: nn.Module) -> None:
    """Everything that training may change, bit for bit."""
    states = one.state_dict(), other.state_dict()
    assert {name for name in states[0] if not torch.equal(states[0][name], states[1][name])} == set()


class Ranker(nn.Module):
    """A small DLRM: dense features and three sparse ones, their dot products, a linear layer.

    Weights, inputs and learning rates are small multiples of powers of two, so fp32 holds every sum exactly and the
    order in which a backend adds does not show.
    """

    def __init__(self, device: torch.device, **settings: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 4, device=device)
        self.tables = make(device, embedding_specs=[(4, 4), (5, 4)], learning_rate=2.0**-6, **settings)
        self.over = nn.Linear(10, 1, device=device)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_((torch.arange(p.numel(), device=device) % 3 - 1).view_as(p))

    def forward(self, dense: Tensor, **inputs: Any) -> Tensor:
        output, sizes = self.tables(**inputs), inputs.get("batch_size_per_feature_per_rank")
        x = torch.relu(self.dense(dense))
        if sizes is None:
            sparse = output.view(-1, 3, 4)
        else:  # a feature with a sample more leaves it out
            parts = output.split([size * 4 for (size,) in sizes])
            sparse = torch.stack([part.view(-1, 4)[:2] for part in parts], dim=1)
        both = torch.cat((x[:, None], sparse), dim=1)
        first, second = torch.triu_indices(4, 4, 1, device=dense.device)
        products = torch.bmm(both, both.transpose(1, 2))[:, first, second]
        return self.over(torch.cat((x, products), dim=1))


KINDS: dict[str, dict[str, Any]] = {
    "SUM": {},
    "MEAN": {"pooling_mode": tbe.PoolingMode.MEAN},
    "weighted": {},
    "trained": {},
    "variable": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_ranker_trains_as_an_eager_one(kind: str, device: torch.device) -> None:
    eager = Ranker(device, **KINDS[kind])
    other = copy.deepcopy(eager)
    compiled, gradients = Compiled(other, device), []
    dense = torch.tensor([[1.0, -1.0], [2.0, 1.0]], device=device)
    for N in (6, 8, 5):
        for model, call in ((eager, eager), (other, compiled)):
            inputs = lookups(N, device, kind)
            call(dense, **inputs).sum().backward()
            with torch.no_grad():
                for p in (*model.dense.parameters(), *model.over.parameters()):
                    assert p.grad is not None
                    p.sub_(p.grad * 2.0**-6)
                    p.grad = None
            assert model.tables.weights.grad is None
            gradients.append(inputs["per_sample_weights"].grad if kind == "trained" else dense)
        assert torch.equal(gradients[-2], gradients[-1])
        assert_same(eager, other)
    assert not torch.equal(other.tables.weights, Ranker(device).tables.weights)
    assert compiled.graphs == 2


Kind, Pooling, Check = tbe.OptimType, tbe.PoolingMode, tbe.BoundsCheckMode
HALF = {"weights_precision": torch.float16, "stochastic_rounding": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "no pooling": {"pooling_mode": Pooling.NONE, "embedding_specs": [(4, 3), (5, 3)]},
    "ids are judged in the lookup": {"config": {"fused_bounds_check": True}},
    "bad ids are ignored": {"bounds_check_mode": Check.IGNORE},
    "two kinds of momentum": {"optimizer": Kind.PARTIAL_ROWWISE_ADAM, "weight_decay": 0.5},
    "norms are bounded": {"optimizer": Kind.EXACT_ROWWISE_ADAGRAD, "max_norm": 0.5},
    "rounded stochastically": {**HALF, "output_dtype": torch.bfloat16, "rounding_seed": 3, "learning_rate": 0.3},
    "clipped": {"gradient_clipping": True, "max_gradient": 2.5},
    "fused merge": {"config": {"long_run_merge": "fused", "long_run_threshold": 2}},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_compiled_module_trains_as_an_eager_one(setting: str, device: torch.device) -> None:
    """With two ids that no row answers to: they are counted, and their gradients go to row 0."""
    eager = make(device, **SETTINGS[setting])
    other = copy.deepcopy(eager)
    compiled = Compiled(other, device)
    kind = "SUM" if "pooling_mode" in SETTINGS[setting] else "trained"
    for N in (6, 9):
        outputs, gradients = [], []
        for call in (eager, compiled):
            inputs = lookups(N, device, kind)
            inputs["indices"][1] = inputs["indices"][4] = 7
            if kind == "trained":
                inputs["feature_requires_grad"] = torch.tensor([True, False, True], device=device)
            outputs.append(call(**inputs))
            backward(outputs[-1])
            gradients.append(inputs["per_sample_weights"].grad if kind == "trained" else inputs["indices"])
        assert torch.equal(*outputs)
        assert torch.equal(*gradients)
        assert_same(eager, other)
    assert int(other.bounds_check_warning) == (0 if other.tables.bounds_check_mode is Check.IGNORE else 4)
    assert int(other.iter) == 2
    assert compiled.graphs == 2


@pytest.mark.parametrize("kind", ["SUM", "trained", "variable"])
def test_only_the_first_new_number_of_lookups_makes_another_graph(kind: str, device: torch.device) -> None:
    module = make(device)
    compiled = Compiled(module, device)
    graphs = []
    for N in (6, 7, 4, 100, 33):
        backward(compiled(**lookups(N, device, kind)))
        graphs.append(compiled.graphs)
    assert graphs == [1, 2, 2, 2, 2]
    module.set_learning_rate(0.5)
    backward(compiled(**lookups(8, device, kind)))
    assert compiled.graphs == 2


def test_batch_sizes_that_vary_do_not_make_a_graph_each(device: torch.device) -> None:
    eager = make(device)
    other = copy.deepcopy(eager)
    compiled = Compiled(other, device)
    for sizes in ([2, 3, 4], [3, 2, 5], [6, 7, 2], [2, 2, 2]):
        given = {
            "indices": torch.arange(sum(sizes), device=device) % 4,
            "offsets": torch.arange(sum(sizes) + 1, device=device),
            "batch_size_per_feature_per_rank": [[size] for size in sizes],
        }
        outputs = eager(**given), compiled(**given)
        assert torch.equal(*outputs)
        for output in outputs:
            backward(output)
        assert_same(eager, other)
    assert compiled.graphs == 2


def test_two_lookups_in_one_graph_are_two_steps(device: torch.device) -> None:
    eager = make(device, optimizer=Kind.ADAM)
    other = copy.deepcopy(eager)
    results = []
    for module, wrap in ((eager, lambda f: f), (other, lambda f: Compiled(f, device))):

        def both(one: dict[str, Any], two: dict[str, Any], module: Module = module) -> Tensor:
            return torch.cat((module(**one), 2 * module(**two)))

        given = lookups(6, device, "trained"), lookups(9, device, "trained")
        backward(wrap(both)(*given))
        results.append([g["per_sample_weights"].grad for g in given])
    assert int(other.iter) == 2
    assert_same(eager, other)
    assert all(map(torch.equal, *results))


def in_graph(module: Module) -> Callable[..., Tensor]:
    """The operators without a graph."""
    return lambda **inputs: operators.lookup_in_graph(module.tables, module.tables.tensors(), **inputs)


@pytest.mark.parametrize("entry", ["compiled", "operator"])
def test_two_lookups_may_come_before_two_backwards(entry: str, device: torch.device) -> None:
    """The second sees the rows and the learning rate that it finds: nothing that a step changes or reads is saved."""
    eager = make(device, optimizer=Kind.EXACT_ADAGRAD)
    other = copy.deepcopy(eager)
    results = []
    for module, call in ((eager, eager), (other, Compiled(other, device) if entry == "compiled" else in_graph(other))):
        given = [lookups(6, device, "trained") for _ in range(2)]
        outputs = [call(**g) for g in given]
        backward(outputs[0])
        module.set_learning_rate(0.5)
        backward(outputs[1])
        results.append([g["per_sample_weights"].grad for g in given])
    assert int(other.iter) == 2
    assert_same(eager, other)
    assert all(map(torch.equal, *results))


def test_a_compiled_gradient_of_the_per_sample_weights_alone_trains(device: torch.device) -> None:
    """Not so in eager: AOTAutograd makes one backward of both. The gradient is of the rows before the step."""
    module = make(device)
    inputs, psw = weighted(device)
    expected = dots(module, inputs)
    (gradient,) = torch.autograd.grad(Compiled(module, device)(**inputs).sum(), psw)
    assert torch.equal(gradient, expected)
    assert int(module.iter) == 1


def test_a_compiled_output_without_a_gradient_is_stepped_with_zeros(device: torch.device) -> None:
    """Not so in eager, nor in the operator: AOTAutograd makes up zeros."""
    eager = make(device, optimizer=Kind.ADAM, weight_decay=0.25, learning_rate=1.0)
    other, before = copy.deepcopy(eager), state_of(eager)
    _AsksForNothing.apply(in_graph(eager)(**batch(device))).sum().backward()
    assert is_unchanged(eager, before)
    eager(**batch(device)).mul(0.0).sum().backward()
    _AsksForNothing.apply(Compiled(other, device)(**batch(device))).sum().backward()
    assert_same(eager, other)


def test_frozen_tables_leave_the_gradient_of_the_per_sample_weights(device: torch.device) -> None:
    module = make(device)
    module.weights.requires_grad_(False)
    inputs, psw = weighted(device)
    before = state_of(module)
    Compiled(module, device)(**inputs).sum().backward()
    assert psw.grad is not None
    assert torch.equal(psw.grad, dots(module, inputs))
    assert is_unchanged(module, before)


def test_a_compiled_functional_call_trains_what_it_is_given(device: torch.device) -> None:
    module = make(device)
    twin = copy.deepcopy(module)
    before, other = state_of(module), (module.weights.detach() + 1).requires_grad_()
    with torch.no_grad():
        twin.weights.copy_(other)

    def call(weights: Tensor, inputs: dict[str, Any]) -> Tensor:
        return torch.func.functional_call(module, {"weights": weights}, kwargs=inputs)

    outputs = twin(**batch(device)), Compiled(call, device)(other, batch(device))
    assert torch.equal(*outputs)
    for output in outputs:
        backward(output)
    assert torch.equal(other, twin.weights)
    assert torch.equal(module.weights, before["weights"])
