"""The lookup as operators of `torch.library`: what graphs hold in the place of launches.

`lookup` is functional, and its autograd formula calls the two others: `psw_gradient`, and `step`, which says that it
changes the weights and the optimizer's state. So a graph knows what each reads and writes, and keeps their order. The
tables travel as tensors and a description (`tbe_kernels.description`). Kernels run inside, unseen; the fake kernels
say shapes and dtypes, and refuse what does not fit.

An operator costs 15 to 30 us a call, so `lookup_in_graph` is for whoever is looked at (`tbe_kernels.tracing`) and
`tbe_kernels.functional.lookup` for everybody else. AOTAutograd makes one backward of all, and there what differs is:
to ask for the gradient of the per-sample weights alone takes the step too, and a result that gets no gradient is
stepped with one of zeros.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tbe_kernels.arguments import check_arguments, checked_batch
from tbe_kernels.backward.psw_gradient import gradient_of_per_sample_weights
from tbe_kernels.batch import BagLayout, LookupBatch, plain_bags, variable_bags
from tbe_kernels.description import parts_of
from tbe_kernels.functional import fold_and_step, forward
from tbe_kernels.optimizers import OPTIMIZERS, OptimizerState
from tbe_kernels.spec import BoundsCheckMode, PoolingMode
from tbe_kernels.tables import EmbeddingTables
from tbe_kernels.tracing import save_without_version

#: A copy of the package has operators of its own.
NAMESPACE = __package__
STATE = ("iter", "momentum1", "momentum2", "hyper", "rounding_seed")
#: What every operator is handed first, see `Given`.
_GIVEN = (
    "Tensor{} weights, Tensor{}? iter, Tensor{}? momentum1, Tensor{}? momentum2, Tensor? hyper, Tensor? rounding_seed, "
    "Tensor indices, Tensor offsets, Tensor? per_sample_weights, Tensor? feature_requires_grad, "
    "SymInt[] sizes, SymInt[] ranks, str description, bool bounds_norms"
)
_READ, _CHANGED = _GIVEN.format("", "", "", ""), _GIVEN.format("(a!)", "(b!)", "(c!)", "(d!)")


def lookup_in_graph(
    tables: EmbeddingTables,
    held: Mapping[str, Tensor],
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    batch_size_per_feature_per_rank: Sequence[Sequence[int]] | None = None,
    feature_requires_grad: Tensor | None = None,
) -> Tensor:
    """As `tbe_kernels.functional.lookup`, through the operators. `held`: what is used and trained, named as in
    `EmbeddingTables.tensors`; of `tables`, only what never changes is used.

    Raises the same errors, some of them when the graph is made, and RuntimeError where the optimizer NONE would leave
    `row_gradients`, which no graph can, or with a `gradient_scale`, which none divides by.
    """
    weights = held["weights"]
    trains = torch.is_grad_enabled() and weights.requires_grad
    if trains and tables.gradient_scale is not None:
        raise RuntimeError(
            "gradient_scale: expected None in a graph, whose step does not divide by it; look the tables up outside of "
            "torch.compile"
        )
    sizes = batch_size_per_feature_per_rank or []
    output, _, _, _, bad = _lookup(
        weights,
        *(held.get(name) if trains else None for name in STATE),
        indices,
        offsets,
        per_sample_weights,
        feature_requires_grad,
        [samples for of_feature in sizes for samples in of_feature],
        [len(of_feature) for of_feature in sizes],
        tables.description,
        tables.optimizer.bounds_norms,
    )
    if tables.bounds_check_mode is BoundsCheckMode.WARNING:
        held["bounds_check_warning"].add_(bad)
    return output


class Given(NamedTuple):
    """The first arguments of each operator, in their order.

    The state is that of the tables, by name, or None throughout if nothing is trained. `sizes`: the samples of each
    feature and rank, one after the other; `ranks`: how many there are of each feature, none at all for a plain batch.
    """

    weights: Tensor
    iter: Tensor | None
    momentum1: Tensor | None
    momentum2: Tensor | None
    hyper: Tensor | None
    rounding_seed: Tensor | None
    indices: Tensor
    offsets: Tensor
    per_sample_weights: Tensor | None
    feature_requires_grad: Tensor | None
    sizes: Sequence[int]
    ranks: Sequence[int]
    description: str
    bounds_norms: bool


@torch.library.custom_op(
    f"{NAMESPACE}::lookup", mutates_args=(), schema=f"({_READ}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _lookup(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(output, checked indices, repaired offsets, lookups of each bag for MEAN, bad ones in mode WARNING).

    An operator's result is never one of its arguments: indices and offsets that were left alone come back empty.
    """
    given = Given(*args)
    tables = _tables(given)
    before = checked_batch(
        tables,
        given.indices,
        given.offsets,
        given.per_sample_weights,
        _by_feature(given) if given.ranks else None,
        given.feature_requires_grad,
    )
    bad = tables.bounds_check_warning = given.weights.new_zeros(_reported(given), dtype=torch.int64)
    after, output, counts, _ = forward(tables, before)
    checks, repairs = _replaced(given)
    return (
        output,
        after.indices if checks else given.indices.new_empty(0),
        after.offsets if repairs else given.offsets.new_empty(0),
        given.indices.new_empty(0, dtype=torch.int32) if counts is None else counts,
        bad,
    )


