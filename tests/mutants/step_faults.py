"""Faults in the step of a row, in its state and in how it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.mutants.fault import Fault

ROUNDED: Mapping[str, tuple[Any, ...]] = {"weights_dtype": ("float16", "bfloat16"), "stochastic_rounding": (True,)}
ROUNDED_FP16 = {**ROUNDED, "weights_dtype": ("float16",)}

STEP_FAULTS = (
    # Optimizer semantics.
    Fault(
        "eps inside the root",
        "rules.py",
        "tl.sqrt_rn(sum_of_squares) + tl.load(rows.hyper + 1))\n    kept",
        "tl.sqrt_rn(sum_of_squares + tl.load(rows.hyper + 1)))\n    kept",
        "backward.short_run",
    ),
    Fault(
        "the state of another table's row",
        "backward/rows.py",
        "state_row = tl.load(rows.hash_size_cumsum + feature) + row",
        "state_row = row",
        "backward.short_run",
    ),
    Fault(
        "state in the type of the weights",
        "rules.py",
        "    tl.store(rows.momentum1 + row, sum_of_squares)\n",
        "    tl.store(rows.momentum1 + row, sum_of_squares.to(rows.weights.dtype.element_ty).to(tl.float32))\n",
        "backward.short_run",
    ),
    Fault(
        "the learning rate never changes",
        "optimizers.py",
        "self.hyper[:1].fill_(learning_rate)",
        "self.hyper[:1].add_(learning_rate * (self.hyper[0] == 0))",
        "backward.plan",
    ),
    # Stochastic rounding; what takes statistics to see is in tests/suite/test_rounding_faults.py.
    Fault(
        "the noise depends on the program",
        "rounding.py",
        "elements.to(tl.uint32),",
        "(elements + tl.program_id(0)).to(tl.uint32),",
        "backward.short_run",
        case=ROUNDED,
        across=True,
    ),
    Fault(
        "long runs round with noise of their own",
        "backward/long_run.py",
        "step_row(rows, feature, tl.load(lookups.keys + first), run, D",
        "step_row(rows._replace(iteration=run_starts), feature, tl.load(lookups.keys + first), run, D",
        "backward.long_run.ordered",
        case=ROUNDED,
        across=True,
    ),
    Fault(
        "subnormal numbers are rounded as coarsely as they are small",
        "rounding.py",
        "tl.maximum(LEAST - exponent, 0)",
        "2 * tl.maximum(LEAST - exponent, 0)",
        "backward.long_run.ordered",
        case=ROUNDED_FP16,
    ),
    Fault(
        "the largest finite number becomes infinite",
        "rounding.py",
        "bits = tl.where(magnitude >= OVERFLOW, INFINITY, bits)",
        "bits = tl.where(magnitude >= LARGEST, INFINITY, bits)",
        "backward.short_run",
        case=ROUNDED_FP16,
    ),
    Fault(
        "rounding is stochastic where nobody asked",
        "tables.py",
        "return self.stochastic_rounding and self.weights",
        "return self.weights",
        "backward.short_run",
        (2, 8, 6),  # a smaller case has other values, which chance may round to nearest
    ),
)
