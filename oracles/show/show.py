"""Shows stored cases: what each guards, its tables and settings, its bags, and which rows are looked up how often.

Behind `python -m corpus show`. This is the command and what holds for a whole case; batches come from
`oracles.show.lookups`, the picture from `oracles.show.picture`, the numbers of all three from
`oracles.adapters.routes`.
"""

from __future__ import annotations

import itertools
import shlex
import sys
import textwrap
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from corpus.case import Case, CaseError, Optimizer
from corpus.store import CASES, StoredCase, find, load
from oracles.show.lookups import batch_lines, plural, ranges

WIDTH = 120
#: A title and what stands behind it.
Line = tuple[str, list[str]]


def show(given: Namespace) -> int:
    """Show what the command line names; returns the exit code."""
    try:
        paths = [path for wanted in given.cases or [str(CASES)] for path in find(wanted)]
        if not paths:
            raise CaseError(f"no cases in {', '.join(given.cases) or CASES}")
        if given.plot and len(paths) > 1:
            raise CaseError(f"--plot draws one case, and {len(paths)} are named")
        if given.plot:
            import matplotlib  # noqa: F401  (missed now rather than behind the text)
    except CaseError as error:
        print(f"ERROR  {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f'ERROR  --plot needs matplotlib ({error}): pip install -e ".[plots]"', file=sys.stderr)
        return 2
    shown = [_show_one(path, first=path is paths[0]) for path in paths]
    if given.plot and all(shown):
        shown += [_draw(paths[0], given.plot)]
    return 0 if all(shown) else 2


def _show_one(path: Path, *, first: bool) -> bool:
    """Print a case; returns whether there is one."""
    try:
        print("\n" * (not first) + describe(load(path)), flush=True)
    except CaseError as error:
        print(f"ERROR  {error}", flush=True)
        return False
    return True


def _draw(path: Path, file: str) -> bool:
    from oracles.show.picture import draw

    try:
        draw(load(path), Path(file))
    except (OSError, ValueError) as error:
        print(f"ERROR  --plot: {error}", file=sys.stderr)
        return False
    print(_line("drawn", [file]), flush=True)
    return True


def describe(stored: StoredCase) -> str:
    """The whole case as text."""
    from oracles.adapters.routes import look_at

    case, path = stored.case, stored.path.resolve()
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    lines = [stored.id, *textwrap.wrap(stored.note, WIDTH - 2, initial_indent="  ", subsequent_indent="  ")]
    lines += [_line(title, parts) for title, parts in _settings(case)]
    for k in range(len(case.batches)):
        facts, *rest = batch_lines(case, k, look_at(case, k), WIDTH)
        lines += [_line(f"batch {k}", [facts]), *rest]
    return "\n".join([*lines, _line("replay", [f"python -m corpus replay {shlex.quote(str(near))}"])])


def _line(title: str, parts: list[str]) -> str:
    return textwrap.fill(
        ", ".join(parts),
        WIDTH,
        initial_indent=f"  {title:9} ",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _settings(case: Case) -> Iterator[Line]:
    """Everything that is no batch's own."""
    yield from _tables(case)
    yield (
        "lookups",
        [
            f"pooling {case.pooling_mode}",
            f"output {case.output_dtype}",
            f"ids {case.indices_dtype}",
            f"offsets {case.offsets_dtype}",
            f"bounds check {case.bounds_check_mode}",
        ],
    )
    given = case.optimizer
    changed = [f.name for f in fields(Optimizer) if f.name != "name" and getattr(given, f.name) != f.default]
    yield "optimizer", [given.name, *(f"{name} {getattr(given, name)}" for name in changed)]
    if case.stochastic_rounding:
        yield "rounding", [f"stochastic, seed {case.rounding_seed}"]
    yield "values", list(_values(case))
    yield from _routing(case)
    if case.schedule:
        yield "schedule", [" ".join(map(str, case.schedule))]
    unused = sorted(set(range(len(case.batches))) - set(case.order))
    steps = [f"{kind} {k}" for kind, k in case.steps()]
    yield "steps", [*(steps or ["none"]), *([f"never batch {ranges(unused)}"] if unused else [])]


def _tables(case: Case) -> Iterator[Line]:
    """A line a table; neighbours of one shape share it if they have one feature each, in order, or none."""
    features = [[f for f, of in enumerate(case.feature_table_map) if of == t] for t in range(len(case.tables))]

    def kind(t: int) -> tuple[object, ...]:
        some = features[t]
        return case.tables[t], len(some), some[0] - t if len(some) == 1 else t if some else 0

    title = "tables"
    for _, group in itertools.groupby(range(len(case.tables)), kind):
        alike = list(group)
        table, used = case.tables[alike[0]], [f for t in alike for f in features[t]]
        each = " each" if len(alike) > 1 else ""
        use = f"{'features' if len(used) > 1 else 'feature'} f{ranges(used)}" if used else "no feature"
        yield title, [f"t{ranges(alike)}: {plural(table.rows, 'row')} x {table.dim}{each}", case.weights_dtype, use]
        title = ""


def _values(case: Case) -> Iterator[str]:
    values = case.values
    if values.mode == "exact":
        yield f"exact: weights of {plural(values.weight_bits, 'bit')}"
        yield f"gradients of {values.grad_bits}"
        if any(batch.psw != "none" for batch in case.batches):
            yield f"per-sample weights of {values.psw_bits}"
    elif values.mode == "edges":
        yield "edges: at and beside ties, and at the ends of binades"
    else:
        yield f"general: within {values.spread} binary orders of 1"
    if values.scale:
        yield f"times 2**{values.scale}"
    if values.specials:
        yield "infinities and NaNs among them"
    if values.psw_specials:
        yield "infinities, NaNs, zeros and subnormal numbers among the per-sample weights"
    if values.largest:
        yield "the largest fp16 numbers among the weights"
    if values.zero_rows:
        yield "about every other row zero"
    yield f"seed {values.seed}"


def _routing(case: Case) -> Iterator[Line]:
    from oracles.adapters.routes import changed_knobs, config_of

    try:
        config = config_of(case)
    except ValueError as error:
        yield "routing", [*(f"{knob} {value}" for knob, value in case.routing.items()), f"not of tbe_kernels ({error})"]
        return
    yield "routing", changed_knobs(case) or ["by default"]
    threshold, chunk = plural(config.long_run_threshold, "lookup"), config.chunk_size
    yield "long runs", [f"from {threshold} up, in chunks of {chunk}"]
