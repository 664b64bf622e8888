"""Faults planted in the routes that count a small table. They multiply, so a mask or a tail hides well."""

from __future__ import annotations

from tests.mutants.fault import Fault
from tests.mutants.plant import Edit

FORWARD, BACKWARD = "forward/small_table.py", "backward/from_counts.py"

COUNTED_FAULTS = (
    Fault(
        "ids beyond the first window are dropped",
        FORWARD,
        "for window in range(0, longest, WINDOW):",
        "for window in range(0, tl.minimum(longest, WINDOW), WINDOW):",
        "forward.small_table",
    ),
    Fault(
        "a pruned id is counted as row 0",
        FORWARD,
        "of_bag = tl.histogram(index.to(tl.int32), BLOCK_E, mask=index >= 0)",
        "of_bag = tl.histogram(tl.maximum(index, 0).to(tl.int32), BLOCK_E, mask=at < last)",
        "forward.small_table",
    ),
    Fault(
        "lanes beyond a bag are counted as row 0",
        FORWARD,
        "of_bag = tl.histogram(index.to(tl.int32), BLOCK_E, mask=index >= 0)",
        "of_bag = tl.histogram(tl.where(at < last, index, 0).to(tl.int32), BLOCK_E, mask=(index >= 0) | (at >= last))",
        "forward.small_table",
    ),
    Fault(
        "the mean of an empty counted bag divides by zero",
        FORWARD,
        "divisor = tl.maximum(count, 1).to(tl.float32)",
        "divisor = count.to(tl.float32)",
        "forward.small_table",
    ),
    Fault(
        "the mean is divided by the counts of the last window",
        FORWARD,
        "counts += seen",
        "counts = seen",
        "forward.small_table",
    ),
    Fault(
        "a NaN in a row that no bag names leaks",
        FORWARD,
        "finite = tl.where(is_finite, rows, 0.0).to(tl.float16)",
        "finite = rows",
        "forward.small_table",
    ),
    Fault(
        "an infinity in a row that a bag names is lost",
        FORWARD,
        "        if any_special:\n",
        "        if any_special & (B < 0):\n",
        "forward.small_table",
    ),
    Fault(
        "infinities of either sign make an infinity",
        FORWARD,
        "(met % 128 > 0) | (pluses & minuses)",
        "met % 128 > 0",
        "forward.small_table",
    ),
    Fault(
        "the last, partial group of bags is lost",
        FORWARD,
        "* BAGS, B, tl.num_programs",
        "* BAGS, tl.maximum(B - B % BAGS, BAGS), tl.num_programs",
        "forward.small_table",
        (2, 17, 6),
    ),
    Fault(
        "the counts of the neighbour bag",
        FORWARD,
        "(lanes == lane)[:, None]",
        "(lanes == lane ^ 1)[:, None]",
        "forward.small_table",
    ),
    Fault(
        "a relative error of 2 ** -18 in one product",
        FORWARD,
        "total = tl.dot(seen.to(tl.float16), finite, total)",
        "total = tl.dot(seen.to(tl.float16), finite, total * (1.0 + 2.0**-18))",
        "forward.small_table",
    ),
    Fault(
        "the low half of the gradients is dropped",
        BACKWARD,
        "tl.dot(times, low) * (1.0 / LOW)",
        "tl.dot(times, low) * 0.0",
        "backward.from_counts",
    ),
    Fault(
        "the product stays scaled",
        BACKWARD,
        "* (1.0 / LOW)) * back",
        "* (1.0 / LOW))",
        "backward.from_counts",
    ),
    Fault(
        "a count beyond 2048 is taken for fp16",
        BACKWARD,
        " & (most_counted <= MOST_COUNTED)",
        "",
        "backward.from_counts",
        (2, 3, 2049),
    ),
    Fault(
        "small gradients beside large ones are taken for fp16",
        BACKWARD,
        " & (least * scale >= LEAST_SCALED)",
        "",
        "backward.from_counts",
    ),
    Fault(
        "a NaN gradient reaches rows that its bag does not name",
        BACKWARD,
        "tl.where(times_one > 0.0, times_one * grad, 0.0)",
        "times_one * grad",
        "backward.from_counts",
    ),
    Fault(
        "counted gradients are not divided by the mean's count",
        BACKWARD,
        "    if MEAN:\n",
        "    if MEAN and K == 1:\n",
        "backward.from_counts",
    ),
    Fault(
        "rows that nobody names are stepped",
        BACKWARD,
        "if is_named > 0:",
        "if is_named >= 0:",
        "backward.from_counts",
    ),
    Fault(
        "the last partial sum is lost",
        BACKWARD,
        "live = parts < programs",
        "live = parts < tl.maximum(programs - 1, 1)",
        "backward.from_counts",
        (2, 17, 6),
    ),
    Fault(
        "the counts kept are those of the last window",
        FORWARD,
        "tl.store(row_counts + bags[:, None].to(tl.int64) * BLOCK_E + ids[None, :], counts,",
        "tl.store(row_counts + bags[:, None].to(tl.int64) * BLOCK_E + ids[None, :], seen,",
        "backward.from_counts",
        more=(
            Edit(
                FORWARD,
                "        counts = tl.zeros([BAGS, BLOCK_E], dtype=tl.int32)\n",
                "        counts = tl.zeros([BAGS, BLOCK_E], dtype=tl.int32)\n"
                "        seen = tl.zeros([BAGS, BLOCK_E], dtype=tl.int32)\n",
            ),
        ),
    ),
)
