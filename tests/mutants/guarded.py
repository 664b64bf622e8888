"""Faults that a GPU shows at times and the interpreter never: each names the guard that has to see it.

"bounds", "hints", "overflow" and "races" are the interpreter's own findings; "schedules" faults give wrong results, but
only where programs interleave and their writes arrive late. (Poison shows as a wrong value: `faults` has its fault.)
"""

from __future__ import annotations

from tests.mutants.fault import Fault

_COUNT = 'before = tl.atomic_add(counters + owner, 1, sem="acq_rel")'
_ADD = 'tl.atomic_add(sums, total, mask=inside, sem="relaxed")'
_FUSED, _FUSED_PATH = "backward/long_run_fused.py", "backward.long_run.fused"

BOUNDS = (
    Fault(
        "one past the end of the offsets is read",
        "batch.py",
        "last = tl.load(offsets + bag + 1).to(tl.int64)",
        "last = tl.load(offsets + bag + 1).to(tl.int64) + tl.load(offsets + bag + 2).to(tl.int64) * 0",
        "forward.pooled",
        guard="bounds",
    ),
    Fault(
        "a padded lane is stored past D",
        "backward/rows.py",
        "tl.store(rows.weights + elements, to_storage(weight, elements, rows), mask=inside)",
        "tl.store(rows.weights + elements, to_storage(weight, elements, rows), mask=columns <= D)",
        "backward.short_run",
        guard="bounds",
    ),
    Fault(
        "the chunk behind the last is looked up",
        "backward/long_run.py",
        "first_chunk = tl.load(long_runs.chunk_ends + owner - 1, mask=owner > 0, other=0)",
        "first_chunk = tl.load(long_runs.chunk_ends + owner - 1)\n"
        "            first_chunk = tl.where(owner > 0, first_chunk, 0)",
        "backward.long_run.ordered",
        guard="bounds",
    ),
)

OVERFLOW = Fault(
    "row times D in int32",
    "forward/pooled.py",
    "table + index[:, None] * D + columns[None, :]",
    "table + index.to(tl.int32)[:, None] * D + columns[None, :]",
    "forward.pooled",
    guard="overflow",
)

#: Nothing that a CPU computes depends on a hint.
HINTS = (
    Fault(
        "a variable batch is promised the alignment of a plain one",
        "forward/pooled.py",
        "ALIGN=bucket.variable_alignment if bags.is_variable else bucket.alignment",
        "ALIGN=bucket.alignment",
        "forward.pooled.variable",
        size=(4, 3, 6),
        guard="hints",
    ),
    Fault(
        "the gradient of psw promises the widest load there is",
        "backward/psw_gradient.py",
        "ALIGN=bucket.variable_alignment if bags.is_variable else bucket.alignment",
        "ALIGN=16",
        "backward.psw_gradient",
        guard="hints",
    ),
    Fault(
        "unpooled lookups promise where tables begin",
        "forward/unpooled.py",
        "tl.multiple_of(tl.load(weights_offsets + feature), ALIGN)",
        "tl.multiple_of(tl.load(weights_offsets + feature), 8)",
        "forward.unpooled",
        guard="hints",
    ),
    Fault(
        "a small table promises its width",
        "forward/small_table.py",
        "D = tl.multiple_of(tl.load(D_offsets + 1) - tl.load(D_offsets), ALIGN)",
        "D = tl.multiple_of(tl.load(D_offsets + 1) - tl.load(D_offsets), 8)",
        "forward.small_table",
        guard="hints",
    ),
    Fault(
        "short and long runs promise D",
        "backward/rows.py",
        "return feature, tl.multiple_of(D, ALIGN)",
        "return feature, tl.multiple_of(D, 8)",
        "backward.short_run",
        guard="hints",
    ),
    Fault(
        "gradient rows promise where they begin",
        "backward/rows.py",
        "start = tl.multiple_of(gradient_starts(lookups, at, live, D, B, total_D, ALIGN), ALIGN)",
        "start = tl.multiple_of(gradient_starts(lookups, at, live, D, B, total_D, ALIGN), 8)",
        "backward.long_run.atomic",
        guard="hints",
    ),
    Fault(
        "a step promises where rows begin",
        "backward/rows.py",
        "elements = tl.multiple_of(tl.load(rows.weights_offsets + feature) + row * D, ALIGN) + columns",
        "elements = tl.multiple_of(tl.load(rows.weights_offsets + feature) + row * D, 8) + columns",
        "backward.from_counts",
        guard="hints",
    ),
)

