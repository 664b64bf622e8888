"""What people who come from FBGEMM write: it works as there, or fails at once in words that say what to change.

The table of both is in `tbe_kernels/README.md`.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tbe_kernels as tbe
from oracles import interpreter
from tbe_kernels import ComputeDevice, EmbeddingLocation, OptimType, PoolingMode
from tests.kernels.test_module import batch, everything, make

Module = tbe.TableBatchedEmbeddingBags


@pytest.fixture(autouse=True)
def _hooks(device: torch.device) -> None:
    if device.type == "cpu":
        interpreter.install()


def place(device: torch.device) -> tuple[EmbeddingLocation, ComputeDevice]:
    """Where tables of a device lie, in FBGEMM's words."""
    if device.type == "cpu":
        return EmbeddingLocation.HOST, ComputeDevice.CPU
    return EmbeddingLocation.DEVICE, ComputeDevice.CUDA


def test_a_script_of_fbgemm_runs(tmp_path: Path, device: torch.device) -> None:
    """Constructor, initialisation, forward by position, schedule, state, pruning, a checkpoint by table."""
    location, compute = place(device)
    specs = [(4, 4, location, compute), (6, 8, location, compute)]

    def tables() -> Module:
        return Module(
            embedding_specs=specs,
            feature_table_map=[0, 1, 0],
            pooling_mode=PoolingMode.SUM,
            optimizer=OptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=0.1,
            eps=1e-6,
            weight_decay=0.0,
            stochastic_rounding=False,
            device=device,
        )

    emb = tables()
    emb.init_embedding_weights_uniform(-0.5, 0.5)
    indices = torch.tensor([0, 3, 5, 1, 1, 2], device=device)
    offsets = torch.tensor([0, 1, 2, 3, 4, 6, 6], device=device)
    weights = torch.ones(6, device=device)

    def step(module: Module) -> Tensor:
        output = module(indices, offsets, weights)
        output.backward(torch.full_like(output, 0.5))
        return output.detach()

    assert step(emb).shape == (2, 4 + 8 + 4)
    emb.set_learning_rate(0.05)
    emb.update_hyper_parameters({"lr": 0.025, "eps": 1e-4})
    assert emb.get_learning_rate() == np.float32(0.025)
    emb.set_optimizer_step(10)
    step(emb)
    assert int(emb.iter) == 11

    sums = [state for (state,) in emb.split_optimizer_states()]
    assert [tuple(state.shape) for state in sums] == [(4,), (6,)]
    assert all(torch.equal(s["sum"], state) for s, state in zip(emb.get_optimizer_state(), sums, strict=True))

    saved = {
        f"table_{t}": {"weight": weight, "sum": state}
        for t, (weight, state) in enumerate(zip(emb.split_embedding_weights(), sums, strict=True))
    }
    torch.save(saved, tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt")
    other = tables()
    other.update_hyper_parameters({"lr": emb.get_learning_rate(), "eps": 1e-4})
    for t, (weight, (state,)) in enumerate(
        zip(other.split_embedding_weights(), other.split_optimizer_states(), strict=True)
    ):
        weight.copy_(saved[f"table_{t}"]["weight"])
        state.copy_(saved[f"table_{t}"]["sum"])
    assert torch.equal(step(emb), step(other))
    assert torch.equal(emb.weights, other.weights)

    ids, ends = torch.tensor([1, 3, 0], device=device), torch.tensor([0, 2, 3], device=device)
    emb.reset_embedding_weight_momentum(
        ids, ends, torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    )
    first, second = emb.split_embedding_weights()
    assert first.abs().sum(dim=1).ne(0).tolist() == [True, False, True, False]
    assert second.abs().sum(dim=1).ne(0).tolist() == [False] + [True] * 5
    assert [bool(state[0] != 0) for (state,) in emb.split_optimizer_states()] == [True, False]


STATES: dict[OptimType, tuple[tuple[str, tuple[int, ...]], ...]] = {
    OptimType.EXACT_SGD: (),
    OptimType.NONE: (),
    OptimType.EXACT_ROWWISE_ADAGRAD: (("sum", (4,)),),
    OptimType.EXACT_ADAGRAD: (("sum", (4, 3)),),
    OptimType.ADAM: (("exp_avg", (4, 3)), ("exp_avg_sq", (4, 3))),
    OptimType.PARTIAL_ROWWISE_ADAM: (("exp_avg", (4, 3)), ("exp_avg_sq", (4,))),
    OptimType.LAMB: (("exp_avg", (4, 3)), ("exp_avg_sq", (4, 3))),
    OptimType.PARTIAL_ROWWISE_LAMB: (("exp_avg", (4, 3)), ("exp_avg_sq", (4,))),
    OptimType.LARS_SGD: (("momentum_buffer", (4, 3)),),
}


@pytest.mark.parametrize("optimizer", OptimType)
def test_the_state_of_each_optimizer_by_place_and_by_name(optimizer: OptimType, device: torch.device) -> None:
    module = make(device, optimizer=optimizer)
    by_place, by_name = module.split_optimizer_states(), module.get_optimizer_state()
    assert len(by_place) == len(by_name) == 2
    assert [(name, tuple(state.shape)) for name, state in by_name[0].items()] == list(STATES[optimizer])
    for place, state in enumerate(by_place[1]):  # views, which may be written to
        state.fill_(2.0 + place)
        assert list(by_name[1].values())[place].eq(2.0 + place).all()
        assert module.get_buffer(f"momentum{place + 1}").eq(2.0 + place).any()


READ: dict[OptimType, dict[str, float]] = {
    OptimType.EXACT_ROWWISE_ADAGRAD: {"lr": 0.25, "eps": 0.5, "max_norm": 1.0},
    OptimType.ADAM: {"lr": 0.25, "beta1": 0.5, "beta2": 0.75, "eps": 0.125, "weight_decay": 0.5},
    OptimType.LARS_SGD: {"learning_rate": 0.25, "eta": 0.5, "momentum": 0.25, "weight_decay": 0.5},
}


@pytest.mark.parametrize("optimizer", READ, ids=lambda o: o.name)
def test_hyper_parameters_set_later_are_those_of_the_constructor(optimizer: OptimType, device: torch.device) -> None:
    values = READ[optimizer]
    given = {"learning_rate" if name == "lr" else name: value for name, value in values.items()}
    first, later = make(device, optimizer=optimizer, **given), make(device, optimizer=optimizer)
    later.update_hyper_parameters(values)
    for module in (first, later):
        for _ in range(2):
            module(**batch(device)).sum().backward()
    assert all(map(torch.equal, everything(first), everything(later)))
    assert torch.equal(first.hyper, later.hyper)
    if "max_norm" in values:
        later.update_hyper_parameters({"max_norm": 0.0})
        assert later.tables.optimizer.max_norm is None


BAD_PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown name": ({"lower_bound": 0.5}, "lower_bound: expected a hyper-parameter of ADAM: learning_rate, beta1"),
    "one that it does not read": ({"momentum": 0.5}, "momentum: ADAM does not read it, got 0.5"),
    "a beta of one": ({"beta2": 1.0}, "beta2: expected a number from 0 to below 1"),
    "a negative rate": ({"lr": -1.0}, "learning_rate: expected a finite number from 0 up, got -1.0"),
    "a tensor": ({"lr": torch.tensor(0.5)}, r"learning_rate: expected a number, got tensor\(0.5000\), a Tensor"),
    "a text": ({"eps": "small"}, "eps: expected a number, got 'small', a str"),
}


