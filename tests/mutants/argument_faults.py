"""Faults in what is made of a caller's arguments: how tensors lie in memory, what is asked for, what a refusal says."""

from __future__ import annotations

from tests.mutants.fault import Fault

ARGUMENT_FAULTS = (
    # Tensors that are not contiguous.
    Fault(
        "strided ids are read as if they were contiguous",
        "arguments.py",
        "indices.detach().contiguous(),",
        "indices.detach(),",
        "forward.pooled",
    ),
    Fault(
        "strided offsets are read as if they were contiguous",
        "arguments.py",
        "offsets.detach().contiguous(),",
        "offsets.detach(),",
        "backward.plan",
    ),
    Fault(
        "strided per-sample weights are read as if they were contiguous",
        "arguments.py",
        "psw = psw.detach().contiguous()",
        "psw = psw.detach()",
        "forward.pooled",
    ),
    Fault(
        "a strided feature_requires_grad is read as if it were contiguous",
        "arguments.py",
        "requires = requires.detach().to(torch.int32).contiguous()",
        "requires = requires.detach().to(torch.int32)",
        "backward.psw_gradient",
    ),
)
