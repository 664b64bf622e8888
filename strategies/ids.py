"""Ids of one feature: the skews that production sends, and runs aimed at the constants of a routing.

Rank distributions are drawn by inverting their law at a drawn quantile, so every id stays one Hypothesis integer that
shrinks towards the hottest row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from tbe_kernels.config import KernelConfig

#: Meta's 2022 lookup traces (`dlrm_datasets`: 788 tables, batch 131,072, 1,405 M lookups): the share of lookups that
#: fall on rows with a run of 1, 2, 3-4, 5-8, ... lookups. https://github.com/facebookresearch/dlrm_datasets
RUN_LENGTH_SHARE = (0.027, 0.023, 0.040, 0.068, 0.105, 0.120, 0.099, 0.070, 0.059, 0.054, 0.040, 0.072, 0.064)
QUANTILES = 2**16

#: How the ids of a feature are spread over its table.
SKEWS = ("uniform", "zipf", "heavy_hitters", "one_hot", "different", "sorted", "strided", "ends", "production")


def run_targets(config: KernelConfig, most: int) -> list[int]:
    """Run lengths at each routing constant, one below and one above, up to `most`."""
    threshold, chunk = config.long_run_threshold, config.chunk_size
    gather = config.backward_gather_width
    at = {threshold, threshold + 1, *(k * chunk for k in (1, 2, 3)), gather, 2 * gather}
    near = {n + d for n in at for d in (-1, 0, 1)}
    return sorted(n for n in near if 1 <= n <= most) or [1]


def bag_targets(config: KernelConfig, most: int) -> list[int]:
    """Bag lengths at the gather width and its double, one below and one above, up to `most`."""
    near = {k * config.gather_width + d for k in (1, 2) for d in (-1, 0, 1)}
    return sorted(n for n in near if 1 <= n <= most) or [1]


@st.composite
def id_lists(draw: st.DrawFn, *, rows: int, count: int, skew: str, pruned: bool) -> list[int]:
    """`count` ids of a table with `rows` rows; with `pruned`, about one in four is -1."""
    ids = _DRAWERS[skew](draw, rows, count)
    if pruned:
        ids = [-1 if draw(st.integers(0, 3)) == 3 else i for i in ids]
    return ids


def _uniform(draw: st.DrawFn, rows: int, count: int) -> list[int]:
    return draw(st.lists(st.integers(0, rows - 1), min_size=count, max_size=count))


def _by_quantile(draw: st.DrawFn, count: int, rank: Callable[[float], int]) -> list[int]:
    quantiles = draw(st.lists(st.integers(0, QUANTILES - 1), min_size=count, max_size=count))
    return [rank(q / QUANTILES) for q in quantiles]


def _zipf(draw: st.DrawFn, rows: int, count: int) -> list[int]:
    exponent = draw(st.sampled_from((1.05, 0.6, 0.8, 1.3, 2.0)))
    power = 1.0 - exponent
    return _by_quantile(
        draw, count, lambda q: min(rows - 1, int(((rows + 1.0) ** power * q + 1.0 - q) ** (1.0 / power)) - 1)
    )


def _heavy_hitters(draw: st.DrawFn, rows: int, count: int) -> list[int]:
    """Up to 20 hot ids share a drawn mass; the rest follow p(k) ~ (k + q) ** -s."""
    hot = draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=min(20, rows), unique=True))
    mass, flat = draw(st.sampled_from((0.5, 0.25, 0.75, 0.9))), draw(st.sampled_from((1.0, 10.0)))
    power = -0.2  # s = 1.2

    def rank(q: float) -> int:
        if q < mass:
            return hot[int(q / mass * len(hot))]
        rest = (q - mass) / (1.0 - mass)
        place = ((rows + flat) ** power * rest + flat**power * (1.0 - rest)) ** (1.0 / power) - flat
        return min(rows - 1, max(0, int(place)))

    return _by_quantile(draw, count, rank)


def _production(draw: st.DrawFn, rows: int, count: int) -> list[int]:
    """Row after row, each with a run whose length follows the traces' histogram."""
    ids: list[int] = []
    row = draw(st.integers(0, rows - 1))
    while len(ids) < count:
        run = production_run(draw(st.integers(0, QUANTILES - 1)) / QUANTILES)
        ids += [row] * min(run, count - len(ids))
        row = (row + 1) % rows
    return ids


def production_run(quantile: float) -> int:
    """The run length at a quantile: 1, 2, 4, ... such that lookups fall on each as `RUN_LENGTH_SHARE` says."""
    rows = [share / 2**octave for octave, share in enumerate(RUN_LENGTH_SHARE)]
    left = quantile * sum(rows)
    for octave, share in enumerate(rows):
        if left < share:
            return 2**octave
        left -= share
    return 2 ** (len(rows) - 1)


def _one_hot(draw: st.DrawFn, rows: int, count: int) -> list[int]:
    return [draw(st.integers(0, rows - 1))] * count


def _different(draw: st.DrawFn, rows: int, count: int) -> list[int]:
    start = draw(st.integers(0, rows - 1))
    return [(start + i) % rows for i in range(count)]


def _sorted(draw: st.DrawFn, rows: int, count: int) -> list[int]:
    return sorted(_uniform(draw, rows, count), reverse=draw(st.booleans()))


def _strided(draw: st.DrawFn, rows: int, count: int) -> list[int]:
    start, stride = draw(st.integers(0, rows - 1)), draw(st.integers(1, rows))
    return [(start + stride * i) % rows for i in range(count)]


def _ends(draw: st.DrawFn, rows: int, count: int) -> list[int]:
    return [(rows - 1) * last for last in draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))]


_DRAWERS = {
    "uniform": _uniform,
    "zipf": _zipf,
    "heavy_hitters": _heavy_hitters,
    "one_hot": _one_hot,
    "different": _different,
    "sorted": _sorted,
    "strided": _strided,
    "ends": _ends,
    "production": _production,
}


def compressed(ids: Sequence[int]) -> tuple[int | tuple[int, int], ...]:
    """Ids as a bag: four or more of the same in a row become one (id, repeat)."""
    out: list[int | tuple[int, int]] = []
    at = 0
    while at < len(ids):
        end = at
        while end < len(ids) and ids[end] == ids[at]:
            end += 1
        out += [(ids[at], end - at)] if end - at >= 4 else [ids[at]] * (end - at)
        at = end
    return tuple(out)
