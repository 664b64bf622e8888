"""Guard zones around every buffer that a run allocates, and NaN in every buffer that starts uninitialised.

Works below any implementation: while the guard is on, `torch.empty` and its kin return a window of a larger buffer
whose margins hold a pattern. A run that writes past a buffer's end destroys the pattern; one that reads what nobody
wrote reads NaN (floats) or a number that no id or offset has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: Bytes of pattern on each side: a multiple of what vector loads and allocators align to, and more than the widest row
#: of the strategies, so that a write one row off is told and does not tear up the heap.
MARGIN = 2**13 + 2**8
PATTERN = 7777
#: The same for types of one byte, which hold no such number.
BYTE_PATTERN = 97
#: Larger buffers are not filled (a table beyond 2**31 elements would cost seconds and its lazily mapped memory).
MOST_FILLED = 2**24

_aten = torch.ops.aten
UNINITIALISED = {_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default}
FILLED = {
    _aten.zeros.default,
    _aten.zeros_like.default,
    _aten.new_zeros.default,
    _aten.full.default,
    _aten.ones.default,
}


class GuardZones(TorchDispatchMode):
    """While active, guards allocations; `damage()` says which margins were written to."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[tuple[Tensor, int, Tensor]] = []  # whole, margin in elements, window

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nobody compiles in here, and the wrapper for those who do costs an import of seconds, and each call."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        allocates = func in UNINITIALISED or func in FILLED
        if allocates and out.layout == torch.strided and out.numel() > 0 and out.is_contiguous():
            return self._guarded(out, filled=func in FILLED)
        return out

    def _guarded(self, plain: Tensor, filled: bool) -> Tensor:
        margin, small = MARGIN // plain.element_size(), plain.numel() <= MOST_FILLED
        size, pattern = plain.numel() + 2 * margin, _pattern(plain.dtype)
        if small:
            whole = torch.full((size,), pattern, dtype=plain.dtype, device=plain.device)
        else:
            whole = torch.empty(size, dtype=plain.dtype, device=plain.device)
            whole[:margin] = pattern
            whole[-margin:] = pattern
        window = whole[margin:-margin].view(plain.shape)
        if filled:
            window.copy_(plain)
        elif small and plain.is_floating_point():
            window.fill_(torch.nan)
        self._buffers.append((whole, margin, window))
        return window

    def damage(self) -> list[str]:
        """One line for each buffer whose surroundings were written to."""
        found, patterns = [], {}
        for whole, margin, window in self._buffers:
            kind = (whole.dtype, whole.device)
            if kind not in patterns:
                patterns[kind] = torch.full((margin,), _pattern(whole.dtype), dtype=whole.dtype, device=whole.device)
            for side, part in (("before", whole[:margin]), ("behind", whole[-margin:])):
                if torch.equal(part, patterns[kind]):
                    continue
                overwritten = int((part != patterns[kind]).sum())
                shape = f"{str(window.dtype).removeprefix('torch.')}{list(window.shape)}"
                found.append(f"{overwritten} elements {side} a buffer {shape} were overwritten")
        return found


def _pattern(dtype: torch.dtype) -> int:
    return PATTERN if dtype.itemsize > 1 else BYTE_PATTERN
