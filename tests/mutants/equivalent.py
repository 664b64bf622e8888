"""Mutants that no input can tell from the true kernels, each with the reason. They do not count in the score.

More than 5,200 examples of each showed no difference: `python -m tests.mutants --only equivalent --budget 5300`.
"""

from __future__ import annotations

_PROMOTED = "An integer is promoted to the floating type of what it is divided into, or multiplied with, anyway."

EQUIVALENT: dict[str, str] = {
    "backward/from_counts.power_of_two_around: 268 - exponent -> (268 + exponent)": (
        "The scale becomes negative, so every group is summed lane by lane: slower, and within the same bounds."
    ),
    "backward/rows.gradient_starts: tl.load(lookups.D_offsets + feature, mask=live, other=0) -> "
    "(tl.load(lookups.D_offsets + feature))": "Lanes that are not live have bag 0, so they read the first offset.",
    "forward/pooled.pooled_forward_kernel: divisor.to(ACCUMULATOR) -> divisor": _PROMOTED,
    "backward/from_counts.multiply_counts_kernel: some.to(tl.float32) -> some": _PROMOTED,
    "backward/psw_gradient.psw_gradient_kernel: dot.to(tl.float32) -> dot": (
        "A store converts to the type of what it points to."
    ),
    "backward/psw_gradient.psw_gradient_kernel: D -> total_D": (
        "It bounds the walk over column tiles, and columns beyond D are masked off: more tiles, the same sums."
    ),
    "backward/short_run.step_short_runs: bucket.end_key - bucket.first_key -> (bucket.end_key + bucket.first_key)": (
        "It bounds the number of programs, which share whatever runs there are, from above."
    ),
    "batch.feature_and_sample: len(self.starts) - 1 -> (len(self.starts))": "No bag begins at the end of all bags.",
    "backward/plan._find_long_runs: is_row & (lengths >= config.long_run_threshold) -> "
    "(lengths >= config.long_run_threshold)": "The run of pruned lookups comes last and belongs to no bucket.",
    "backward/long_run_fused._clean_workspace: kept[1].numel() < runs -> (kept[1].numel() <= runs)": (
        "A workspace that would just do is made anew, as clean as the old one."
    ),
    "forward/small_table.small_table_forward: groups > 0 -> (groups >= 0)": "An empty grid launches nothing.",
}
