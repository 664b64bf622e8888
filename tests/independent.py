"""Examples that are drawn independently of each other, and of what else the process has loaded.

Hypothesis lets each example be followed by up to five copies of it in which one part replaces another, so that values
repeat more often than by accident. The strategies here repeat ids, shapes and batches on purpose, and a case costs up
to a second in the interpreter: five more of nearly the same case are five cases not seen. Of 260 examples for the
backward from counts, 24 had several products, of only six shapes; drawn independently, 24 of 24.

It also mixes in constants that it reads in the source of every local module loaded so far. So a derandomised run drew
other examples after other tests, and of two runs over all mutants one found a fault that the other did not.

There are no settings for these; they are one method and one function of Hypothesis. Where that no longer is so,
`tests/suite/test_strategies.py` fails.
"""

from __future__ import annotations

from typing import Any

from hypothesis.internal.conjecture import providers
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.internal.constants_ast import Constants

COPIES, CONSTANTS = "generate_mutations_from", "_get_local_constants"
COPYING, READING = getattr(ConjectureRunner, COPIES), getattr(providers, CONSTANTS)


def install() -> None:
    """No such copies and no such constants from now on, in this process."""
    setattr(ConjectureRunner, COPIES, _no_copies)
    setattr(providers, CONSTANTS, Constants)


def _no_copies(runner: ConjectureRunner, data: Any) -> None:
    """Instead of the copies of one example."""
