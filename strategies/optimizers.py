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


#: How often each is drawn, in twentieths: what most models train with more often than the rest.
SHARE = {
    "EXACT_SGD": 4,
    "EXACT_ROWWISE_ADAGRAD": 4,
    "EXACT_ADAGRAD": 2,
    "ADAM": 2,
    "PARTIAL_ROWWISE_ADAM": 1,
    "LAMB": 2,
    "PARTIAL_ROWWISE_LAMB": 1,
    "LARS_SGD": 2,
    "NONE": 2,
}
#: Linear in the gradient, so that exact mode stays exact from step to step.
LINEAR = ("EXACT_SGD", "NONE")
DECAYS = (0.01, 0.5, 0.1)
#: How often gradients are clipped.
CLIPS = (False,) * 5 + (True,)


@st.composite
def optimizers(draw: st.DrawFn, *, among: tuple[str, ...] = (), clips: tuple[bool, ...] = CLIPS) -> Optimizer:
    """Any optimizer, or one of some; what it reads anywhere in its range, 0 included; clipping now and then."""
    name = draw(st.sampled_from([n for n in among or OPTIMIZERS for _ in range(SHARE[n])]))
    hyper: dict[str, float] = {}
    if name not in (*LINEAR, "LARS_SGD"):
        hyper["eps"] = draw(st.sampled_from((1e-8, 0.0, 1e-3, 1.0)))
    mode = draw(st.sampled_from(WEIGHT_DECAY_MODES)) if name == "EXACT_ROWWISE_ADAGRAD" else "NONE"
    if mode != "NONE":
        hyper["weight_decay"] = draw(st.sampled_from(DECAYS))
    if name == "EXACT_ROWWISE_ADAGRAD":
        hyper["max_norm"] = draw(st.sampled_from((0.0, 0.0, 1.0, 0.1, 100.0)))
    if name.endswith(("ADAM", "LAMB")):
        hyper["beta1"] = draw(st.sampled_from((0.9, 0.5, 0.0, 0.99)))
        hyper["beta2"] = draw(st.sampled_from((0.999, 0.5, 0.0, 0.9)))
    if name == "LARS_SGD":
        hyper["eta"] = draw(st.sampled_from((0.001, 1.0, 0.25)))
        hyper["momentum"] = draw(st.sampled_from((0.9, 0.5, 0.0)))
    if name.endswith(("ADAM", "LAMB", "LARS_SGD")):
        hyper["weight_decay"] = draw(st.sampled_from((0.0, 0.0, 0.0, *DECAYS)))
    clipped = draw(st.sampled_from(clips))
    return Optimizer(
        name,
        fp32(draw(st.sampled_from(EXACT_RATES if name in LINEAR else RATES))),
        weight_decay_mode=mode,
        max_gradient=draw(st.sampled_from((1.0, 2.0, 0.5, fp32(0.3)))) if clipped else None,
        **{key: fp32(value) for key, value in hyper.items()},
    )
