"""Makes a failing case small: structure first, then ids, then every axis towards its plainest value.

Hypothesis finds failures; it does not shrink them here. A shrink step of its own would run the whole sweep again, most
of them on cases that pass; this reducer knows what a case is made of and needs the one routing that failed. It works on
any case, wherever it came from.
"""

from __future__ import annotations

from collections.abc import Callable

from corpus.case import Case
from corpus.shrink.plainer import (
    far_edits,
    other_knobs,
    other_values,
    plainer_axes,
    plainer_routing,
    plainer_values,
    shorter_schedule,
    smaller_knobs,
)
from corpus.shrink.smaller import (
    Candidates,
    closer_ids,
    fewer_batches,
    fewer_features,
    fewer_lookups,
    fewer_samples,
    fewer_tables,
    in_every_batch,
    joined_features,
    joined_samples,
    one_feature,
    plainer_batches,
    shorter_repeats,
    simpler_edits,
    smaller_ids,
    smaller_tables,
)

Fails = Callable[[Case], bool]


def reduce(case: Case, fails: Fails, most_tries: int = 1000, plain: bool = True) -> Case:
    """The smallest case that still `fails`, as far as single steps and `most_tries` calls lead.

    And the plainest: not `plain` leaves its types, widths, numbers and knobs as they are.
    """
    passes = [make for make, makes_plainer in PASSES.items() if plain or not makes_plainer]
    tried = {case}
    progress = True
    while progress:
        progress = False
        for make in passes:
            while (smaller := _first_failing(make(case), fails, tried, most_tries)) is not None:
                case, progress = smaller, True
    return case


def _first_failing(candidates: Candidates, fails: Fails, tried: set[Case], most_tries: int) -> Case | None:
    """The first candidate not tried before that fails; None if there is none, or too many were tried."""
    for candidate in candidates:
        if len(tried) > most_tries:
            return None
        if candidate is None or candidate in tried:
            continue
        tried.add(candidate)
        if fails(candidate):
            return candidate
    return None


#: A pass makes a case smaller and leaves it as rich as it was, or it makes it plainer as well.
SMALLER, PLAINER = False, True
#: In this order, and again from the start while anything got smaller.
PASSES = {
    fewer_batches: SMALLER,
    fewer_features: SMALLER,
    fewer_tables: SMALLER,
    fewer_samples: SMALLER,
    joined_samples: SMALLER,
    joined_features: SMALLER,
    one_feature: PLAINER,
    plainer_batches: PLAINER,
    simpler_edits: SMALLER,
    fewer_lookups: SMALLER,
    in_every_batch: SMALLER,
    smaller_knobs: PLAINER,
    shorter_repeats: SMALLER,
    shorter_schedule: SMALLER,
    other_knobs: PLAINER,
    far_edits: PLAINER,
    plainer_axes: PLAINER,
    closer_ids: PLAINER,
    smaller_tables: PLAINER,
    plainer_values: PLAINER,
    plainer_routing: PLAINER,
    smaller_ids: PLAINER,
    other_values: PLAINER,
}
