"""Hard places of the routes that count a small table: bags around the window, groups of bags, counts, spreads.

Each names the kernel path whose cases have to get there; `strategies.regions` takes them in.
"""

from __future__ import annotations

from collections.abc import Callable

from corpus.case import Batch, Case, Sampled, bag_length, expand
from strategies.bags import MOST_COUNTED
from strategies.routing import config_of

Region = Callable[[Case], bool]


def _bag(wanted: Callable[[int, int], bool]) -> Region:
    """A bag of the first batch whose length fits, given the window."""
    return lambda case: any(wanted(n, config_of(case.routing).small_table_window) for n in _lengths(case.batches[0]))


def _lengths(batch: Batch) -> list[int]:
    return [bag_length(bag) for feature in batch.features if not isinstance(feature, Sampled) for bag in feature]


def _group(holds: Callable[[list[int]], bool]) -> Region:
    """A whole group of bags, as one product takes them, whose lengths fit."""

    def reached(case: Case) -> bool:
        lengths, size = _lengths(case.batches[0]), config_of(case.routing).small_table_bags
        return any(holds(lengths[at : at + size]) for at in range(0, len(lengths) - size + 1, size))

    return reached


def _names_one_row_often(case: Case) -> bool:
    for feature in case.batches[0].features:
        for bag in () if isinstance(feature, Sampled) else feature:
            ids = [i for i in expand(bag) if i >= 0]
            if len(ids) > MOST_COUNTED and any(ids.count(i) > MOST_COUNTED for i in set(ids)):
                return True
    return False


def _table(rows: int, columns: int | None = None) -> Region:
    def holds(case: Case) -> bool:
        table = case.tables[case.feature_table_map[0]]
        return table.rows == rows and columns in (None, table.dim)

    return holds


def _wide_spread(case: Case) -> bool:
    """Gradients of one tile may differ by more than 2 ** 27."""
    return case.values.mode == "general" and case.values.spread >= 16 and sum(_lengths(case.batches[0])) > 1


FORWARD: dict[str, Region] = {
    "a bag one below the window": _bag(lambda n, window: n == window - 1),
    "a bag of exactly the window": _bag(lambda n, window: n == window),
    "a bag one above the window": _bag(lambda n, window: n == window + 1),
    "a bag of two windows and one": _bag(lambda n, window: n == 2 * window + 1),
    "a bag of exactly 256 counted at once": _bag(lambda n, window: n == window == 256),
    "a bag of 257 with 256 counted at once": _bag(lambda n, window: n == 257 and window == 256),
    "a bag of more than 512 with 256 counted at once": _bag(lambda n, window: n > 512 and window == 256),
    "an empty bag in a whole group": _group(lambda lengths: 0 in lengths and any(lengths)),
    "a last group that is not whole": lambda case: (
        len(_lengths(case.batches[0])) % 16 != 0 and len(_lengths(case.batches[0])) > 16
    ),
    "a small table of one row": _table(1),
    "a small table of 64 rows": _table(64),
    "a small table of 64 rows of 128": _table(64, 128),
}
BACKWARD: dict[str, Region] = {
    "one row named more than 2048 times by a bag": _names_one_row_often,
    "more bags than a product of the backward takes": lambda case: (
        len(_lengths(case.batches[0])) > config_of(case.routing).from_counts_bags
    ),
    "gradients spread over more than 27 binary orders": _wide_spread,
}
AIMED = {
    **dict.fromkeys(FORWARD, "forward.small_table"),
    **dict.fromkeys(BACKWARD, "backward.from_counts"),
}
