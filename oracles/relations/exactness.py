"""Which sums of a case are exact, in whatever order they are added up: proved from the numbers, without a reference.

The argument is that of `oracles.values.tolerance`, with one bound for all sums of a step instead of one for each
element: as many terms as the longest sum has, each as large as the largest, all of them multiples of the product of the
grids. Two runs that add exact sums in two orders have to agree bit for bit. It takes the terms alone, so it may fail
where a sum is exact all the same, and never holds where one is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from corpus.optimizers import KINDS, NORMS, NOTHING, SQUARES
from oracles.contract import run_lengths
from oracles.relations.pieces import Pieces
from oracles.values.tolerance import LEAST, PRODUCT_PRECISION, grid


def exact(terms: int, *factors: Tensor) -> bool:
    """Whether every sum of at most `terms` products, of one number of each of `factors`, is exact in any order.

    In fp32, fp64 or on tensor cores. Infinities and NaNs add up to the same in any order; a single term is no sum.
    """
    if terms <= 1:
        return True
    largest, step = _sizes(*factors)
    return terms * largest <= 2.0**PRODUCT_PRECISION * step and step >= LEAST[torch.float32]


def _sizes(*factors: Tensor) -> tuple[float, float]:
    """The largest product of one number of each factor, and what all of them are multiples of (inf if all are 0)."""
    largest = step = 1.0
    for factor in factors:
        finite = factor[torch.isfinite(factor)].to(torch.float64)
        largest *= float(finite.abs().max()) if len(finite) else 0.0
        step *= float(grid(finite))
    return (largest, step) if largest else (0.0, torch.inf)


class Exactness:
    """What is exact in the steps of a case that is taken apart; `weights` are those a step began with."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces, self.case = pieces, pieces.case

    def outputs(self, number: int, weights: list[Tensor]) -> bool:
        """Whether the sums of a forward are."""
        features = self.pieces.batches[number].features
        return self.case.pooling_mode == "NONE" or all(
            exact(
                int(bags.counts().max()) if len(bags.lengths) else 0, self._rows(number, f, weights), *_given(bags.psw)
            )
            for f, bags in enumerate(features)
        )

    def psw_gradients(self, number: int, weights: list[Tensor]) -> bool:
        """Whether the products of rows and gradients are."""
        part = self.pieces.batches[number]
        return part.given.psw != "trained" or all(
            exact(bags.gradients.shape[1], self._rows(number, f, weights), self._terms(number, f))
            for f, bags in enumerate(part.features)
        )

    def row_gradients(self, number: int) -> bool:
        """Whether the sums of gradients by row are."""
        return exact(self._longest_run(number), *self._gradient(number))

    def columns(self, number: int) -> bool:
        """Whether what a step adds up over the columns of a row is, if it adds up anything."""
        given = self.case.optimizer
        columns = KINDS[given.name].columns
        if columns == NORMS or given.max_norm or (columns == SQUARES and given.weight_decay_mode == "L2"):
            return False  # of numbers that have been rounded before
        if columns == NOTHING:
            return True
        largest, step = _sizes(*self._gradient(number))
        widest, longest = max(table.dim for table in self.case.tables), self._longest_run(number)
        return widest * (longest * largest) ** 2 <= 2.0**PRODUCT_PRECISION * step**2

    def changes(self) -> bool:
        """Whether EXACT_SGD is exact on fp32 weights over all backwards, in whatever parts they are taken."""
        weights = torch.cat([table.values.reshape(-1) for table in self.pieces.tables])
        (most, step), rate = _sizes(weights), self.case.optimizer.learning_rate
        for kind, number in self.case.steps():
            if kind == "forward":
                continue
            new_rate = self.pieces.batches[number].given.learning_rate
            rate = rate if new_rate is None else new_rate
            largest, multiple = _sizes(torch.tensor([rate], dtype=torch.float64), *self._gradient(number))
            most, step = most + self._longest_run(number) * largest, min(step, multiple)
        return most <= 2.0**PRODUCT_PRECISION * step

    def _rows(self, number: int, feature: int, weights: list[Tensor]) -> Tensor:
        """The numbers in the rows that a feature looks up."""
        t = self.case.feature_table_map[feature]
        ids, tracked = self._ids(number, feature), self.pieces.tables[t].rows
        return weights[t][ids if tracked is None else torch.searchsorted(tracked, ids)].reshape(-1)

    def _ids(self, number: int, feature: int) -> Tensor:
        """The rows that are looked up: pruned ids none, bad ones row 0."""
        ids = self.pieces.batches[number].features[feature].ids
        rows = self.case.tables[self.case.feature_table_map[feature]].rows
        ids = ids[ids != -1]
        return torch.where((ids < 0) | (ids >= rows), 0, ids)

    def _longest_run(self, number: int) -> int:
        """Lookups of the row that has most of them."""
        return max(run_lengths(self.case, number), default=0)

    def _gradient(self, number: int) -> list[Tensor]:
        """The factors of each lookup's gradient."""
        features = self.pieces.batches[number].features
        terms = torch.cat([self._terms(number, f) for f in range(len(features))])
        psw = [bags.psw for bags in features if bags.psw is not None]
        return [terms, *([torch.cat(psw)] if psw else [])]

    def _terms(self, number: int, feature: int) -> Tensor:
        """The gradient of each pool that has lookups, clipped, and divided for MEAN."""
        bags, bound = self.pieces.batches[number].features[feature], self.case.optimizer.max_gradient
        gradients = clipped(bags.gradients, bound)
        if self.case.pooling_mode != "NONE":
            counts = bags.counts()
            gradients = gradients[counts > 0]
            if self.case.pooling_mode == "MEAN":
                gradients = gradients / counts[counts > 0][:, None]
        return gradients.reshape(-1)


def clipped(gradients: Tensor, bound: float | None) -> Tensor:
    """fp32 gradients clamped to a bound, if there is one."""
    gradients = gradients.to(torch.float32)
    return gradients if bound is None else gradients.clamp(-bound, bound)


def _given(psw: Tensor | None) -> list[Tensor]:
    return [] if psw is None else [psw]