@_lookup.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    given = Given(*args)
    parts = parts_of(given.description)
    layout, mode = parts["layout"], parts["pooling_mode"]
    _check_held(given)
    check_arguments(layout, mode, given.weights.device, *given[6:10])
    B = (given.offsets.numel() - 1) // layout.num_features
    shape: tuple[int, ...] = (B, layout.total_D)
    if mode is PoolingMode.NONE:
        shape = (given.indices.numel(), layout.total_D // layout.num_features)
    elif given.ranks:
        dims = [layout.dims[t] for t in layout.feature_table_map]
        shape = (sum(sum(samples) * dim for samples, dim in zip(_by_feature(given), dims, strict=True)),)
    checks, repairs = _replaced(given)
    return (
        given.weights.new_empty(shape, dtype=parts["output_dtype"]),
        given.indices.new_empty(given.indices.numel() if checks else 0),
        given.offsets.new_empty(given.offsets.numel() if repairs else 0),
        given.indices.new_empty(given.offsets.numel() - 1 if mode is PoolingMode.MEAN else 0, dtype=torch.int32),
        given.weights.new_empty(_reported(given), dtype=torch.int64),
    )


@torch.library.custom_op(
    f"{NAMESPACE}::psw_gradient", mutates_args=(), schema=f"({_READ}, Tensor grad_output) -> Tensor"
)
def _psw_gradient(*args: Any) -> Tensor:
    """fp32 `[N]`, from the rows as they are now. `indices` and `offsets` as the lookup left them."""
    given, grad_output = Given(*args[:-1]), args[-1]
    tables = _tables(given)
    return gradient_of_per_sample_weights(tables, _batch(tables, given), grad_output.contiguous())


@_psw_gradient.register_fake
def _(*args: Any) -> Tensor:
    given = Given(*args[:-1])
    return given.weights.new_empty(given.indices.numel(), dtype=torch.float32)


@torch.library.custom_op(
    f"{NAMESPACE}::step",
    mutates_args=("weights", "iter", "momentum1", "momentum2"),
    schema=f"({_CHANGED}, Tensor grad_output, Tensor bag_counts) -> ()",
)
def _step(*args: Any) -> None:
    """Sum the gradients by row and step the rows. `indices`, `offsets` and `bag_counts` as the lookup left them."""
    given, (grad_output, bag_counts) = Given(*args[:-2]), args[-2:]
    tables = _tables(given)
    state: dict[str, Any] = dict(zip(STATE, given[1:6], strict=True))
    tables.rounding_seed = state.pop("rounding_seed")
    tables.optimizer = tables.optimizer.holding(state)
    counts = bag_counts if tables.pooling_mode is PoolingMode.MEAN else None
    fold_and_step(tables, _batch(tables, given), grad_output.contiguous(), counts)


@_step.register_fake
def _(*args: Any) -> None:
    pass


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    given = Given(*inputs)
    _, indices, offsets, bag_counts, bad = output
    checks, repairs = _replaced(given)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(indices, offsets, bag_counts, bad)
    ctx.save_for_backward(
        indices if checks else given.indices,
        offsets if repairs else given.offsets,
        given.per_sample_weights,
        given.feature_requires_grad,
        bag_counts,
    )
    # Not saved: a second backward must see the rows and the learning rate that it finds.
    ctx.held, ctx.static = given[:6], given[10:]
    save_without_version(*(tensor for tensor in ctx.held if tensor is not None))


def _backward(ctx: Any, grad_output: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    gradients: list[Tensor | None] = [None] * len(Given._fields)
    if grad_output is None:  # nobody asks for anything: no step, and no count of one
        return tuple(gradients)
    weights, *state = ctx.held
    *batch, bag_counts = ctx.saved_tensors
    weights = weights.detach()
    place = Given._fields.index("per_sample_weights")
    if ctx.needs_input_grad[place]:  # of the rows before the step
        gradients[place] = _psw_gradient(weights, *(None for _ in state), *batch, *ctx.static, grad_output)
    if state[0] is not None:
        _step(weights, *state, *batch, *ctx.static, grad_output, bag_counts)
    return tuple(gradients)


_lookup.register_autograd(_backward, setup_context=_setup_context)


def _replaced(given: Given) -> tuple[bool, bool]:
    """Whether the lookup makes indices and offsets of its own, which the backward is to use."""
    parts = parts_of(given.description)
    mode, fused = parts["bounds_check_mode"], parts["config"].fused_bounds_check
    reads_as_row_0 = mode in (BoundsCheckMode.WARNING, BoundsCheckMode.IGNORE)
    return reads_as_row_0 and not fused, mode is not BoundsCheckMode.NONE


def _reported(given: Given) -> int:
    """How many numbers say how many bad ones there were."""
    return int(parts_of(given.description)["bounds_check_mode"] is BoundsCheckMode.WARNING)


def _by_feature(given: Given) -> list[list[int]]:
    """`batch_size_per_feature_per_rank` again."""
    rest = iter(given.sizes)
    return [[next(rest) for _ in range(ranks)] for ranks in given.ranks]


def _check_held(given: Given) -> None:
    """Raise unless the tensors are those of the tables, and the optimizer one that a graph can step."""
    parts = parts_of(given.description)
    row, layout = OPTIMIZERS[parts["optimizer"]], parts["layout"]
    if given.iter is not None and not row.steps:
        raise RuntimeError(
            "optimizer: NONE leaves row_gradients with the module, which a graph cannot; train it outside of "
            "torch.compile, or look up under torch.no_grad()"
        )
    size = {"row": layout.total_rows, "element": layout.weights_offsets[-1]}
    of_state = () if given.iter is None else (("momentum1", row.momentum1), ("momentum2", row.momentum2))
    for name, kind in (("weights", "element"), *of_state):
        tensor = getattr(given, name)
        shape = None if tensor is None else tuple(tensor.shape)
        expected = None if kind is None else (size[kind],)
        if shape != expected:
            raise ValueError(f"{name}: expected shape {expected}, got {shape}")


@lru_cache(maxsize=64)
def _blank(description: str, bounds_norms: bool, device: torch.device) -> EmbeddingTables:
    """Tables of a description without tensors of anybody's: what their layout is on the device, and workspaces."""
    parts = dict(parts_of(description))
    layout, kind, decay_mode = parts["layout"], parts.pop("optimizer"), parts.pop("weight_decay_mode")
    optimizer = OptimizerState(kind, layout, torch.device("meta"), 0.0, decay_mode, {})
    optimizer.bounds_norms = bounds_norms
    return EmbeddingTables(weights=torch.empty(0, device=device), optimizer=optimizer, **parts)


def _tables(given: Given) -> EmbeddingTables:
    """The tables that an operator works on; their optimizer has nothing to work on."""
    _check_held(given)
    tables = copy.copy(_blank(given.description, given.bounds_norms, given.weights.device))
    tables.weights = given.weights
    return tables


def _batch(tables: EmbeddingTables, given: Given) -> LookupBatch:
    """The batch as the lookup left it."""
    layout, device, requires = tables.layout, given.weights.device, given.feature_requires_grad
    bags: BagLayout
    if given.ranks:
        bags = variable_bags(layout, _by_feature(given), device)
    else:
        bags = plain_bags(layout, (given.offsets.numel() - 1) // layout.num_features)
    judges = tables.config.fused_bounds_check and tables.bounds_check_mode is not BoundsCheckMode.NONE
    return LookupBatch(
        given.indices.contiguous(),
        given.offsets.contiguous(),
        None if given.per_sample_weights is None else given.per_sample_weights.contiguous(),
        bags,
        tables.on_device.rows_per_table if judges else None,
        None if requires is None else requires.to(torch.int32).contiguous(),
    )
