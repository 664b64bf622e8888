"""Optimizers and their hyper-parameters, all of them fp32 numbers."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from corpus.case import Optimizer
from corpus.optimizers import KINDS

#: Powers of two keep SGD exact; the rest are ordinary.
EXACT_RATES = (1.0, 0.5, 0.25, 2.0, 0.0078125)
RATES = (*EXACT_RATES, 0.01, 0.1, 0.3, 1e-4, 0.0)


def fp32(number: float) -> float:
    """The nearest fp32 number."""
    return struct.unpack("f", struct.pack("f", number))[0]


#: How often gradients are clipped.
CLIPS = (False,) * 5 + (True,)


@st.composite
def optimizers(draw: st.DrawFn, *, among: tuple[str, ...] = (), clips: tuple[bool, ...] = CLIPS) -> Optimizer:
    """Any optimizer, or one of some; what it reads anywhere in its range, 0 included; clipping now and then."""
    name = draw(st.sampled_from([n for n in among or KINDS for _ in range(KINDS[n].share)]))
    kind, mode, hyper = KINDS[name], "NONE", {}
    for parameter, menu in kind.hyper.items():
        if parameter == "weight_decay" and len(kind.decay_modes) > 1:
            mode = draw(st.sampled_from(kind.decay_modes))
            if mode == "NONE":
                continue
        hyper[parameter] = draw(st.sampled_from(menu))
    clipped = draw(st.sampled_from(clips))
    return Optimizer(
        name,
        fp32(draw(st.sampled_from(EXACT_RATES if kind.linear else RATES))),
        weight_decay_mode=mode,
        max_gradient=draw(st.sampled_from((1.0, 2.0, 0.5, fp32(0.3)))) if clipped else None,
        **{key: fp32(value) for key, value in hyper.items()},
    )