@pytest.mark.parametrize("name", BAD_PARAMETERS)
def test_a_bad_hyper_parameter_is_refused_and_none_is_set(name: str, device: torch.device) -> None:
    values, told = BAD_PARAMETERS[name]
    module = make(device, optimizer=OptimType.ADAM)
    before = module.hyper.clone()
    with pytest.raises(ValueError, match=told):
        module.update_hyper_parameters({"beta1": 0.5, **values})
    assert torch.equal(module.hyper, before)


def test_decay_without_a_mode_is_refused_later_too(device: torch.device) -> None:
    module = make(device, optimizer=OptimType.EXACT_ROWWISE_ADAGRAD)
    with pytest.raises(ValueError, match=r"weight_decay: 0\.5 has no effect with weight_decay_mode NONE"):
        module.update_hyper_parameters({"weight_decay": 0.5})


@pytest.mark.parametrize("step", [-1, 2**63, 1.0, True])
def test_a_bad_step_is_refused(step: Any, device: torch.device) -> None:
    module = make(device)
    with pytest.raises(ValueError, match="step: expected an integer"):
        module.set_optimizer_step(step)
    assert int(module.iter) == 0


def test_numbers_of_numpy_are_numbers(device: torch.device) -> None:
    specs = [(np.int64(4), np.int32(3)), (np.int64(5), np.int64(2))]
    module = make(
        device,
        embedding_specs=specs,
        feature_table_map=list(np.array([0, 1, 0])),
        optimizer=OptimType.EXACT_ADAGRAD,
        learning_rate=np.float32(0.5),
        eps=np.float64(0.25),
        rounding_seed=np.int32(7),
    )
    twin = make(device, optimizer=OptimType.EXACT_ADAGRAD, learning_rate=0.5, eps=0.25, rounding_seed=7)
    step: Any = np.int64(3)
    rate: Any = np.float16(0.125)
    for one in (module, twin):
        one.set_optimizer_step(step)
        one.set_learning_rate(rate)
        one(**batch(device)).sum().backward()
    assert all(map(torch.equal, everything(module), everything(twin)))
    twin.load_state_dict(module.state_dict())


