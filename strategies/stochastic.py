"""Rounding: whether updated weights are rounded stochastically, and values where the grid of their type is special."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from corpus.case import Case

SEEDS = (0, 1, -1, 2**32, -(2**63), 2**63 - 1)
#: fp16 weights, integers of up to 7 bits times this power of two, lie on both sides of the least normal number.
SUBNORMAL_SCALE = -20
#: By type: (whether to round stochastically, which numbers to be among). One draw, so that they meet. About one case
#: in four rounds stochastically if its weights have something to round, one in ten otherwise.
KINDS = {
    "float32": ((False, ""),) * 9 + ((True, ""),),
    "bfloat16": ((False, ""),) * 3 + ((True, ""),),
    "float16": (
        *((False, ""),) * 5,
        *((False, "subnormal"), (False, "largest"), (True, ""), (True, "largest"), (True, "subnormal")),
    ),
}


@st.composite
def rounded(draw: st.DrawFn, case: Case, *, wanted: tuple[bool, ...] = (False, True)) -> Case:
    """The case, rounding stochastically or to nearest, and if its weights are fp16 now and then with subnormal ones, or
    with some as large as they can be."""
    stochastic, among = draw(st.sampled_from([k for k in KINDS[case.weights_dtype] if k[0] in wanted]))
    values = case.values
    if among:
        values = replace(values, scale=SUBNORMAL_SCALE) if among == "subnormal" else replace(values, largest=True)
    seed = draw(st.sampled_from(SEEDS)) if stochastic else 0
    return replace(case, stochastic_rounding=stochastic, rounding_seed=seed, values=values)
