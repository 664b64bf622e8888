"""The reference: `torch.nn.functional.embedding_bag` in fp64 under autograd, and what it allows an implementation.

Each step is judged from the weights and state that the implementation itself had before it, so errors do not pile up.
A second pass with absolute values gives the magnitudes that the bounds are made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from corpus.case import Case
from corpus.tensors import BatchTensors, OutputPlaces, TableRows, batch_tensors, output_places
from oracles.contract import EffectiveBatch, effective_batch
from oracles.values import optimizers
from oracles.values.interval import Interval
from oracles.values.tolerance import PER_PRODUCT, PER_SPLIT_PRODUCT, SPLIT, grid, product_interval, sum_interval


@dataclass
class ExpectedRows:
    """What one table may hold after a backward: `touched` rows (places among the tracked ones) step, others stay."""

    touched: Tensor  # int64 [n]
    weights: Interval  # [n, D], as stored
    state: dict[str, Interval]  # [n] or [n, D]
    certain: Tensor  # bool [n, D]: where only one fp32 number can have come to be stored
    gradients: Interval  # [n, D], fp32


@dataclass
class ExpectedBackward:
    """What a backward may leave behind."""

    tables: list[ExpectedRows]
    psw_gradient: Interval | None  # [N]


@dataclass
class _Feature:
    """One feature's part of a batch. `places` are rows among the table's tracked ones; pruned ids have `padding`.

    `pools`: where each pool of lookups, which becomes one output row, begins; `output` `[pools, D]` where that row lies
    in the flat output; `counts` fp64 `[pools, 1]` how many of its lookups count.
    """

    table: int
    span: slice  # of the batch's lookups
    places: Tensor
    pools: Tensor  # int64
    output: Tensor
    counts: Tensor
    padding: int

    def live(self) -> Tensor:
        """Where an id is not pruned."""
        return self.places < self.padding


class ReferenceBatch:
    """One batch, its ids resolved by the contract, ready to be looked up in any weights."""

    def __init__(self, case: Case, number: int, tracked: tuple[TableRows, ...]) -> None:
        self.case, self.given = case, case.batches[number]
        self.effective: EffectiveBatch = effective_batch(case, number)
        self.tensors: BatchTensors = batch_tensors(case, number, torch.device("cpu"))
        self.grad = self.tensors.grad_output.to(torch.float64).reshape(-1)
        if case.optimizer.max_gradient is not None:
            bound = optimizers.fp32(case.optimizer.max_gradient)
            self.grad = self.grad.clamp(-bound, bound)  # NaN stays NaN
        self.psw = None
        if self.tensors.per_sample_weights is not None:
            self.psw = self.tensors.per_sample_weights.detach().to(torch.float64)
        self.features: list[_Feature] = []
        if self.effective.refusal is not None:
            return
        starts, offsets = case.bag_starts(number), torch.from_numpy(self.effective.offsets)
        spans = offsets[list(starts)].tolist()
        self.output: OutputPlaces = output_places(case, number, np.diff(spans))
        ids = torch.tensor(self.effective.ids)
        live = torch.cat((torch.zeros(1, dtype=torch.int64), torch.cumsum(ids >= 0, 0)))
        for f, table in enumerate(case.feature_table_map):
            begin, end = spans[f], spans[f + 1]
            rows, some = tracked[table].rows, ids[begin:end]
            places = some if rows is None else torch.searchsorted(rows, some)
            padding = len(tracked[table].values)
            places = torch.where(some < 0, padding, places)
            # Without pooling, every lookup is a pool of its own.
            bounds = offsets[starts[f] : starts[f + 1] + 1]
            if case.pooling_mode == "NONE":
                bounds = torch.arange(begin, end + 1)
            counts = (live[bounds[1:]] - live[bounds[:-1]]).to(torch.float64)[:, None]
            self.features.append(
                _Feature(
                    table, slice(begin, end), places, bounds[:-1] - begin, self.output.of_feature[f], counts, padding
                )
            )

    def place(self, at: tuple[int, ...]) -> str:
        """The name of an element of the flat output."""
        feature = next(f for f, part in enumerate(self.features) if (part.output == at[0]).any())
        row, column = (self.features[feature].output == at[0]).nonzero()[0].tolist()
        row_name = "lookup" if self.case.pooling_mode == "NONE" else "sample"
        return f"output[feature {feature}, {row_name} {row}, col {column}]"

    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Each feature's `[pools, D]` put where its output lies: flat."""
        out = parts[0].new_zeros(int(np.prod(self.output.shape)))
        places = torch.cat([feature.output.reshape(-1) for feature in self.features])
        return out.index_put((places,), torch.cat([part.reshape(-1) for part in parts]))

    def _pool(self, leaves: list[Tensor], psw: Tensor | None, mode: str, sparse: bool) -> Tensor:
        """Autograd's own pooling over all features: flat, in the order of the output."""
        parts = []
        for feature in self.features:
            leaf = leaves[feature.table]
            if len(feature.pools) == 0:
                parts.append(leaf.new_zeros(0, leaf.shape[1]))
                continue
            parts.append(
                embedding_bag(
                    feature.places,
                    leaf,
                    feature.pools,
                    mode=mode.lower(),
                    sparse=sparse,
                    per_sample_weights=None if psw is None else psw[feature.span],
                    padding_idx=leaf.shape[0] - 1,
                )
            )
        return self._joined(parts)

    def _leaves(self, weights: list[Tensor], absolute: bool, trained: bool) -> list[Tensor]:
        out = []
        for w in weights:
            w = w.to(torch.float64)
            padded = torch.cat((w.abs() if absolute else w, w.new_zeros(1, w.shape[1])))
            out.append(padded.requires_grad_(trained))
        return out

    def forward(self, weights: list[Tensor], accumulator: torch.dtype, tensor_products: bool = False) -> Interval:
        """What the output may be, flat, as stored in the output dtype; of `tensor_products`, see `Forward`."""
        case = self.case
        psw = self.psw
        center = self._pool(self._leaves(weights, False, False), psw, "SUM", False)
        magnitude = self._pool(self._leaves(weights, True, False), None if psw is None else psw.abs(), "SUM", False)
        psw_grid = 1.0 if psw is None else grid(psw)
        steps = [grid(weights[f.table][f.places[f.live()]]) * psw_grid for f in self.features]
        step = self._joined([s.expand(f.output.shape) for s, f in zip(steps, self.features, strict=True)])
        counts = self._joined([f.counts.expand(f.output.shape) for f in self.features])
        if tensor_products:
            total = product_interval(center, magnitude, counts, PER_PRODUCT, 0, step)
        else:
            total = sum_interval(center, magnitude, counts, 0 if psw is None else 1, step, accumulator)
        if case.pooling_mode == "MEAN":
            divisor = counts.clamp(min=1)
            total = Interval(total.lo / divisor, total.hi / divisor).rounded(accumulator)
        return total.rounded(getattr(torch, case.output_dtype))

    def backward(
        self,
        weights: list[Tensor],
        state: list[optimizers.State],
        lr: float,
        iteration: int,
        accumulator: torch.dtype,
        tensor_products: bool = False,
    ) -> ExpectedBackward:
        """What rows, state and psw gradients may be afterwards, from `weights` and `state` before.

        `iteration`: backward calls, this one included. Of `tensor_products`, see `implementation.Backward`.
        """
        case = self.case
        center, psw_center = self._gradients(weights, False)
        magnitude, psw_magnitude = self._gradients(weights, True)
        tables = []
        for t, w in enumerate(weights):
            touched, g = center[t]
            before = {name: value[touched].to(torch.float64) for name, value in state[t].items()}
            g_interval = self._row_gradients(t, touched, g, magnitude[t][1], tensor_products)
            step = optimizers.step(w[touched].to(torch.float64), g_interval, g, before, lr, case.optimizer, iteration)
            stochastic = case.stochastic_rounding
            stored = step.weights.rounded_stochastically(w.dtype) if stochastic else step.weights.rounded(w.dtype)
            tables.append(ExpectedRows(touched, stored, step.state, step.weights.is_point(), g_interval))
        psw_gradient = None
        if self.given.psw == "trained":
            assert psw_center is not None
            assert psw_magnitude is not None
            psw_gradient = self._psw_gradients(weights, psw_center, psw_magnitude, accumulator)
        return ExpectedBackward(tables, psw_gradient)

    def _gradients(self, weights: list[Tensor], absolute: bool) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """(touched rows, their gradients) of each table, and the gradients of the per-sample weights, by autograd."""
        leaves = self._leaves(weights, absolute, True)
        psw = self.psw
        if psw is not None:
            psw = (psw.abs() if absolute else psw.clone()).requires_grad_()
        output = self._pool(leaves, psw, "MEAN" if self.case.pooling_mode == "MEAN" else "SUM", sparse=True)
        grad = self.grad.abs() if absolute else self.grad
        wanted: list[Any] = [*leaves, *([] if psw is None else [psw])]
        found: list[Any] = [None] * len(wanted)
        if output.requires_grad:
            found = list(torch.autograd.grad(output, wanted, grad, allow_unused=True))
        tables = []
        for leaf, g in zip(leaves, found, strict=False):
            if g is None:
                tables.append((torch.zeros(0, dtype=torch.int64), torch.zeros(0, leaf.shape[1], dtype=leaf.dtype)))
                continue
            g = g.coalesce()
            tables.append((g.indices()[0], g.values()))
        if psw is None:
            return tables, None
        return tables, torch.zeros_like(psw) if found[-1] is None else found[-1]

    def _row_gradients(
        self, table: int, touched: Tensor, g: Tensor, magnitude: Tensor, tensor_products: bool
    ) -> Interval:
        """What the sum of a row's gradients may be, in fp32: `[touched, D]`."""
        lookups = torch.zeros(len(touched), dtype=torch.float64)
        step, roundings = torch.tensor(torch.inf, dtype=torch.float64), 0
        for feature in self.features:
            if feature.table != table or len(touched) == 0:
                continue
            live = feature.places[feature.live()]
            lookups.index_add_(0, torch.searchsorted(touched, live), torch.ones(len(live), dtype=torch.float64))
            used = feature.counts[:, 0] > 0
            terms = self.grad[feature.output[used]]
            if self.case.pooling_mode == "MEAN":
                terms = terms / feature.counts[used]
                inexact = terms.to(torch.float32).to(torch.float64) != terms
                roundings = max(roundings, int((inexact & ~terms.isnan()).any()))
            step = torch.minimum(step, grid(terms))
        if self.psw is not None:
            step, roundings = step * grid(self.psw), 1
        if tensor_products:
            return product_interval(g, magnitude, lookups[:, None], PER_SPLIT_PRODUCT, roundings + SPLIT, step)
        return sum_interval(g, magnitude, lookups[:, None], roundings, step, torch.float32)

    def _psw_gradients(
        self, weights: list[Tensor], center: Tensor, magnitude: Tensor, accumulator: torch.dtype
    ) -> Interval:
        """What the dot product of a row and its bag's gradient may be: `[N]`, fp32."""
        los, his = torch.zeros_like(center), torch.zeros_like(center)
        for number, feature in enumerate(self.features):
            if self.given.feature_requires_grad and not self.given.feature_requires_grad[number]:
                continue
            w = weights[feature.table]
            grads = self.grad[feature.output[feature.counts[:, 0] > 0]]
            step = grid(w[feature.places[feature.live()]]) * grid(grads)
            D = torch.tensor(float(w.shape[1]), dtype=torch.float64)
            part = sum_interval(center[feature.span], magnitude[feature.span], D, 1, step, accumulator)
            part = part.rounded(torch.float32)
            los[feature.span], his[feature.span] = part.lo, part.hi
        return Interval(los, his)
