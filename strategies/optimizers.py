"""Optimizers and their hyper-parameters, all of them fp32 numbers."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from corpus.case import OPTIMIZERS, WEIGHT_DECAY_MODES, Optimizer

#: Powers of two keep SGD exact; the rest are ordinary.
EXACT_RATES = (1.0, 0.5, 0.25, 2.0, 0.0078125)
RATES = (*EXACT_RATES, 0.01, 0.1, 0.3, 1e-4, 0.0)


def fp32(number: float) -> float:
    """The nearest fp32 number."""
    return struct.unpack("f", struct.pack("f", number))[0]


@st.composite
def optimizers(draw: st.DrawFn) -> Optimizer:
    """Any optimizer; eps from 0 up, weight decay where the optimizer knows it."""
    name = draw(st.sampled_from(OPTIMIZERS))
    rate = fp32(draw(st.sampled_from(EXACT_RATES if name == "EXACT_SGD" else RATES)))
    if name == "EXACT_SGD":
        return Optimizer(name, rate)
    eps = fp32(draw(st.sampled_from((1e-8, 0.0, 1e-3, 1.0))))
    if name != "EXACT_ROWWISE_ADAGRAD":
        return Optimizer(name, rate, eps)
    mode = draw(st.sampled_from(WEIGHT_DECAY_MODES))
    decay = 0.0 if mode == "NONE" else fp32(draw(st.sampled_from((0.01, 0.5, 0.1))))
    return Optimizer(name, rate, eps, decay, mode)
