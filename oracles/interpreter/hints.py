"""What a kernel tells the compiler is checked: a false hint compiles to wrong code, and an interpreter knows no hints.

`tl.multiple_of`, `tl.max_contiguous`, `tl.max_constancy` and `tl.assume` are claims about values. Each is judged on the
values of every launch, where it is made; a false one is a finding at the kernel's line.

A claim about a block is as Triton defines it: along each dimension the elements form groups, contiguous ones for the
first two hints and constant ones for the third; what is said of multiples is said of the first element of each group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from oracles.interpreter import launch
from oracles.interpreter.findings import GuardError

#: Elements of one dimension, in groups along the last axis, and the number that is claimed: where the claim is false.
Claim = Callable[[np.ndarray, int, int], np.ndarray]


def install() -> None:
    """Judge every hint of every kernel from now on."""
    patch = interpreter._patch_lang

    def patch_lang(fn: Any) -> Any:
        scope = patch(fn)
        for name, claim in CLAIMS.items():
            judge = partial(_hint, name, claim)
            for module in (tl, tl.core):
                setattr(module, name, judge)
        return scope

    interpreter._patch_lang = patch_lang
    interpreter.interpreter_builder.create_assume = _assume


def _hint(name: str, claim: Claim, x: Any, values: Any, _semantic: Any = None) -> Any:
    """A hint as kernels write it: `x`, once it is judged."""
    every: Sequence[Any] = values if isinstance(values, (list, tuple)) else [values]
    claimed: list[int] = [getattr(v, "value", v) for v in every]
    if isinstance(x, tl.tensor):
        data, width = x.handle.data, _step(x)
        data = data.reshape([getattr(n, "value", n) for n in x.shape] if x.type.is_block() else [1])
    else:  # the variable of a loop is a number of Python's here
        data, width = np.array([getattr(x, "value", x)]), 1
    if len(claimed) != data.ndim:
        raise ValueError(f"tl.{name}: expected a number for each of {data.ndim} dimensions, got {claimed}")
    _judge(name, claim, data, claimed, width)
    return x


def _step(tensor: Any) -> int:
    """What lies between one element and the next: 1, or the bytes of what is pointed to."""
    scalar = tensor.type.scalar
    return launch.pointer_type_bytes(tensor.handle) if scalar.is_ptr() else 1


def _judge(name: str, claim: Claim, data: np.ndarray, claimed: Sequence[int], width: int) -> None:
    for axis, number in enumerate(claimed):
        if number == 1 or not data.size:
            continue
        along = np.moveaxis(data, axis, -1)
        false = claim(along, number, width)
        if false.any():
            place = tuple(int(i) for i in np.argwhere(false)[0])
            value = int(along[place])
            raise GuardError("hints", f"tl.{name}({number}) of {value}, {int(false.sum())} such, in {_where()}")


def _where() -> str:
    return launch.current.describe() if launch.current is not None else "no launch"


def _multiple_of(along: np.ndarray, number: int, width: int) -> np.ndarray:
    """The first element of each group of neighbours is a multiple."""
    false = along % along.dtype.type(number) != 0
    false[..., 1:] &= ~_follows(along, width)
    return false


def _max_contiguous(along: np.ndarray, number: int, width: int) -> np.ndarray:
    """Within groups of so many, each element follows the one before it."""
    false = np.zeros(along.shape, bool)
    false[..., 1:] = ~_follows(along, width)
    false[..., ::number] = False
    return false


def _max_constancy(along: np.ndarray, number: int, width: int) -> np.ndarray:
    """Within groups of so many, each element is the one before it."""
    false = np.zeros(along.shape, bool)
    false[..., 1:] = along[..., 1:] != along[..., :-1]
    false[..., ::number] = False
    return false


def _follows(along: np.ndarray, width: int) -> np.ndarray:
    return along[..., 1:] == along[..., :-1] + along.dtype.type(width)


CLAIMS: dict[str, Claim] = {
    "multiple_of": _multiple_of,
    "max_contiguous": _max_contiguous,
    "max_constancy": _max_constancy,
}


def _assume(condition: Any) -> None:
    if not condition.data.all():
        raise GuardError("hints", f"tl.assume of what is false, in {_where()}")
