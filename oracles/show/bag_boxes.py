"""Where the bags of a feature lie in a picture: plain numbers, made before anything is drawn.

Between `oracles.adapters.routes`, which knows how often each row is looked up, and `oracles.show.picture`, which needs
matplotlib.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from corpus.case import Case, Sampled
from oracles.adapters.routes import Look
from oracles.show.lookups import entries, plural, sampled

#: Boxes of a strip at the most.
MOST_BOXES = 120
#: In units of a box of one lookup: an empty bag, and the room between bags.
EMPTY_WIDTH, GAP = 0.8, 0.6


@dataclass(frozen=True)
class Box:
    """Lookups of one row in a row, or an empty bag. `run`: how often the batch looks the row up; 0 for no row."""

    x: float
    width: float
    kind: str  # "row", "empty bag", "pruned id" or "id not in its table"
    label: str = ""
    run: int = 0


@dataclass
class Strip:
    """The bags of a feature in a batch, left to right. `frames`: (x, width) of each bag; `remark`: what is left out."""

    name: str
    boxes: list[Box] = field(default_factory=list)
    frames: list[tuple[float, float]] = field(default_factory=list)
    width: float = 0.0
    remark: str = ""


def strip(case: Case, k: int, f: int, look: Look | None) -> Strip:
    """Where the boxes of a feature lie."""
    feature, table = case.batches[k].features[f], case.feature_table_map[f]
    rows = case.tables[table].rows
    laid = Strip(f"batch {k}  f{f} (t{table})")
    if isinstance(feature, Sampled) or look is None:
        laid.remark = sampled(feature, rows) if isinstance(feature, Sampled) else "in a batch too large to draw"
        return laid
    place, x = int(look.right[case.bag_starts(k)[f]]), 0.0
    for number, bag in enumerate(feature):
        if len(laid.boxes) >= MOST_BOXES:
            laid.remark = f"and {plural(len(feature) - number, 'bag')} more"
            break
        begin = x
        for row, count in entries(bag):
            if len(laid.boxes) >= MOST_BOXES:
                laid.remark = "and lookups more"
                break
            width = 1 + math.log2(count)
            kind = "row" if 0 <= row < rows else "pruned id" if row == -1 else "id not in its table"
            label = f"{row} x {count}" if count > 1 else str(row)
            laid.boxes.append(Box(x, width, kind, label, int(look.run_of_each[place])))
            x, place = x + width, place + count
        if x == begin:
            laid.boxes.append(Box(x, EMPTY_WIDTH, "empty bag"))
            x += EMPTY_WIDTH
        laid.frames.append((begin, x - begin))
        x += GAP
    laid.width = x
    if not laid.remark:
        laid.remark = "no bags" if not feature else "offsets edited" if case.batches[k].offsets_edits else ""
    return laid