RACES = (
    Fault(
        "the workspace is added to without atomics",
        "backward/long_run.py",
        'tl.atomic_add(workspace + owner * stride + columns, total, mask=columns < D, sem="relaxed")',
        "sums = workspace + owner * stride + columns\n"
        "            tl.store(sums, tl.load(sums, mask=columns < D, other=0.0) + total, mask=columns < D)",
        "backward.long_run.atomic",
        guard="races",
    ),
    Fault(
        "two programs own one run",
        "backward/short_run.py",
        "for run in range(first_run + tl.program_id(0), end_run, tl.num_programs(0)):",
        "for run in range(first_run + tl.program_id(0) // 2, end_run, tl.num_programs(0)):",
        "backward.short_run",
        guard="races",
    ),
    Fault(
        "the row's state is read while it is written",
        "rules.py",
        "    tl.debug_barrier()\n    tl.store(rows.momentum1 + row, sum_of_squares)",
        "    tl.store(rows.momentum1 + row, sum_of_squares)",
        "backward.short_run",
        guard="races",
    ),
    Fault(
        "what one lane acquired is not passed on to the others",
        _FUSED,
        "            tl.debug_barrier()\n            grad = tl.load(sums",
        "            grad = tl.load(sums",
        _FUSED_PATH,
        guard="races",
    ),
)

#: Seen by the race detector in any order of programs, and as a wrong result in some schedules.
COUNTDOWN = (
    Fault(
        "a relaxed countdown",
        _FUSED,
        _COUNT,
        _COUNT.replace("acq_rel", "relaxed"),
        _FUSED_PATH,
        guard="schedules",
    ),
    Fault(
        "a countdown without the barrier",
        _FUSED,
        f"        tl.debug_barrier()\n        {_COUNT}",
        f"        {_COUNT}",
        _FUSED_PATH,
        guard="schedules",
    ),
    Fault(
        "a countdown that acquires nothing",
        _FUSED,
        _COUNT,
        _COUNT.replace("acq_rel", "release"),
        _FUSED_PATH,
        guard="schedules",
    ),
    Fault(
        "the step before the last add",
        _FUSED,
        f"        {_ADD}\n        tl.debug_barrier()\n        {_COUNT}\n",
        f"        {_COUNT}\n        tl.debug_barrier()\n        {_ADD}\n",
        _FUSED_PATH,
        guard="schedules",
    ),
)

#: What the oracle of values has to see, since no order of programs matters to it.
VALUES = (
    Fault(
        "gradient rows of a variable batch are promised the alignment of a plain one",
        "backward/rows.py",
        '"ALIGN": bucket.variable_alignment if batch.bags.is_variable else bucket.alignment',
        '"ALIGN": bucket.alignment',
        "forward.pooled.variable",
        size=(4, 6, 6),
    ),
    Fault(
        "a stale counter",
        _FUSED,
        "            tl.store(counters + owner, 0)\n",
        "",
        _FUSED_PATH,
    ),
    Fault(
        "the neighbour's row of the fused workspace",
        _FUSED,
        "sums = workspace + owner * max_D.to(tl.int64) + columns",
        "sums = workspace + tl.maximum(owner - 1, 0) * max_D.to(tl.int64) + columns",
        _FUSED_PATH,
    ),
)
