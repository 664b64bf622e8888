"""Data parallelism around tables: replicas are refused, tables of each rank's own are left alone.

Each backward steps the rows that its own batch touched, so tables that every rank holds part at once: their gradients
are inside the step and are exchanged by nobody. `DistributedDataParallel` would also put a gradient of zeros as large
as all tables into `weights.grad`, with which an outer optimizer decays rows that no batch touched, and copy rank 0's
rows and state over everybody's. So tables are model parallel: each rank has its own, under its own names, and data
parallelism is told to leave them out.

`weights` is a parameter all the same, not a buffer: `requires_grad_(False)` freezes it, autograd reaches the step
through it, `fully_shard` can be told to ignore it (it takes parameters only), and outer optimizers pass it by, since
its `grad` stays None. As a buffer it would be overwritten by rank 0's before each forward.

Not seen, since nothing tells a module inside: `torch.distributed._composable.replicate`, and DDP with the reducer
in Python that compiled autograd takes.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tbe_kernels.tables import EmbeddingTables

#: By wrapper: the modules that it was seen to leave alone, so that only a first forward pays.
_left_alone: WeakKeyDictionary[nn.Module, WeakSet[nn.Module]] = WeakKeyDictionary()


def model_parallel_names(model: nn.Module) -> list[str]:
    """The names in `model` of every parameter and buffer of its tables: what data parallelism has to leave out."""
    names = []
    for prefix, module in model.named_modules():
        tables = module.__dict__.get("_tables")
        if isinstance(tables, EmbeddingTables):
            names += [f"{prefix}.{name}".lstrip(".") for name in tables.tensors()]
    return names


def refuse_replicas(module: nn.Module, tables: EmbeddingTables) -> None:
    """Raise RuntimeError in a forward of `DistributedDataParallel` that does not leave all of a module's tensors out.

    Frozen tables may be replicas.
    """
    wrapper = DistributedDataParallel._active_ddp_module
    if wrapper is None or not tables.weights.requires_grad:
        return
    fit = _left_alone.setdefault(wrapper, WeakSet())
    if module in fit:
        return
    prefix = next((name for name, inner in wrapper.module.named_modules() if inner is module), None)
    names = [f"{prefix}.{name}".lstrip(".") for name in tables.tensors()] if prefix is not None else []
    exchanged = [name for name in names if name not in wrapper.parameters_to_ignore]
    if exchanged:
        raise RuntimeError(
            f"{', '.join(exchanged)}: every rank would train its own copy of these tables, and "
            "DistributedDataParallel would mix them up. Give each rank tables of its own (model parallel) and leave "
            "them out, before model is wrapped: DistributedDataParallel._set_params_and_buffers_to_ignore_for_model("
            "model, tbe_kernels.model_parallel_names(model)); or freeze them: tables.weights.requires_grad_(False)"
        )
    fit.add(module)


def refuse_stand_ins(module: nn.Module) -> None:
    """Raise RuntimeError if weights that are not the module's own stand in for them for a forward: what that trains is
    thrown away. To be called once the weights are seen to be others."""
    if module.__dict__.get("_is_fsdp_managed_module"):
        raise RuntimeError(
            "weights: fully_shard has put a copy in their place, whose training would be lost. Give each rank tables "
            "of its own (model parallel) and leave them out: fully_shard(model, ignored_params={tables.weights, ...})"
        )
    if module.__dict__.get("_is_replica"):
        raise RuntimeError(
            "weights: DataParallel has put a copy in their place, whose training would be lost. Keep tables outside "
            "of the module that it wraps"
        )
