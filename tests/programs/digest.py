"""Prints what single operations give, and a digest of what the kernels leave on every small stored case; at the
interpreter's own pace where TBE_PACE=0."""

from __future__ import annotations

import hashlib
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from corpus.store import stored_cases
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.implementation import Forward
from oracles.values.compare import bits
from tests.programs import operations

if __name__ == "__main__":
    for line in operations.lines():
        print(line)
    for stored in stored_cases():
        if stored.path.stat().st_size > 1200:
            continue
        trace = IMPLEMENTATION.run(stored.case, stored.case.routing, torch.device("cpu"))
        image = hashlib.sha256()
        for step in trace.steps:
            tensors = [step.output] if isinstance(step, Forward) else step.weights
            for tensor in tensors:
                image.update(bits(tensor).numpy().tobytes())
        print(stored.id, image.hexdigest())