class Theirs(enum.IntEnum):
    """As FBGEMM's own enums, which are taken by name."""

    DEVICE = 0
    MANAGED_CACHING = 2
    HOST = 3
    CPU = 4
    CUDA = 5


def test_specs_take_the_enums_of_fbgemm(device: torch.device) -> None:
    location, compute = (Theirs[entry.name] for entry in place(device))
    module = make(device, embedding_specs=[(4, 3, location, compute), (5, 2)])
    assert [tuple(weight.shape) for weight in module.split_embedding_weights()] == [(4, 3), (5, 2)]


BAD_SPECS: dict[str, tuple[Any, str]] = {
    "a cached table": (
        (4, 3, Theirs.MANAGED_CACHING, ComputeDevice.CUDA),
        r"embedding_specs\[0\]: tables lie on device=.* got <Theirs.MANAGED_CACHING: 2> and <ComputeDevice.CUDA",
    ),
    "a number for a place": ((4, 3, 0, 1), r"embedding_specs\[0\]: tables lie on device=.* got 0 and 1"),
    "three entries": ((4, 3, EmbeddingLocation.HOST), r"embedding_specs\[0\]: expected \(rows, D\) or \(rows, D, loc"),
    "no tuple": (12, r"embedding_specs\[0\]: expected \(rows, D\) or .* got 12"),
    "a tensor of rows": ((torch.tensor(4), 3), r"embedding_specs\[0\]: expected an integer, got tensor\(4\), a Tensor"),
    "an empty shard": ((0, 3), r"\[0\]: rows must be at least 1, got 0; leave an empty shard out, with the features"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_a_bad_spec_is_refused(name: str, device: torch.device) -> None:
    spec, told = BAD_SPECS[name]
    with pytest.raises(ValueError, match=told):
        make(device, embedding_specs=[spec, (5, 2)])


def test_tables_of_another_device_are_refused() -> None:
    spec = (4, 3, EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    with pytest.raises(ValueError, match=r"tables lie on device='cpu' .*EmbeddingLocation.HOST and ComputeDevice.CPU"):
        Module([spec], device="cpu")


def test_a_fourth_argument_in_fbgemm_s_place_is_told_where_to_go(device: torch.device) -> None:
    module = make(device)
    inputs = batch(device, per_sample_weights=torch.ones(6, device=device))
    before = everything(module)
    with pytest.raises(ValueError, match="feature_requires_grad is the fifth argument here and the fourth in FBGEMM"):
        module(*inputs.values(), torch.ones(3, dtype=torch.bool, device=device))
    assert all(map(torch.equal, everything(module), before))


def test_the_mean_divides_by_live_ids(device: torch.device) -> None:
    """-1 is not counted, neither in the output nor in the gradient; a bag of nothing else gives zeros."""
    module = Module([(4, 2)], pooling_mode=PoolingMode.MEAN, learning_rate=1.0, device=device)
    module.weights.detach().copy_(torch.arange(8))
    indices = torch.tensor([3, -1, 1, -1, -1], device=device)
    output = module(indices, torch.tensor([0, 3, 5], device=device))
    assert output.tolist() == [[(6 + 2) / 2, (7 + 3) / 2], [0, 0]]
    output.sum().backward()
    assert module.weights.tolist() == [0, 1, 1.5, 2.5, 4, 5, 5.5, 6.5]


RESET = {
    "pruned_indices": torch.tensor([1, 3, 0]),
    "pruned_indices_offsets": torch.tensor([0, 2, 3]),
    "logical_table_ids": torch.tensor([1, 2]),
    "buffer_ids": torch.tensor([1, 0]),
}


@pytest.mark.parametrize("optimizer", OptimType)
def test_pruned_rows_and_their_state_are_reset_for_every_optimizer(optimizer: OptimType, device: torch.device) -> None:
    """Feature 2 is on table 0."""
    module = make(device, optimizer=optimizer, learning_rate=0.25)
    module.weights.detach().add_(1.0)
    for state in (s for table in module.split_optimizer_states() for s in table):
        state.fill_(1.0)
    module.reset_embedding_weight_momentum(**RESET)
    first, second = module.split_embedding_weights()
    for tensors, gone in (
        ((first, *module.split_optimizer_states()[0]), {1, 3}),
        (
            (second, *module.split_optimizer_states()[1]),
            {0},
        ),
    ):
        for tensor in tensors:
            rows = tensor.view(tensor.shape[0], -1)
            assert [r for r in range(len(rows)) if not rows[r].any()] == sorted(gone)
            assert all(rows[r].all() for r in range(len(rows)) if r not in gone)


BAD_RESETS: dict[str, tuple[dict[str, Any], str]] = {
    "a row beyond": (
        {"pruned_indices": torch.tensor([1, 4, 0])},
        r"pruned_indices: expected rows below 4, .* \[1, 4\]",
    ),
    "a negative row": (
        {"pruned_indices": torch.tensor([1, 3, -1])},
        r"pruned_indices: expected rows below 5, .* \[-1\]",
    ),
    "floats": ({"pruned_indices": torch.zeros(3)}, "pruned_indices: expected a tensor of int32 or int64"),
    "a list": ({"buffer_ids": [0, 1]}, r"buffer_ids: expected a tensor of int32 or int64 .* got \[0, 1\]"),
    "offsets that go back": (
        {"pruned_indices_offsets": torch.tensor([2, 0, 3])},
        "pruned_indices_offsets: .* never go",
    ),
    "offsets beyond": ({"pruned_indices_offsets": torch.tensor([0, 2, 4])}, "pruned_indices_offsets: .* got .0, 2, 4"),
    "a feature beyond": ({"logical_table_ids": torch.tensor([2, 3])}, "logical_table_ids: expected features below 3"),
    "a buffer beyond": ({"buffer_ids": torch.tensor([0, 2])}, "buffer_ids: expected buffers below 2, got 2"),
    "too few buffers": ({"buffer_ids": torch.tensor([0])}, r"buffer_ids: expected one for each of the 2 .* got \[0\]"),
}


@pytest.mark.parametrize("name", BAD_RESETS)
def test_a_bad_reset_is_refused_and_resets_nothing(name: str, device: torch.device) -> None:
    changes, told = BAD_RESETS[name]
    module = make(device, optimizer=OptimType.EXACT_ROWWISE_ADAGRAD)
    before = everything(module)
    with pytest.raises(ValueError, match=told):
        module.reset_embedding_weight_momentum(**{**RESET, **changes})
    assert all(map(torch.equal, everything(module), before))
