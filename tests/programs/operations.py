"""What the operations of a kernel give, a line each: every operator that has a short way, on operands of each type and
shape; blocks with a dimension more; casts; loads. `plain` interpreters and quick ones have to agree on all of it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from oracles import interpreter
from oracles.interpreter.pace.shortcuts import OPERATORS

DTYPES = (torch.int32, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Small numbers of either sign, what wraps int32 in a product, and what fp32 rounds.
NUMBERS = (3, -7, 65537, 2**24 + 1)
#: Python's numbers beside a tensor: small ones, beyond int32, and of other types.
CONSTANTS = (2, -3, 2**31 - 1, 2**31, True, 0.5)


@triton.jit
def operate_kernel(x, y, SEE: tl.constexpr, SHAPE: tl.constexpr):
    at = tl.arange(0, SHAPE)
    SEE.see(x, at, tl.load(x), tl.load(x + at), tl.load(y), tl.load(y + SHAPE - 1 - at))


def lines() -> Iterator[str]:
    """All of it, for each pair of types."""
    interpreter.install()
    for mine, other in itertools.product(DTYPES, DTYPES):
        eye = Eye()
        x, y = (torch.tensor(NUMBERS).to(dtype) for dtype in (mine, other))
        with np.errstate(all="ignore"):
            operate_kernel[(1,)](x, y, eye, len(NUMBERS))
        yield from (f"{mine} {other} {line}" for line in eye.seen)


class Eye:
    """Looks at operands from inside a kernel, where operators mean what they mean there."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def see(self, x: Any, at: Any, one: Any, block: Any, other: Any, others: Any) -> None:
        """`x`: a pointer; `at`: places behind it; numbers of one type, a scalar and a block, and of another."""
        mine, masks = (one, block), (block > others, block != others)
        for name in OPERATORS:
            pairs = [*itertools.product(mine, (other, others)), (block[:, None], others[None, :]), masks]
            pairs += [(value, number) for value in mine for number in CONSTANTS]
            pairs += [(number, value) for value in mine for number in CONSTANTS]
            pairs += [(x, value) for value in (1, one, at)]
            for number, pair in enumerate(pairs):
                self.tell(f"{name} {number}", getattr(operator, name), *pair)
        self.tell("index", lambda: block[None, :] + (block[:, None] + others[None, :])[:, :])
        for cast in (tl.int32, tl.int64, tl.float16, tl.bfloat16, tl.float32, tl.float64):
            for value in mine:
                self.tell(f"to {cast}", value.to, cast)
        for value in (None, 0, 0.0, 1):
            self.tell(f"load {value}", tl.load, x + at, at < 2, value)

    def tell(self, name: str, make: Callable[..., Any], *arguments: Any) -> None:
        """What it gives, or how it fails."""
        try:
            self.seen.append(f"{name} {_image(make(*arguments))}")
        except Exception as error:
            self.seen.append(f"{name} {type(error).__name__}")


def _image(value: Any) -> str:
    if not isinstance(value, tl.tensor):
        return repr(value)
    data = value.handle.data
    if value.dtype.is_ptr():
        data = data - data.min()  # how far apart, wherever memory is
    return f"{value.type} {data.shape} {data.tolist()}"
