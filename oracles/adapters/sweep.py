"""The routings on which a case of `tbe_kernels` is checked: what changes, and what takes turns along the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import tbe_kernels
from corpus.case import Case
from corpus.store import case_id
from corpus.tensors import ids_and_lengths
from oracles.contract import effective_batch, run_lengths
from oracles.implementation import Routing
from tbe_kernels.config import KNOBS
from tbe_kernels.knobs import FORWARD, SMALL_TABLE
from tbe_kernels.paths import PATHS

MERGES = tuple(m for m in KNOBS["long_run_merge"].menu or () if m != "auto")
#: Backwards from counts in a sweep.
COUNTED: tuple[dict[str, Any], ...] = (
    {"from_counts_programs": 3, "small_table_programs": 2},
    {"from_counts_programs": 1, "small_table_programs": 1, "small_table_window": 4, "from_counts_bags": 16},
    {"from_counts_programs": 2, "small_table_window": 16, "small_table_bags": 32, "from_counts_bags": 32},
)
#: With limits that keep no table out which the case itself lets in.
LARGEST = {name: max(KNOBS[name].menu or ()) for name in ("small_table_rows", "small_table_columns")}
#: A forward does not know how the backward is split: of its knobs a sweep takes so many settings, from a place in their
#: turns that differs from case to case.
FORWARDS = 4
#: Run lengths at which a sweep puts the threshold, at the most, and at most so many with every merge at each.
MOST_LENGTHS = 4
FEW_LENGTHS = 3
#: Gathers that a batch, and chunks that a run, are cut into at the most: beyond, widths of 1 and 2 grow with the case.
MOST_PIECES = 32
#: Column tiles that a row is cut into at the most.
MOST_TILES = 16


def routings(case: Case, device: torch.device) -> Iterator[Routing]:
    """The case's own; all runs short; all long, in chunks of 1, 2, the longest run, one less and more, by every
    merge; a threshold at each run length and one above, by every merge. No split comes twice. Gather widths, bags a
    program and tiles take turns along the way. Large cases get larger pieces."""
    lengths = sorted({n for k in sorted(set(case.order)) for n in run_lengths(case, k)})
    longest = lengths[-1] if lengths else 1
    changes: list[dict[str, Any]] = [{"long_run_threshold": longest + 1}]
    small = -(-longest // MOST_PIECES)
    chunks = sorted({small, 2 * small, max(1, longest - 1), longest})
    if chunks[-1] == longest:  # none that no run fills: then the case's own, or the default
        changes += [{"long_run_threshold": 1, "long_run_merge": merge} for merge in MERGES]
    for chunk in chunks:
        changes += [{"long_run_threshold": 1, "chunk_size": chunk, "long_run_merge": m} for m in MERGES]
    spread = lengths[:: -(-len(lengths) // MOST_LENGTHS)] if lengths else []
    # From 1 on all runs are long, and beyond the longest all are short: both are there.
    for place, threshold in enumerate(sorted({t for n in spread for t in (n, n + 1)} - {1, longest + 1})):
        merges = MERGES if len(spread) <= FEW_LENGTHS else MERGES[place % len(MERGES) :][:1]
        changes += [{"long_run_threshold": threshold, "long_run_merge": m} for m in merges]
    has_small_table = any(may_count(case, k) for k in set(case.order))
    if has_small_table:
        counted = COUNTED if device.type == "cpu" else COUNTED[:1]
        always = {"small_table": "always", "backward_from_counts": True, **LARGEST}
        changes[2:2] = [{**always, **knobs} for knobs in counted]
    lookups = max(len(ids_and_lengths(case, k)[0]) for k in set(case.order))
    others = dict(case.routing)  # what the other routings start from
    if others.get("chunk_size", small) < small:
        others["chunk_size"] = small
    widest = max(case.tables[t].dim for t in case.feature_table_map)
    power = tbe_kernels.spec.next_power_of_two
    gather = min(32, power(max(1, lookups // MOST_PIECES)))
    tile = power(-(-widest // MOST_TILES))
    least = {"gather_width": gather, "backward_gather_width": gather, "max_block_d": tile}
    turns = turns_of(device, has_small_table)
    seen, first = [], int(case_id(case), 16)
    for number, change in enumerate([{}, *changes]):
        forward = first + number % FORWARDS
        places = {knob: forward if KNOBS[knob].stage == FORWARD else number for knob in turns}
        turn = {knob: values[places[knob] % len(values)] for knob, values in turns.items()} if number else {}
        for knob in turn.keys() & least.keys():
            turn[knob] = max(turn[knob], least[knob])
        routing = {**others, **turn, **change} if number else case.routing
        if routing not in seen:
            seen.append(routing)
            yield routing


def turns_of(device: torch.device, has_small_table: bool) -> dict[str, tuple[Any, ...]]:
    """The knobs that take turns, each with its values; the numbers of values have few common divisors, so pairs mix.
    Of a knob that is a compile-time constant, each new value would cost a GPU a compilation."""
    return {
        name: row.turns
        for name, row in KNOBS.items()
        if row.turns and (device.type == "cpu" or not row.constant) and (has_small_table or row.stage != SMALL_TABLE)
    }


def sweep_paths(case: Case) -> list[set[str]]:
    """Of each set, a sweep must have run at least one path."""
    longest, counts = 0, False
    for kind, number in case.steps():
        if effective_batch(case, number).refusal is not None:
            break
        counts |= may_count(case, number) and case.bag_starts(number)[-1] > 0
        if kind == "backward":
            longest = max([longest, *run_lengths(case, number)])
    paths = [{"forward.small_table"}] if counts else []
    if longest >= 2:
        paths += [{"backward.short_run"}, {f"backward.long_run.{merge}" for merge in MERGES}]
    return paths


def may_count(case: Case, batch: int) -> bool:
    """Whether a batch fits the small-table route, as its row in the registry and the case's own knobs say."""
    needs = next(p.needs for p in PATHS if p.name == "forward.small_table")
    assert needs.one_table is not None
    most_rows, most_columns = needs.one_table
    rows = case.routing.get("small_table_rows", most_rows)
    columns = case.routing.get("small_table_columns", most_columns)
    table = case.tables[case.feature_table_map[0]]
    return (
        case.num_features == 1
        and all(getattr(case, axis) in values for axis, values in needs.case.items())
        and (table.rows <= rows and table.dim <= columns)
        and (case.batches[batch].psw == "none" and not case.batches[batch].is_variable)
    )
