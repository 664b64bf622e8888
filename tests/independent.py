"""A Hypothesis backend whose examples are drawn independently of each other, and of what else the process has loaded.

Hypothesis lets each example be followed by up to five copies of it in which one part replaces another, so that values
repeat more often than by accident. The strategies here repeat ids, shapes and batches on purpose, and a case costs up
to a second in the interpreter: five more of nearly the same case are five cases not seen. A backend of one's own is
asked for each example anew.

It also mixes in constants: its own, and those that it reads in the source of every local module loaded so far. So a
derandomised run drew other examples after other tests, and of two runs over all mutants one found a fault that the
other did not. Here no constants are mixed in; the strategies name theirs.

Other than Hypothesis's own backend this one does not notice when a test has few distinct inputs: it runs them again.
"""

from __future__ import annotations

import sys
from typing import Any

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

#: What to name in `settings(backend=...)`.
BACKEND = "independent"
#: The one method of Hypothesis's that is replaced though it is private.
CONSTANTS = "_maybe_draw_constant"


class IndependentProvider(HypothesisProvider):
    """Draws as Hypothesis does, without its constants."""

    def _maybe_draw_constant(self, *args: Any, **kwargs: Any) -> None:
        """No constant, ever."""


AVAILABLE_PROVIDERS[BACKEND] = IndependentProvider
if not hasattr(HypothesisProvider, CONSTANTS):
    print(f"This Hypothesis has no {CONSTANTS}: examples depend on which modules are loaded.", file=sys.stderr)
