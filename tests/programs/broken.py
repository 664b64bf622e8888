"""An implementation that is wrong on purpose, for tests of what is said about failures."""

from __future__ import annotations

import torch

from corpus.case import Case
from oracles.adapters.torch_reference import TorchReference
from oracles.implementation import Forward, Routing, Trace


class OffByOne(TorchReference):
    """Adds one to every output."""

    name = "off by one"

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """A trace with wrong outputs."""
        trace = super().run(case, routing, device)
        for step in trace.steps:
            if isinstance(step, Forward):
                step.output = step.output + 1
        return trace


IMPLEMENTATION = OffByOne()
