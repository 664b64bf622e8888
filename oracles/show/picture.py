"""A case as a picture: above, the bags of each feature; below, how many rows are looked up how often.

Part of `oracles.show.show`, and the only module that imports matplotlib (the extra `plots`). Opens no window.
"""

from __future__ import annotations

import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from corpus.case import Case
from corpus.store import StoredCase
from oracles.adapters.routes import Look, config_of, look_at
from oracles.show.bag_boxes import GAP, Strip, strip
from oracles.show.lookups import grouped, plural

#: Strips at the most.
MOST_STRIPS = 24
#: Inches; a letter is one of a label.
WIDTH, STRIP, LETTER = 12.0, 0.45, 0.065
#: There is room for boxes of so many lookups, and for so many run lengths, at least.
NARROWEST, FEWEST_PLACES = 16.0, 6
#: How boxes look that are no row's; the others have the colour of their run.
LOOKS: dict[str, dict[str, Any]] = {
    "empty bag": {"facecolor": "white", "edgecolor": "black", "hatch": "////"},
    "pruned id": {"facecolor": "white", "edgecolor": "black", "linestyle": ":"},
    "id not in its table": {"edgecolor": "red", "hatch": "xx"},
}


def draw(stored: StoredCase, file: Path) -> None:
    """Write the picture; the ending of `file` says in which format. Raises ValueError for one that is not known."""
    picture(stored).savefig(file, dpi=120)


def picture(stored: StoredCase) -> Figure:
    """The picture of a case: bags in its first axes, run lengths in its second."""
    case = stored.case
    looks = [look_at(case, k) for k in range(len(case.batches))]
    strips = [strip(case, k, f, looks[k]) for k in range(len(case.batches)) for f in range(case.num_features)]
    longest = max((length for look in looks if look for length in look.rows_by_length), default=1)
    note = textwrap.fill(f"{stored.id}: {stored.note}", 120)
    heights = (0.5 + STRIP * min(len(strips), MOST_STRIPS), 2.6)
    figure = Figure((WIDTH, sum(heights) + 1.5 + 0.2 * note.count("\n")), layout="constrained")
    figure.suptitle(note, parse_math=False, fontsize=10)
    above, below = figure.subplots(2, 1, height_ratios=heights)
    colours = ScalarMappable(LogNorm(1, max(longest, 2)), "viridis")
    handles = [*_draw_strips(above, strips, colours), *_draw_runs(below, case, looks, colours)]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8)
    bar = figure.colorbar(colours, ax=[above, below], label="lookups of the row", pad=0.01, aspect=5 * sum(heights))
    bar.set_ticks(sorted({1, longest}), labels=[str(n) for n in sorted({1, longest})])
    bar.minorticks_off()
    return figure


def _draw_strips(axes: Axes, strips: list[Strip], colours: ScalarMappable) -> list[Artist]:
    """Draw them; returns what the legend has to explain."""
    shown = strips[:MOST_STRIPS]
    width = max([NARROWEST, *(s.width * (1.12 if s.boxes and s.remark else 1) for s in shown)])
    kinds = {box.kind for s in shown for box in s.boxes} & LOOKS.keys()
    for y, one in enumerate(shown):
        for box in one.boxes:
            red, green, blue, _ = _colour(colours, box.run)
            style = {"facecolor": (red, green, blue), "edgecolor": "white", **LOOKS.get(box.kind, {})}
            axes.add_patch(Rectangle((box.x, y - 0.3), box.width, 0.6, **style))
            if LETTER * len(box.label) < box.width / width * 0.8 * WIDTH:
                dark = box.run and 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
                ink, middle = "white" if dark else "black", box.x + box.width / 2
                axes.text(middle, y, box.label, color=ink, fontsize=8, ha="center", va="center")
        for x, length in one.frames:
            axes.add_patch(Rectangle((x, y - 0.36), length, 0.72, fill=False, edgecolor="black"))
        axes.text(one.width, y, one.remark, fontsize=8, va="center")
    axes.set(xlim=(-GAP, width), ylim=(len(shown) - 0.4, -0.6), xticks=[])
    axes.set_yticks(range(len(shown)), [s.name for s in shown])
    left_out = f"; {len(strips) - len(shown)} features more" if len(strips) > len(shown) else ""
    axes.set_xlabel(f"bags in order (frames); a box is n lookups of one row in a row, as wide as 1 + log2(n){left_out}")
    return [Patch(label=kind, **LOOKS[kind]) for kind in LOOKS if kind in kinds]


def _colour(colours: ScalarMappable, run: int) -> tuple[float, float, float, float]:
    red, green, blue, alpha = map(float, colours.to_rgba(np.array([max(run, 1)]))[0])
    return red, green, blue, alpha


def _draw_runs(axes: Axes, case: Case, looks: list[Look | None], colours: ScalarMappable) -> list[Artist]:
    """A place for each run length, with a bar for each batch; lines where runs turn long and where a chunk is full.
    Returns what the legend has to explain."""
    trained = {k for kind, k in case.steps() if kind == "backward"}
    seen = {k: look for k, look in enumerate(looks) if look and k in trained and look.effective.refusal is None}
    try:
        config = config_of(case)
        threshold, chunk = config.long_run_threshold, config.chunk_size
    except ValueError:  # knobs of another implementation
        threshold = chunk = 0
    groups = grouped((length for look in seen.values() for length in look.rows_by_length), threshold)
    most = 1
    for number, (k, look) in enumerate(seen.items()):
        rows = [sum(look.rows_by_length[n] for n in range(first, last + 1)) for first, last in groups]
        places = [place + 0.8 * ((number + 0.5) / len(seen) - 0.5) for place in range(len(groups))]
        bars = axes.bar(places, rows, 0.7 / len(seen), color=[_colour(colours, last) for _, last in groups])
        axes.bar_label(bars, [f"{n or ''}" + f"\nb{k}" * (len(seen) > 1 and n > 0) for n in rows], fontsize=7)
        most = max([most, *rows])
    lines: list[Artist] = []
    if threshold:
        place = sum(last < threshold for _, last in groups) - 0.53
        lines.append(axes.axvline(place, color="red", linewidth=2, label=f"long from {plural(threshold, 'lookup')} up"))
        for right, ((_, last), (first, _)) in enumerate(pairwise([(0, 0), *groups])):
            # Long runs that are whole chunks, from the one length to below the next.
            whole = range(-(-max(last, threshold) // chunk), -(-first // chunk))
            if whole:
                label = f"so many chunks of {chunk} are full"
                lines[1:] = [axes.axvline(right - 0.47, color="grey", linestyle=":", label=label)]
                text = f"{whole[0]}" if len(whole) == 1 else f"{whole[0]}..{whole[-1]}"
                axes.text(right - 0.47, 1.02, text, transform=axes.get_xaxis_transform(), fontsize=8, ha="center")
    axes.set_xticks(range(len(groups)), [f"{a}" if a == b else f"{a} to {b}" for a, b in groups], fontsize=8)
    remarks = [f"batch {k}: counts of the small table, not runs" for k, look in seen.items() if look.counted]
    remarks += [f"batch {k}: no backward counted" for k in range(len(looks)) if k not in seen]
    axes.set(xlim=(-0.7, max(len(groups), FEWEST_PLACES) - 0.3), ylabel="rows")
    axes.set(**({"yscale": "log", "ylim": (0.5, most * 2)} if most > 100 else {"ylim": (0, most * 1.3)}))
    axes.tick_params(axis="y", which="both", left=False, labelleft=False)
    axes.set_xlabel("; ".join(["lookups of a row in a batch (run length)" if groups else "no runs", *remarks]))
    return lines
