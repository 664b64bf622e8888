"""`TableBatchedEmbeddingBags`: the module that users call. Argument names are FBGEMM's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tbe_kernels.config import KernelConfig, target_of
from tbe_kernels.construction import MAX_GRADIENT, clipping, float_dtype, integer, one_of, rows_and_dims, truth
from tbe_kernels.fbgemm_names import FbgemmNames
from tbe_kernels.functional import lookup
from tbe_kernels.identity import as_tensor, differences, identity_of
from tbe_kernels.operators import lookup_in_graph
from tbe_kernels.optimizers import DEFAULTS, OptimizerState, OptimType
from tbe_kernels.parallel import refuse_replicas, refuse_stand_ins
from tbe_kernels.scaling import checked_scale
from tbe_kernels.spec import BoundsCheckMode, PoolingMode, TableLayout, WeightDecayMode
from tbe_kernels.tables import EmbeddingTables, RowGradients
from tbe_kernels.tracing import is_traced


class TableBatchedEmbeddingBags(FbgemmNames, nn.Module):
    """Many embedding tables behind one lookup, trained by their own backward.

    `embedding_specs`: (rows, D) of each table, both at least 1, or FBGEMM's (rows, D, location, compute device), which
    have to say where `device` is. `feature_table_map`: the table of each feature, by default one feature a table, in
    order. Integers and numbers may be numpy's. `weights_precision` and `output_dtype`: fp32, fp16 or bf16. `config`: a
    `KernelConfig`, or knobs on top of the target's defaults. `weights` is one flat parameter, uninitialised until
    `init_embedding_weights_uniform` or a copy into `split_embedding_weights()`; `requires_grad_(False)` freezes it, and
    why it is no buffer says `tbe_kernels.parallel`.
    `stochastic_rounding`: updated fp16 and bf16 rows are stored as one of their two neighbours, with the probability
    that keeps the mean (off by default, where FBGEMM has it on; fp32 rows are stored as they are either way). Modules
    with the same `rounding_seed`, any int64, round the same element in the same iteration alike.

    `optimizer` and its hyper-parameters: any that it does not read has to keep its default. `weight_decay` is part of
    the formula of ADAM, PARTIAL_ROWWISE_ADAM, LAMB, PARTIAL_ROWWISE_LAMB and LARS_SGD, whose `weight_decay_mode` is
    NONE, as in FBGEMM; EXACT_ROWWISE_ADAGRAD takes it with L2 or DECOUPLE. `gradient_clipping` clamps each element of
    the output's gradient to `max_gradient` either way before it is used for anything. The learning rate is there for
    every optimizer, since a schedule may set it; NONE steps nothing, see `row_gradients`.

    Buffers, all on the device and part of `state_dict()`: `iter` int64 `[1]`, backward calls so far;
    `bounds_check_warning` int64 `[1]`, bad ids and repaired offsets seen so far in mode WARNING; `hyper` fp32, the
    learning rate first; `rounding_seed` int64 `[1]`; the optimizer's state, `momentum1` and `momentum2`, flat fp32,
    where it has them. A state dict says which tables, pooling mode and optimizer it is of; one of others is refused
    with the names that differ. Hyper-parameters (`hyper`) are those of the checkpoint that was loaded last; clipping,
    rounding, bounds check and `config` stay the constructor's.

    Raises ValueError, naming the argument, for anything that is not allowed.
    """

    def __init__(
        self,
        embedding_specs: Sequence[tuple[int, int] | tuple[int, int, object, object]],
        *,
        feature_table_map: Sequence[int] | None = None,
        pooling_mode: PoolingMode = PoolingMode.SUM,
        weights_precision: torch.dtype = torch.float32,
        output_dtype: torch.dtype = torch.float32,
        bounds_check_mode: BoundsCheckMode = BoundsCheckMode.WARNING,
        optimizer: OptimType = OptimType.EXACT_SGD,
        learning_rate: float = 0.01,
        eps: float = DEFAULTS["eps"],
        weight_decay: float = DEFAULTS["weight_decay"],
        weight_decay_mode: WeightDecayMode = WeightDecayMode.NONE,
        stochastic_rounding: bool = False,
        rounding_seed: int = 0,
        beta1: float = DEFAULTS["beta1"],
        beta2: float = DEFAULTS["beta2"],
        eta: float = DEFAULTS["eta"],
        momentum: float = DEFAULTS["momentum"],
        max_norm: float = DEFAULTS["max_norm"],
        gradient_clipping: bool = False,
        max_gradient: float = MAX_GRADIENT,
        config: KernelConfig | Mapping[str, object] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        device = torch.device(device)
        one_of("pooling_mode", pooling_mode, PoolingMode)
        one_of("bounds_check_mode", bounds_check_mode, BoundsCheckMode)
        one_of("weight_decay_mode", weight_decay_mode, WeightDecayMode)
        truth("stochastic_rounding", stochastic_rounding)
        float_dtype("weights_precision", weights_precision)
        float_dtype("output_dtype", output_dtype)
        specs = rows_and_dims(embedding_specs, device)
        if not isinstance(config, KernelConfig):
            config = KernelConfig.for_target(target_of(device), config)
        layout = TableLayout(
            rows=tuple(rows for rows, _ in specs),
            dims=tuple(dim for _, dim in specs),
            feature_table_map=tuple(
                range(len(specs))
                if feature_table_map is None
                else (integer(f"feature_table_map[{f}]", table) for f, table in enumerate(feature_table_map))
            ),
            min_block_d=config.min_block_d,
        )
        dims = {layout.dims[t] for t in layout.feature_table_map}
        if pooling_mode is PoolingMode.NONE and len(dims) > 1:
            raise ValueError(f"embedding_specs: pooling_mode NONE needs one D for all features, got {sorted(dims)}")
        given = {"eps": eps, "weight_decay": weight_decay, "beta1": beta1, "beta2": beta2}
        given |= {"eta": eta, "momentum": momentum, "max_norm": max_norm}
        state = OptimizerState(optimizer, layout, device, learning_rate, weight_decay_mode, given)
        self.weights = nn.Parameter(torch.empty(layout.weights_offsets[-1], dtype=weights_precision, device=device))
        clip = clipping(gradient_clipping, max_gradient)
        modes = (pooling_mode, output_dtype, bounds_check_mode)
        self._tables = EmbeddingTables(self.weights, layout, *modes, state, config, stochastic_rounding, clip)
        for name, tensor in self._tables.tensors().items():
            if name != "weights":
                self.register_buffer(name, tensor)
        self.set_rounding_seed(rounding_seed)

    @property
    def tables(self) -> EmbeddingTables:
        """All that a lookup needs to know. Its tensors are those that the module holds now: whatever put others in
        place, an assignment, `load_state_dict(assign=True)` or `torch.func.functional_call`, they are used and trained.

        Raises ValueError for a tensor that cannot take the place of the one that was there, and RuntimeError where data
        parallelism has put one there (`tbe_kernels.parallel`).
        """
        known, buffers = self._tables, self._buffers
        optimizer = known.optimizer
        if (
            self._parameters.get("weights") is known.weights
            and buffers["iter"] is optimizer.iter
            and buffers["hyper"] is optimizer.hyper
            and buffers.get("momentum1") is optimizer.momentum1
            and buffers.get("momentum2") is optimizer.momentum2
            and buffers["rounding_seed"] is known.rounding_seed
            and buffers["bounds_check_warning"] is known.bounds_check_warning
        ):
            return known
        if self._parameters.get("weights") is not known.weights:
            refuse_stand_ins(self)
        return self._take_tensors()

    def _take_tensors(self) -> EmbeddingTables:
        """Tables in the tensors that the module holds: the same, on which lookups may have been begun, if those are."""
        known = self._tables.tensors()
        held = {name: getattr(self, name) for name in known}
        if any(held[name] is not tensor for name, tensor in known.items()):
            self._tables = self._tables.holding(held)
        return self._tables

    def forward(
        self,
        indices: Tensor,
        offsets: Tensor,
        per_sample_weights: Tensor | None = None,
        batch_size_per_feature_per_rank: Sequence[Sequence[int]] | None = None,
        feature_requires_grad: Tensor | None = None,
    ) -> Tensor:
        """Pooled rows `[B, total_D]` of every bag; `tbe_kernels.functional.lookup` has shapes, dtypes and errors."""
        rest = (per_sample_weights, batch_size_per_feature_per_rank, feature_requires_grad)
        if is_traced(self.weights, indices):
            refuse_replicas(self, self._tables)
            held = {"weights": self.weights, **dict(self.named_buffers(recurse=False))}
            return lookup_in_graph(self._tables, held, indices, offsets, *rest)
        tables = self.tables
        refuse_replicas(self, tables)
        return lookup(tables, indices, offsets, *rest)

    bounds_check_warning: Tensor
    iter: Tensor
    hyper: Tensor

    def set_rounding_seed(self, rounding_seed: int) -> None:
        """Set the seed of stochastic rounding for every later backward, without synchronising.

        The noise of a backward depends on this seed, on `iter` and on the element, so a run repeats if all of them do.
        Raises ValueError unless it is an integer that int64 holds.
        """
        if not -(2**63) <= integer("rounding_seed", rounding_seed) < 2**63:
            raise ValueError(f"rounding_seed: expected an integer from -2**63 to 2**63 - 1, got {rounding_seed}")
        self.tables.rounding_seed.fill_(int(rounding_seed))

    @property
    def gradient_scale(self) -> Tensor | None:
        """The number by which every later backward divides the gradients of its output before they are clipped and
        stepped with, under `torch.amp.GradScaler`: fp32, one element, on the device; None, at first, for no scale.

        A step whose gradients are infinite or NaN anywhere is left out whole and not counted in `iter`, which is
        decided on the device. Gradients of per-sample weights stay scaled: the scaler unscales them. What is changed in
        place is followed; it is no part of `state_dict()`. Set before each backward:
        `tables.gradient_scale = scaler.scale(torch.ones((), device=...))`, which waits for nothing either.

        Raises ValueError for anything else.
        """
        return self.tables.gradient_scale

    @gradient_scale.setter
    def gradient_scale(self, scale: Tensor | None) -> None:
        self.tables.gradient_scale = None if scale is None else checked_scale(scale, self.weights)

    @property
    def row_gradients(self) -> RowGradients | None:
        """With the optimizer NONE, what the last backward summed: (rows, gradients, count), on the device.

        `rows` int64 and `gradients` fp32 `[min(N, total rows), max D]` hold the `count` touched rows and their
        gradients first; then -1 and zeros. Each backward makes new tensors (a captured graph fills the same ones
        again). None before the first backward, and for every optimizer that steps.
        """
        return self.tables.row_gradients

    def get_extra_state(self) -> Tensor:
        """What the state dict is of, see `tbe_kernels.identity`: uint8, on the host."""
        return as_tensor(self._identity())

    def set_extra_state(self, state: Tensor) -> None:
        """Looked at before anything is loaded."""

    def _identity(self) -> dict[str, Any]:
        tables = self._tables
        optimizer = tables.optimizer
        return identity_of(tables.layout, tables.pooling_mode, optimizer.optimizer, optimizer.weight_decay_mode)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """Refuse what is of another module before anything is taken; hyper-parameters are the checkpoint's."""
        saved, errors = state_dict.get(f"{prefix}_extra_state"), rest[-1]
        different = [] if saved is None else differences(self._identity(), saved)
        if different:
            errors.append(f"{prefix.rstrip('.') or 'TableBatchedEmbeddingBags'}: {'; '.join(different)}")
            return
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._take_tensors().optimizer.read_norm_bound()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: kernels, which cannot travel, are found again by the optimizer's name."""
        state, tables = self.__dict__.copy(), self.tables
        del state["_tables"]
        state["_made_of"] = {
            "layout": tables.layout,
            "pooling_mode": tables.pooling_mode,
            "output_dtype": tables.output_dtype,
            "bounds_check_mode": tables.bounds_check_mode,
            "config": tables.config,
            "stochastic_rounding": tables.stochastic_rounding,
            "max_gradient": tables.max_gradient,
            "gradient_scale": tables.gradient_scale,
        }
        optimizer = tables.optimizer
        state["_steps_by"] = (optimizer.optimizer, optimizer.weight_decay_mode, optimizer.bounds_norms)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        made_of, (kind, decay_mode, bounds_norms) = state.pop("_made_of"), state.pop("_steps_by")
        super().__setstate__(state)
        optimizer = OptimizerState(kind, made_of["layout"], torch.device("meta"), 0.0, decay_mode, {})
        optimizer.bounds_norms = bounds_norms
        optimizer = optimizer.holding({name: getattr(self, name) for name in optimizer.tensors()})
        tables = EmbeddingTables(weights=self.weights, optimizer=optimizer, **made_of)
        self._tables = tables.holding({name: getattr(self, name) for name in tables.tensors()})

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TableBatchedEmbeddingBags:
        """`to`, `half`, `cuda` and the like: refused if they would change anything."""
        moved = fn(self.weights.detach()[:0])
        if moved.dtype != self.weights.dtype or moved.device != self.weights.device:
            raise RuntimeError(
                f"a TableBatchedEmbeddingBags stays as it was made, {self.weights.dtype} on {self.weights.device}; "
                f"got {moved.dtype} on {moved.device}: pass weights_precision= and device= to the constructor"
            )
        return self
