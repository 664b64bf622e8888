"""A batch of a case as text: what is asked of it, the bags of each feature, and the runs that its lookups make.

Part of `oracles.show.show`. `3 x 40` stands for forty lookups of row 3 in a row, `[]` for an empty bag, `4 * [7]` for
four bags alike.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from corpus.case import Bag, Case, Sampled, pairs

if TYPE_CHECKING:
    from oracles.adapters.routes import Look

#: Lines for the bags of a feature, and run lengths of a batch that stand by themselves.
MOST_LINES = 16
#: So many bags alike, one behind the other, are written once.
FEWEST_ALIKE = 3
#: A space that no line is broken at.
TIED = "\N{NO-BREAK SPACE}"
PRUNED, OUTSIDE = "(-1)", "!"
#: What becomes of an id outside its table, by bounds-check mode.
JUDGED = {"FATAL": "refused", "WARNING": "counted and read as row 0", "IGNORE": "read as row 0", "NONE": "undefined"}
WEIGHTED = {
    "none": "no per-sample weights",
    "given": "per-sample weights given",
    "trained": "per-sample weights trained",
}


def batch_lines(case: Case, k: int, look: Look | None, width: int) -> Iterator[str]:
    """The lines of batch `k`, the first without its title. `look`: what it comes to, if that was counted."""
    yield ", ".join(_facts(case, k, look))
    bags = [_bags(case, k, f) for f in range(case.num_features)]
    for text, group in groupby(range(case.num_features), key=bags.__getitem__):
        yield from _wrapped(f"f{ranges(list(group))}", text, width)
    marks = [f"{PRUNED} is pruned"] * any(PRUNED in text for text in bags)
    marks += [f"{OUTSIDE} is not in the table: {JUDGED[case.bounds_check_mode]}"] * any(OUTSIDE in t for t in bags)
    if marks:
        yield from _wrapped("", "; ".join(marks), width)
    if look is None:
        yield from _wrapped("runs", "too many lookups to count them here", width)
        return
    yield from _check(case, k, look, width)
    if ("backward", k) not in case.steps():
        yield from _wrapped("runs", "no backward", width)
    elif look.effective.refusal is None:
        yield from _runs(case, look)


def entries(bag: Bag) -> Iterator[tuple[int, int]]:
    """The lookups of a bag as (id, how often in a row), neighbours joined."""
    for row, alike in groupby((pair for pair in pairs(bag) if pair[1] > 0), key=lambda pair: pair[0]):
        yield row, sum(count for _, count in alike)


def ranges(numbers: list[int]) -> str:
    """`0-3, 7` for ascending numbers."""
    groups = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def grouped(lengths: Iterable[int], threshold: int) -> list[tuple[int, int]]:
    """Run lengths as ranges, ascending: each by itself, or if there are many, those within powers of two and on one
    side of the threshold together."""
    ordered = sorted(set(lengths))
    few = len(ordered) <= MOST_LINES
    groups = groupby(ordered, key=lambda n: (n if few else n.bit_length(), n >= threshold))
    ranged = [list(group) for _, group in groups]
    return [(group[0], group[-1]) for group in ranged]


def plural(number: int, thing: str) -> str:
    """`1 bag`, `2 bags`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def sampled(feature: Sampled, rows: int) -> str:
    """A feature that is a distribution, in words."""
    law = f"Zipf with exponent {feature.exponent}" if feature.exponent else "uniform"
    lengths = f"{plural(feature.samples, 'bag')} of 0 to {2 * feature.mean_length} lookups"
    return f"sampled: {lengths}, ids {law} over {rows} rows, seed {feature.seed}"


