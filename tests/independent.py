"""Examples that are drawn independently of each other.

Hypothesis lets each example be followed by up to five copies of it in which one part replaces another, so that values
repeat more often than by accident. The strategies here repeat ids, shapes and batches on purpose, and a case costs up
to a second in the interpreter: five more of nearly the same case are five cases not seen. Of 260 examples for the
backward from counts, 24 had several products, of only six shapes; drawn independently, 24 of 24. There is no setting
for it; it is one method of Hypothesis, and `tests/suite/test_strategies.py` fails where that no longer is so.
"""

from __future__ import annotations

from typing import Any

from hypothesis.internal.conjecture.engine import ConjectureRunner

COPIES = "generate_mutations_from"
PLAIN = getattr(ConjectureRunner, COPIES)


def install() -> None:
    """No such copies from now on, in this process."""
    setattr(ConjectureRunner, COPIES, _no_copies)


def _no_copies(runner: ConjectureRunner, data: Any) -> None:
    """Instead of the copies of one example."""
