"""int32 arithmetic that wraps, judged only where a wrapped value becomes the address of a lane that is not masked off.

Sums, differences, products and narrowing casts are checked lane by lane. From the first lane that wraps until its
launch ends, every operation hands the mark on: which lanes of its result come from wrapped ones. So a launch that wraps
nothing pays for the check alone. A mark is lost where a kernel's value becomes a Python number (the bounds of a loop)
or goes through memory, and a comparison drops it: what a mask does is judged by its value.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from triton.runtime import interpreter

from oracles.interpreter import launch
from oracles.interpreter.findings import GuardError

_INT32 = np.dtype(np.int32)
#: Operations whose result lies where their operand's lanes went.
_MOVES = ("expand_dims", "broadcast", "splat", "reshape", "trans", "unsplat")
#: Operations that work lane by lane, by their names at the builder.
_LANEWISE = (
    *("add", "sub", "mul", "sdiv", "udiv", "srem", "urem", "and", "or", "xor", "shl", "lshr", "ashr"),
    *("minsi", "maxsi", "minui", "maxui", "iabs", "int_cast", "bitcast", "int_to_ptr", "ptr_to_int", "addptr"),
)
_unmarked: dict[str, Any] = {}


def install() -> None:
    """Check the builder's int32 arithmetic."""
    interpreter.TensorHandle.wrapped = None  # which lanes come from wrapped ones
    builder = interpreter.interpreter_builder
    for name, of_lanes, of_numbers in (
        ("add", np.add, operator.add),
        ("sub", np.subtract, operator.sub),
        ("mul", np.multiply, operator.mul),
    ):
        plain = getattr(builder, f"create_{name}")
        setattr(builder, f"create_{name}", _checked(plain, of_lanes, of_numbers))
    plain_cast = builder.create_int_cast

    def int_cast(src: Any, dst_type: Any, is_signed: bool) -> Any:
        out = plain_cast(src, dst_type, is_signed)
        if out.data.dtype == _INT32 and src.data.dtype == np.int64:
            lost = out.data != src.data
            if np.count_nonzero(lost):
                _mark(out, lost)
        return out

    builder.create_int_cast = int_cast
    launch.at_end.append(_stop)


def _checked(plain: Any, of_lanes: Any, of_numbers: Any) -> Any:
    def checked(lhs: Any, rhs: Any) -> Any:
        out = plain(lhs, rhs)
        data = out.data
        if data.dtype != _INT32:
            return out
        if data.size == 1:
            if data.item() != of_numbers(lhs.data.item(), rhs.data.item()):
                _mark(out, np.ones(data.shape, bool))
        else:
            wrapped = of_lanes(lhs.data, rhs.data, dtype=np.int64) != data
            if np.count_nonzero(wrapped):  # in half the time of `any`
                _mark(out, wrapped)
        return out

    return checked


def _mark(handle: Any, lanes: np.ndarray) -> None:
    """From here on, marks are handed on."""
    handle.wrapped = lanes if handle.wrapped is None else handle.wrapped | lanes
    if _unmarked or launch.current is None:
        return
    builder = interpreter.interpreter_builder
    for name in (*_MOVES, *_LANEWISE, "select"):
        attribute = f"create_{name}"
        _unmarked[attribute] = vars(builder).get(attribute)
        plain = getattr(builder, attribute)
        setattr(builder, attribute, _marking(plain, moves=name in _MOVES, selects=name == "select"))


def _marking(plain: Any, moves: bool, selects: bool) -> Any:
    def operation(*args: Any) -> Any:
        out = plain(*args)
        handles = [a for a in args if isinstance(a, interpreter.TensorHandle)]
        if all(h.wrapped is None for h in handles):
            return out
        if moves:
            marked = [interpreter.TensorHandle(a.wrapped, interpreter.tl.int1) if a is handles[0] else a for a in args]
            out.wrapped = plain(*marked).data
        elif selects:
            out.wrapped = np.where(args[0].data, _lanes(args[1]), _lanes(args[2]))
        else:
            wrapped = np.zeros(out.data.shape, bool) if out.wrapped is None else out.wrapped.copy()
            for h in handles:
                wrapped |= _lanes(h)
            out.wrapped = wrapped
        return out

    return operation


def _lanes(handle: Any) -> Any:
    return False if handle.wrapped is None else handle.wrapped


def _stop() -> None:
    """The launch is over: nothing that it marked lives on."""
    builder = interpreter.interpreter_builder
    for attribute, before in _unmarked.items():
        if before is None:
            delattr(builder, attribute)
        else:
            setattr(builder, attribute, before)
    _unmarked.clear()


def judge(access: str, ptrs: Any, mask: np.ndarray | None) -> None:
    """Raise GuardError if a marked address is accessed."""
    live = ptrs.wrapped if mask is None else ptrs.wrapped & mask
    if live.any() and launch.current is not None:
        now = launch.current
        tensor = None if ptrs.span is None else ptrs.span.tensor
        name = next((n for n, t in now.tensors() if t is tensor), "an argument")
        lanes = int(live.sum())
        raise GuardError(
            "overflow",
            f"int32 arithmetic wrapped on the way to the address of {'a' if access[0] != 'a' else 'an'} {access} of "
            f"{name}, {lanes} lane{'s' if lanes > 1 else ''}, in {now.describe()}",
        )