def _facts(case: Case, k: int, look: Look | None) -> Iterator[str]:
    given = case.batches[k]
    yield plural(case.bag_starts(k)[-1], "bag")
    if look is not None:
        empty = int((look.right[1:] == look.right[:-1]).sum())
        if empty:
            yield f"{'all' if empty == len(look.right) - 1 else empty} of them empty"
        yield plural(int(look.right[-1]), "lookup")
    unasked = [f for f, wanted in enumerate(given.feature_requires_grad) if not wanted]
    yield WEIGHTED[given.psw] + (f" but for f{ranges(unasked)}" if unasked else "")
    yield f"gradient {given.grad_layout}"
    for name, layout in given.input_layouts:
        yield f"{name} {layout}"
    if given.learning_rate is not None:
        yield f"learning rate {given.learning_rate} from its backward on"
    if given.is_variable:
        sizes = (f"f{f} {' + '.join(map(str, of))}" for f, of in enumerate(given.batch_size_per_feature_per_rank))
        yield f"variable, bags by rank: {'; '.join(sizes)}"


def _bags(case: Case, k: int, f: int) -> str:
    """The bags of a feature, those of its ranks apart."""
    feature, rows = case.batches[k].features[f], case.tables[case.feature_table_map[f]].rows
    if isinstance(feature, Sampled):
        return sampled(feature, rows)
    sizes, start, parts = case.batches[k].batch_size_per_feature_per_rank, 0, []
    for size in sizes[f] if sizes else (len(feature),):
        words = []
        for text, group in groupby(_bag(bag, rows) for bag in feature[start : start + size]):
            alike = len(list(group))
            words += [f"{alike}{TIED}*{TIED}{text}"] if alike >= FEWEST_ALIKE else [text] * alike
        parts.append(" ".join(words) or "no bags")
        start += size
    return " | ".join(parts)


def _bag(bag: Bag, rows: int) -> str:
    texts = []
    for row, count in entries(bag):
        name = PRUNED if row == -1 else f"{row}{OUTSIDE}" if not 0 <= row < rows else str(row)
        texts += [f"{name}{TIED}x{TIED}{count}"] if count > 2 else [name] * count
    return f"[{', '.join(texts)}]"


def _check(case: Case, k: int, look: Look, width: int) -> Iterator[str]:
    """What is wrong with the offsets, and what the bounds check makes of that and of bad ids."""
    edits = case.batches[k].offsets_edits
    if edits:
        changed = "; ".join(f"offsets[{place}] = {value} instead of {look.right[place]}" for place, value in edits)
        repaired = " ".join(str(n) for n in look.effective.offsets[1:] - look.effective.offsets[:-1])
        yield from _wrapped("edited", f"{changed}; repaired, bags of {repaired} lookups", width)
    if look.effective.refusal is not None:
        found = look.effective.refusal
        where = f"{found.kind}[{found.place}] = {found.index}, feature {found.feature}, sample {found.bag}"
        yield from _wrapped("check", f"refuses {where}; the run ends here", width)
    elif look.effective.warnings:
        yield from _wrapped("check", f"counts {plural(look.effective.warnings, 'warning')}", width)


def _runs(case: Case, look: Look) -> Iterator[str]:
    """The table of runs: rows looked up equally often, and which way they go."""
    from oracles.adapters.routes import config_of, way

    if not look.rows_by_length:
        yield f"    {'runs':7} none"
        return
    try:
        threshold = config_of(case).long_run_threshold
    except ValueError:
        threshold = 0  # knobs of another implementation
    yield f"    {'looked up':>16} {'rows':>9}  goes as"
    for shortest, longest in grouped(look.rows_by_length, threshold):
        times = f"{shortest} to {longest}" if longest > shortest else str(shortest)
        rows = sum(look.rows_by_length[length] for length in range(shortest, longest + 1))
        if look.counted:
            goes = "counts of the small table, not runs"
        else:
            goes = way(case, shortest, longest) if threshold else "not known"
        yield f"    {times + ' x':>16} {rows:>9}  {goes}"


def _wrapped(name: str, text: str, width: int) -> list[str]:
    first, rest = f"    {name:7} ", " " * 12
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"{rest}... {len(lines) - MOST_LINES} lines more"]
    return [line.replace(TIED, " ") for line in lines]
