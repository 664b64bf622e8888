"""Comparing one result with what is allowed: findings that name elements, and a tally of how sharp it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.values.interval import Interval

#: Differences that a finding spells out.
SHOWN = 5
Place = tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """One element that is not what it may be. `place` names it; `detail` says more about its row."""

    place: str
    actual: float
    expected: float
    allowed: float
    detail: str = ""


@dataclass(frozen=True)
class Finding:
    """Everything that is wrong with one result: a headline, and the first few elements.

    `raised`: the type of the exception that ended the run, or "". `across`: shows only between two routings. `guard`:
    which guard of the interpreter saw it.
    """

    headline: str
    differences: tuple[Difference, ...] = ()
    raised: str = ""
    across: bool = False
    guard: str = ""


@dataclass
class Sharpness:
    """How sharp a comparison was: elements that had to match exactly, within a bound, or not at all (a divisor that may
    be zero), and the largest error seen in units of its bound."""

    exact: int = 0
    bounded: int = 0
    free: int = 0
    worst: float = 0.0

    def add(self, other: Sharpness) -> None:
        """Count another comparison in."""
        self.exact += other.exact
        self.bounded += other.bounded
        self.free += other.free
        self.worst = max(self.worst, other.worst)


def compare(
    name: str,
    expected: Interval,
    actual: Tensor,
    place: Callable[[Place], str],
    tally: Sharpness,
    detail: Callable[[Place], str] = lambda at: "",
) -> list[Finding]:
    """A finding for the elements of `actual` that `expected` does not admit; adds to `tally`."""
    x = actual.to(torch.float64)
    point, free = expected.is_point(), expected.is_free()
    radius = (expected.hi - expected.lo) / 2
    center = expected.lo + radius
    bounded = ~point & ~free & torch.isfinite(radius)
    ratio = ((x - center).abs() / radius)[bounded].nan_to_num(0.0)
    worst = float(ratio.max()) if ratio.numel() else 0.0
    tally.add(Sharpness(int(point.sum()), int(bounded.sum()), int(free.sum()), worst))
    places = [tuple(map(int, at)) for at in (~expected.admits(x)).nonzero()]
    if not places:
        return []
    rows = len({at[0] for at in places})
    differences = tuple(
        Difference(place(at), float(x[at]), float(center[at]), float(radius[at]), detail(at)) for at in places[:SHOWN]
    )
    return [Finding(f"{len(places)} of {x.numel()} {name}, {rows} row{'s' if rows > 1 else ''}", differences)]


def compare_bits(name: str, before: Tensor, after: Tensor, where: Tensor | None = None) -> list[Finding]:
    """A finding unless every bit is what it was, in the rows `where` (default: all)."""
    if before.shape != after.shape or before.dtype != after.dtype:
        return [Finding(f"{name}: {tuple(after.shape)} {after.dtype}, was {tuple(before.shape)} {before.dtype}")]
    changed = bits(before) != bits(after)
    if where is not None:
        changed &= where if changed.dim() == 1 else where[:, None]
    places = [tuple(map(int, at)) for at in changed.nonzero()]
    if not places:
        return []
    differences = tuple(Difference(f"{name}{list(p)}", float(after[p]), float(before[p]), 0.0) for p in places[:SHOWN])
    return [Finding(f"{len(places)} of {changed.numel()} {name} changed", differences)]


def bits(x: Tensor) -> Tensor:
    """The same memory as integers, so that NaNs compare."""
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
