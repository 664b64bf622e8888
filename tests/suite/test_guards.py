"""Guard zones: they see writes next to a buffer, and let nobody mistake unwritten memory for a result."""

from __future__ import annotations

import pytest
import torch

from oracles.adapters.guards import GuardZones

ALLOCATIONS = {
    "empty": lambda: torch.empty(3, 4),
    "empty_like": lambda: torch.empty_like(torch.ones(5)),
    "new_empty": lambda: torch.ones(2).new_empty(7),
    "zeros": lambda: torch.zeros(6, dtype=torch.int64),
    "full": lambda: torch.full((4,), 9, dtype=torch.int32),
    "ones": lambda: torch.ones(3, dtype=torch.bfloat16),
    "bytes": lambda: torch.empty(3, dtype=torch.uint8),
    "fp8": lambda: torch.zeros(3, dtype=torch.float8_e4m3fn),
}


@pytest.mark.parametrize("name", ALLOCATIONS)
@pytest.mark.parametrize("place", [-1, 0])
def test_a_write_next_to_a_buffer_is_seen(name: str, place: int) -> None:
    guard = GuardZones()
    with guard:
        buffer = ALLOCATIONS[name]()
    assert guard.damage() == []
    # One element before the first, or one behind the last.
    at = buffer.storage_offset() + (-1 if place else buffer.numel())
    buffer.as_strided((1,), (1,), at).fill_(1)
    (line,) = guard.damage()
    assert ("before" if place else "behind") in line
    assert str(list(buffer.shape)) in line


def test_unwritten_memory_is_nan_and_filled_memory_keeps_its_value() -> None:
    with GuardZones():
        assert bool(torch.empty(9).isnan().all())
        assert bool(torch.empty(9, dtype=torch.bfloat16).isnan().all())
        assert bool((torch.empty(9, dtype=torch.int32) == 7777).all())
        assert torch.zeros(3).tolist() == [0, 0, 0]
        assert torch.full((2,), 5).tolist() == [5, 5]
        assert torch.empty(0).numel() == 0


def test_the_guard_reaches_into_the_backward() -> None:
    seen: list[torch.Tensor] = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(torch.empty(4))
            return grad

    with GuardZones():
        Probe.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert bool(seen[0].isnan().all())


def test_nothing_is_guarded_outside() -> None:
    with GuardZones():
        pass
    assert torch.empty(3).storage_offset() == 0
