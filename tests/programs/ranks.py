"""What one of two processes does with tables under data parallelism, and what it notes for the test that started it.

`run(rank, folder, module)`: joins the other through `folder` (gloo), tries each of `SITUATIONS` and saves a `Noted` by
name. Started by `tests/kernels/test_parallel.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tbe_kernels as tbe

WORLD, STEPS = 2, 3
State = dict[str, Tensor]


@dataclass
class Noted:
    """`refused`: the error of the first forward. `tables`, `twin`: all of the tables' state at the end, and that of the
    same tables trained alone in the same process. `dense`: the weights that data parallelism is there for."""

    refused: str | None = None
    tables: State = field(default_factory=dict)
    twin: State = field(default_factory=dict)
    dense: Tensor | None = None


class Model(nn.Module):
    """Tables and a dense layer side by side, so that the tables learn the same whatever the dense layer does."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)
        self.bags = tbe.TableBatchedEmbeddingBags([(8, 3), (4, 2)], optimizer=tbe.OptimType.ADAM, learning_rate=0.5)
        self.bags.init_embedding_weights_uniform(-1.0, 1.0)
        self.dense = nn.Linear(2, 1)

    def forward(self, indices: Tensor, offsets: Tensor, numbers: Tensor) -> Tensor:
        return (self.bags(indices, offsets) ** 2).sum() + self.dense(numbers).sum()


def batch(rank: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each rank's own, of rows 0 to 2 alone, with an id that is bad on rank 1."""
    ids = torch.tensor([(rank + step) % 3, step % 3, rank, 9 * rank])
    return ids, torch.tensor([0, 1, 2, 3, 4]), torch.full((3, 2), 1.0 + rank)


def names(model: Model) -> list[str]:
    return tbe.model_parallel_names(model)


def wrapped(model: Model, left_out: list[str]) -> nn.Module:
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, left_out)
    return DistributedDataParallel(model)


def ddp(model: Model) -> nn.Module:
    return DistributedDataParallel(model)


def ddp_without_tables(model: Model) -> nn.Module:
    return wrapped(model, names(model))


def ddp_without_rows(model: Model) -> nn.Module:
    return wrapped(model, ["bags.weights"])


def ddp_of_frozen_tables(model: Model) -> nn.Module:
    model.bags.weights.requires_grad_(False)
    return DistributedDataParallel(model)


def sharded(model: Model) -> nn.Module:
    fully_shard(model)
    return model


def sharded_without_tables(model: Model) -> nn.Module:
    fully_shard(model, ignored_params={model.bags.weights})
    return model


def loaded_once_sharded(model: Model) -> nn.Module:
    """A state dict is put in place, which is no stand-in."""
    saved = {name: tensor.clone() for name, tensor in model.bags.state_dict().items()}
    fully_shard(model, ignored_params={model.bags.weights})
    model.bags.load_state_dict(saved, assign=True)
    return model


def unwatched(name: str) -> AbstractContextManager[Any]:
    """The mend taken out, to see what it is for."""
    return mock.patch(f"tbe_kernels.module.{name}")


SITUATIONS: dict[str, tuple[Callable[[Model], nn.Module], AbstractContextManager[Any]]] = {
    "DDP": (ddp, nullcontext()),
    "DDP without the rows alone": (ddp_without_rows, nullcontext()),
    "DDP without the tables": (ddp_without_tables, nullcontext()),
    "DDP of frozen tables": (ddp_of_frozen_tables, nullcontext()),
    "FSDP2": (sharded, nullcontext()),
    "FSDP2 without the tables": (sharded_without_tables, nullcontext()),
    "FSDP2, then loaded": (loaded_once_sharded, nullcontext()),
    "unwatched DDP": (ddp, unwatched("refuse_replicas")),
    "unwatched DDP without the rows alone": (ddp_without_rows, unwatched("refuse_replicas")),
    "unwatched FSDP2": (sharded, unwatched("refuse_stand_ins")),
}


def train(model: nn.Module, rank: int) -> None:
    """Some steps with an outer optimizer over all parameters, whose decay would be seen."""
    outer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.25, weight_decay=0.5)
    for step in range(STEPS):
        model(*batch(rank, step)).backward()
        outer.step()
        outer.zero_grad()


def state_of(model: Model) -> State:
    """Whole tensors, also of parameters that are sharded."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for name, value in model.bags.state_dict().items()
    }


@functools.cache
def alone(rank: int, frozen: bool) -> State:
    """What the same training makes of the tables without the other process."""
    model = Model(rank)
    model.bags.weights.requires_grad_(not frozen)
    train(model, rank)
    return state_of(model)


def noted(rank: int, wrap: Callable[[Model], nn.Module], watched: AbstractContextManager[Any]) -> Noted:
    out = Noted()
    model = Model(rank)
    outer = wrap(model)
    with watched:
        try:
            train(outer, rank)
        except RuntimeError as error:
            out.refused = str(error)
            return out
    out.tables, out.twin = state_of(model), alone(rank, wrap is ddp_of_frozen_tables)
    dense = model.dense.weight.detach()
    out.dense = dense.full_tensor() if hasattr(dense, "full_tensor") else dense
    return out


def run(rank: int, folder: str, module: tbe.TableBatchedEmbeddingBags) -> None:
    """`module` was pickled into this process: on rank 0 it takes one step of learning rate 1."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    results = {name: noted(rank, *how) for name, how in SITUATIONS.items()}
    if rank == 0:
        module(torch.tensor([1, 3]), torch.tensor([0, 2])).sum().backward()
        results["spawned"] = Noted(tables={name: value.clone() for name, value in module.state_dict().items()})
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
