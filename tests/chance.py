"""Statistics with a stated confidence: limits that a right generator exceeds with a probability of at most `MISS` each.

No approximation is involved, so the confidence holds for any number of observations:

* a share: of n independent events of probability p, k happen. `P(KL(k / n || p) * n >= t) <= 2 * exp(-t)`, the bound of
  Chernoff in Hoeffding's form (Hoeffding 1963, theorem 1), KL being the divergence of two coins;
* independence: of independent fair bits laid out in any number of dimensions, take all pairs whose places differ by one
  fixed shift. The pairs make up paths that share no bit, and along a path the exclusive ors of neighbours are
  independent fair bits again. So their number of ones is a share of one half, with the same limit.

A `Trial` keeps what exceeded its limit. With at most `MOST` comparisons, all of them together raise a false alarm with
a probability below 1e-9, over the choice of the seeds; the seeds are fixed, so what passes once passes always.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

MISS = 1e-13
MOST = 9999
LIMIT = math.log(2 / MISS)


def surprise(k: int, n: int, p: float) -> float:
    """`n * KL(k / n || p)`: how many powers of e such a share, or one further off, is improbable by at least."""
    parts = ((k, p), (n - k, 1 - p))
    return sum(count * (math.log(count / n) - math.log(share)) for count, share in parts if count)


@dataclass
class Trial:
    """What was compared with its limit, and what exceeded it. `worst`: the largest surprise as a part of the limit."""

    problems: list[str] = field(default_factory=list)
    comparisons: int = 0
    worst: float = 0.0

    def share(self, name: str, k: int, n: int, p: float) -> None:
        """k of n independent events of probability p."""
        self.comparisons += 1
        part = surprise(k, n, p) / LIMIT
        self.worst = max(self.worst, part)
        if part >= 1:
            self.problems.append(f"{name}: {k} of {n}, expected {n * p:.1f}")

    def shifted(self, name: str, bits: Tensor, shift: tuple[int, ...]) -> None:
        """Fair bits (a bool tensor) and those `shift` places further on are independent."""
        here = tuple(slice(max(0, -s), n - max(0, s)) for s, n in zip(shift, bits.shape, strict=True))
        there = tuple(slice(max(0, s), n - max(0, -s)) for s, n in zip(shift, bits.shape, strict=True))
        differ = bits[here] ^ bits[there]
        self.share(f"{name} and {shift} further on differ", int(differ.sum()), differ.numel(), 0.5)

    def count(self, name: str, have: int, expected: int) -> None:
        """A number that leaves nothing to chance."""
        self.comparisons += 1
        if have != expected:
            self.problems.append(f"{name}: {have}, expected {expected}")

    def equal(self, name: str, first: Tensor, second: Tensor) -> None:
        """Two tensors that have to be the same, bit for bit."""
        self.comparisons += 1
        differ = int((first != second).sum()) if first.shape == second.shape else first.numel()
        if differ:
            self.problems.append(f"{name}: {differ} of {first.numel()} differ")


def shifts(dimensions: int, further: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """One step along any axes at once, each pair of places once, and `further` steps along the last axis."""
    steps = [tuple(s.tolist()) for s in torch.cartesian_prod(*[torch.tensor([-1, 0, 1])] * dimensions)]
    near = [s for s in steps if s > (0,) * dimensions]
    return [*near, *((0,) * (dimensions - 1) + (step,) for step in further)]
