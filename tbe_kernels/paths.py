"""The registry of kernel paths: one row a route, and the only place that a new route has to be announced.

A row names its kernels and says, as data, what it takes for the route to run. Strategies aim cases at rows, tests run
every row, the coverage table lists them; a test fails if a kernel is reachable from no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tbe_kernels.backward import from_counts, long_run, long_run_fused, plan, psw_gradient, short_run
from tbe_kernels.forward import bounds_check, pooled, small_table, unpooled
from tbe_kernels.optimizers import OPTIMIZERS


@dataclass(frozen=True)
class Eligibility:
    """What it takes for a route to run. A strategy reads this; nothing is inferred.

    `knobs`: values of `KernelConfig` knobs. `case`: values of the batch's own axes (`pooling_mode`, ...).
    `run`: "short" or "long" if some row's run has to be that. `trains_psw`: per-sample weights that want a gradient.
    `lookups`: whether at least one lookup is needed. `repairs`: "offsets" or "ids" where the route has most to do if
    these are malformed. `variable`: whether the batch has to be a variable one. `plain`: whether it may be neither
    variable nor weighted. `one_table`: there is one feature, its table of at the most so many rows and columns.
    `crowded`: whether the route has most to do where there are many samples. `optimizers`: which it takes; none: any.
    """

    knobs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    case: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    run: str | None = None
    trains_psw: bool = False
    lookups: bool = True
    repairs: str | None = None
    variable: bool = False
    plain: bool = False
    one_table: tuple[int, int] | None = None
    crowded: bool = False
    optimizers: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelPath:
    """One route. `name` is what the observer reports; `stage` is check, forward or backward."""

    name: str
    stage: str
    kernels: tuple[Any, ...]  # @triton.jit functions launched by the route
    needs: Eligibility = Eligibility()

    @property
    def optimizers(self) -> tuple[str, ...]:
        """The names of those that the route takes."""
        return self.needs.optimizers or tuple(kind.name for kind in OPTIMIZERS)


_CHECKED = {"bounds_check_mode": ("WARNING", "IGNORE", "FATAL")}
_SMALL_TABLE = Eligibility(
    knobs={
        "small_table": ("always",),
        "small_table_rows": (64,),
        "small_table_columns": (128,),
        "small_table_window": (16, 4, 64, 256),
        "backward_from_counts": (True, False),
    },
    case={"pooling_mode": ("SUM", "MEAN"), "weights_dtype": ("float16",), "output_dtype": ("float32",)},
    lookups=False,
    plain=True,
    one_table=(64, 128),
    crowded=True,
)

PATHS: tuple[KernelPath, ...] = (
    KernelPath(
        "check.offsets",
        "check",
        (bounds_check.check_offsets_kernel, bounds_check.repair_offsets_kernel),
        Eligibility(case=_CHECKED, lookups=False, repairs="offsets"),
    ),
    KernelPath(
        "check.indices",
        "check",
        (bounds_check.check_indices_kernel,),
        Eligibility(knobs={"fused_bounds_check": (False,)}, case=_CHECKED, repairs="ids"),
    ),
    KernelPath(
        "check.indices.fused",
        "check",
        (pooled.pooled_forward_kernel, unpooled.unpooled_forward_kernel, small_table.small_table_kernel),
        Eligibility(knobs={"fused_bounds_check": (True,)}, case=_CHECKED, repairs="ids"),
    ),
    KernelPath(
        "forward.pooled",
        "forward",
        (pooled.pooled_forward_kernel,),
        Eligibility(case={"pooling_mode": ("SUM", "MEAN")}, lookups=False),
    ),
    KernelPath(
        "forward.pooled.variable",
        "forward",
        (pooled.pooled_forward_kernel,),
        Eligibility(case={"pooling_mode": ("SUM", "MEAN")}, lookups=False, variable=True),
    ),
    KernelPath(
        "forward.unpooled",
        "forward",
        (unpooled.unpooled_forward_kernel,),
        Eligibility(case={"pooling_mode": ("NONE",)}),
    ),
    KernelPath("forward.small_table", "forward", (small_table.small_table_kernel,), _SMALL_TABLE),
    KernelPath(
        "backward.plan",
        "backward",
        (plan.sort_keys_kernel,),
        Eligibility(knobs={"hoist_transpose_to_forward": (False,)}),
    ),
    KernelPath(
        "backward.plan.hoisted",
        "backward",
        (plan.sort_keys_kernel,),
        Eligibility(knobs={"hoist_transpose_to_forward": (True,)}),
    ),
    KernelPath("backward.short_run", "backward", (short_run.short_run_kernel,), Eligibility(run="short")),
    KernelPath(
        "backward.long_run.atomic",
        "backward",
        (long_run.sum_chunks_kernel, long_run.step_long_runs_kernel),
        Eligibility(knobs={"long_run_merge": ("atomic", "auto")}, run="long"),
    ),
    KernelPath(
        "backward.long_run.ordered",
        "backward",
        (long_run.sum_chunks_kernel, long_run.step_long_runs_kernel),
        Eligibility(knobs={"long_run_merge": ("ordered",)}, run="long"),
    ),
    KernelPath(
        "backward.long_run.fused",
        "backward",
        (long_run_fused.fused_long_runs_kernel,),
        Eligibility(knobs={"long_run_merge": ("fused",)}, run="long"),
    ),
    KernelPath(
        "backward.from_counts",
        "backward",
        (from_counts.multiply_counts_kernel, from_counts.step_named_rows_kernel),
        replace(
            _SMALL_TABLE,
            knobs={**_SMALL_TABLE.knobs, "backward_from_counts": (True,)},
            lookups=True,
            optimizers=tuple(kind.name for kind, row in OPTIMIZERS.items() if row.steps),
        ),
    ),
    KernelPath(
        "backward.psw_gradient",
        "backward",
        (psw_gradient.psw_gradient_kernel,),
        Eligibility(case={"pooling_mode": ("SUM",)}, trains_psw=True),
    ),
)
