"""Bags of one feature: how long each is, and which ids it holds."""

from __future__ import annotations

from hypothesis import strategies as st

from corpus.case import Bag
from strategies.ids import SKEWS, bag_targets, compressed, id_lists, run_targets
from tbe_kernels.config import KernelConfig

#: Which bags are empty, and how the rest share the lookups.
SHAPES = (
    "ragged",
    "uniform",
    "first_empty",
    "last_empty",
    "alternate_empty",
    "one_giant",
    "heavy_tail",
    "aimed",
    "empty",
)


#: The default window, and the largest count that fp16 holds exactly.
COUNTED = KernelConfig().small_table_window
MOST_COUNTED = 2048


@st.composite
def bag_lengths(draw: st.DrawFn, *, samples: int, most: int, config: KernelConfig) -> list[int]:
    """Lengths of `samples` bags, `most` lookups in all at the most."""
    if samples == 0 or most == 0:
        return [0] * samples
    shape = draw(st.sampled_from(SHAPES))
    each = max(1, most // samples)
    if shape == "empty":
        return [0] * samples
    if shape == "uniform":
        return [draw(st.integers(1, each))] * samples
    if shape == "one_giant":
        lengths = [0] * samples
        lengths[draw(st.integers(0, samples - 1))] = draw(st.integers(1, most))
        return lengths
    if shape == "aimed":
        targets = bag_targets(config, max(1, most // 2))
        lengths = draw(st.lists(st.integers(0, 2), min_size=samples, max_size=samples))
        lengths[draw(st.integers(0, samples - 1))] = draw(st.sampled_from(targets))
        return lengths
    if shape == "heavy_tail":
        octaves = draw(st.lists(st.integers(0, 5), min_size=samples, max_size=samples))
        return [min(each * 2, 2**o - 1) for o in octaves]
    lengths = draw(st.lists(st.integers(0, min(2 * each, 9)), min_size=samples, max_size=samples))
    if shape == "first_empty":
        lengths[0] = 0
    if shape == "last_empty":
        lengths[-1] = 0
    if shape == "alternate_empty":
        lengths[1::2] = [0] * len(lengths[1::2])
    return lengths


@st.composite
def feature_bags(
    draw: st.DrawFn,
    *,
    rows: int,
    samples: int,
    most: int,
    config: KernelConfig,
    run: str | None = None,
    window: int | None = None,
) -> tuple[Bag, ...]:
    """The bags of one feature.

    `run`: "short" or "long" puts a run of such a length in for certain (where `samples` > 0); None does so now and
    then, at the constants of `config`. `window`: now and then a bag is as long as so many ids that are counted at once,
    or a multiple, one below or one above.
    """
    lengths = draw(bag_lengths(samples=samples, most=most, config=config))
    skew = draw(st.sampled_from(SKEWS))
    ids = draw(id_lists(rows=rows, count=sum(lengths), skew=skew, pruned=draw(st.integers(0, 4)) == 4))
    bags, at = [], 0
    for length in lengths:
        bags.append(ids[at : at + length])
        at += length
    if samples and (run or draw(st.integers(0, 2)) == 2):
        _aim_run(draw, bags, rows, config, run, max(most, config.long_run_threshold + 1 if run == "long" else 1))
    if samples and window and draw(st.booleans()):
        _aim_bag(draw, bags, rows, window)
    return tuple(compressed(bag) for bag in bags)


def _aim_run(
    draw: st.DrawFn, bags: list[list[int]], rows: int, config: KernelConfig, run: str | None, most: int
) -> None:
    """Give one row exactly as many lookups as some constant asks for, in one bag or spread over several."""
    targets = run_targets(config, most)
    if run == "long":
        targets = [n for n in targets if n >= config.long_run_threshold]
    if run == "short":
        targets = [n for n in targets if n < config.long_run_threshold] or [1]
    length, row = draw(st.sampled_from(targets)), draw(st.integers(0, rows - 1))
    for bag in bags:
        bag[:] = [i for i in bag if i != row]
    parts = draw(st.lists(st.integers(0, len(bags) - 1), min_size=1, max_size=3))
    for number, place in enumerate(parts):
        share = length // len(parts) + (number < length % len(parts))
        bags[place] += [row] * share


def _aim_bag(draw: st.DrawFn, bags: list[list[int]], rows: int, window: int) -> None:
    """Give one bag exactly as many lookups as a window asks for, the last of them few rows over and over."""
    targets = [window, window + 1, window - 1, 2 * window, 2 * window + 1]
    if window == COUNTED:
        targets += [300, *(MOST_COUNTED + 1,) * 4]
    length, bag = draw(st.sampled_from(targets)), bags[draw(st.integers(0, len(bags) - 1))]
    if length > MOST_COUNTED:
        bag[:] = [draw(st.integers(0, rows - 1))] * length
        return
    del bag[length:]
    missing = length - len(bag)
    fill = draw(st.lists(st.integers(-1, rows - 1), min_size=1, max_size=3))
    for number, row in enumerate(fill):
        bag += [row] * (missing // len(fill) + (number < missing % len(fill)))
