"""What a lookup counts for: the contract on bad ids, pruned ids and malformed offsets, worked out on the host.

Written from the contract alone, in a few lines of numpy, so that it shares nothing with the kernels' bounds check.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corpus.case import Case
from corpus.tensors import ids_and_lengths


@dataclass(frozen=True)
class Refusal:
    """The first bad offset or id of a FATAL bounds check, as an implementation has to name it.

    `kind` "offsets" or "indices"; `place` in that tensor and the value `index` found there; the feature and the bag
    (sample) it belongs to; `rows` of the feature's table (for offsets: the number of ids).
    """

    kind: str
    feature: int
    bag: int
    index: int
    rows: int
    place: int


@dataclass(frozen=True)
class EffectiveBatch:
    """A batch after the bounds check: `ids` `[N]` (-1 pruned, bad ones 0), `offsets` `[bags + 1]` repaired.

    `warnings`: how many the check counts in mode WARNING. `refusal`: what mode FATAL raises, or None.
    """

    ids: np.ndarray
    offsets: np.ndarray
    warnings: int
    refusal: Refusal | None


def effective_batch(case: Case, batch: int) -> EffectiveBatch:
    """The batch as the contract reads it."""
    ids, lengths = ids_and_lengths(case, batch)
    right = np.concatenate(([0], np.cumsum(lengths)))
    starts = case.bag_starts(batch)
    given = right.copy()
    for place, value in case.batches[batch].offsets_edits:
        given[place] = value
    if case.bounds_check_mode == "NONE":
        return EffectiveBatch(ids, given, 0, None)
    offsets = given.copy()
    offsets[0] = 0
    offsets = np.clip(np.maximum.accumulate(offsets), 0, len(ids))
    offsets[-1] = len(ids)
    changed = np.flatnonzero(offsets != given)
    refusal = None
    if len(changed):
        refusal = _refuse_offsets(case, batch, given, len(ids))

    rows = np.zeros(len(ids), np.int64)
    for f, table in enumerate(case.feature_table_map):
        rows[offsets[starts[f]] : offsets[starts[f + 1]]] = case.tables[table].rows
    bad = (ids < -1) | (ids >= rows)
    if bad.any() and refusal is None:
        place = int(np.flatnonzero(bad)[0])
        bag_number = int(np.searchsorted(offsets, place, side="right")) - 1
        feature, bag = case.feature_and_sample(batch, bag_number)
        refusal = Refusal("indices", feature, bag, int(ids[place]), int(rows[place]), place)
    counted = case.bounds_check_mode == "WARNING"
    return EffectiveBatch(
        ids=np.where(bad, 0, ids),
        offsets=offsets,
        warnings=(len(changed) + int(bad.sum())) * counted,
        refusal=refusal if case.bounds_check_mode == "FATAL" else None,
    )


@dataclass(frozen=True)
class Runs:
    """The rows that a batch looks up, and how often: its runs. Pruned ids are in none, bad ones in that of row 0.

    `tables`, `rows`, `lengths`: a run each, int64. `of_each`: for each lookup `[N]` the length of its run, 0 if pruned.
    """

    tables: np.ndarray
    rows: np.ndarray
    lengths: np.ndarray
    of_each: np.ndarray

    def length(self, table: int, row: int) -> int:
        """Lookups of one row."""
        return int(self.lengths[(self.tables == table) & (self.rows == row)].sum())


def runs(case: Case, batch: int) -> Runs:
    """The runs of a batch: all that counts them asks here."""
    effective, starts = effective_batch(case, batch), case.bag_starts(batch)
    first_rows = np.concatenate(([0], np.cumsum([t.rows for t in case.tables], dtype=np.int64)))
    tables = np.repeat(np.array(case.feature_table_map), np.diff(effective.offsets[list(starts)]))
    live = effective.ids >= 0
    linear, inverse, lengths = np.unique(
        first_rows[tables[live]] + effective.ids[live], return_inverse=True, return_counts=True
    )
    of_each = np.zeros(len(live), np.int64)
    of_each[live] = lengths[inverse]
    table = np.searchsorted(first_rows, linear, side="right") - 1
    return Runs(table, linear - first_rows[table], lengths, of_each)


def run_lengths(case: Case, batch: int) -> list[int]:
    """How often each touched row of a batch is looked up."""
    return runs(case, batch).lengths.tolist()


def _refuse_offsets(case: Case, batch: int, given: np.ndarray, N: int) -> Refusal:
    """The first offset that does not start at 0, decreases, or does not end at N."""
    last = len(given) - 1
    for place, value in enumerate(given):
        before = given[place - 1] if place else 0
        if value < before or (place == 0 and value != 0) or (place == last and value != N):
            feature, bag = case.feature_and_sample(batch, min(place, last - 1)) if last else (0, 0)
            return Refusal("offsets", feature, bag, int(value), N, place)
    raise AssertionError("offsets that a repair changes are malformed somewhere")
