"""Rounding: whether updated weights are rounded stochastically, and values where the grid of their type is special."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from corpus.case import Case

SEEDS = (0, 1, -1, 2**32, -(2**63), 2**63 - 1)
#: fp16 weights, integers of up to 7 bits times this power of two, lie on both sides of the least normal number.
SUBNORMAL_SCALE = -20


@st.composite
def rounded(draw: st.DrawFn, case: Case) -> Case:
    """The case, rounding stochastically: one in four of those whose weights have something to round, one in ten of the
    others. fp16 weights are subnormal, or as large as they can be, now and then."""
    share = 10 if case.weights_dtype == "float32" else 4
    if draw(st.sampled_from((False,) * (share - 1) + (True,))):
        case = replace(case, stochastic_rounding=True, rounding_seed=draw(st.sampled_from(SEEDS)))
    if case.weights_dtype == "float16":
        where = draw(st.sampled_from((None,) * 6 + ("subnormal", "largest")))
        if where == "subnormal":
            case = replace(case, values=replace(case.values, scale=SUBNORMAL_SCALE))
        elif where == "largest":
            case = replace(case, values=replace(case.values, largest=True))
    return case
