"""Short ways from an operation in a kernel to the builder that does it, for operands that need no conversion.

Triton first finds the common type and shape of the operands, converts both, and builds the type of the result. Most of
what kernels do is on numbers of one type, whose shapes numpy broadcasts as Triton would: that goes to the builder as it
is, with all of the builder's hooks. Everything else takes Triton's way (`slow`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from oracles.interpreter import launch, memory

#: Operators of `tl.tensor`: the builder's operation for integers, for floats and for booleans, and whether it compares.
OPERATORS: dict[str, tuple[str, str, str | None, bool]] = {
    "__add__": ("create_add", "create_fadd", None, False),
    "__sub__": ("create_sub", "create_fsub", None, False),
    "__mul__": ("create_mul", "create_fmul", None, False),
    "__floordiv__": ("create_sdiv", "", None, False),
    "__mod__": ("create_srem", "", None, False),
    "__lt__": ("create_icmpSLT", "create_fcmpOLT", None, True),
    "__gt__": ("create_icmpSGT", "create_fcmpOGT", None, True),
    "__ge__": ("create_icmpSGE", "create_fcmpOGE", None, True),
    "__le__": ("create_icmpSLE", "create_fcmpOLE", None, True),
    "__eq__": ("create_icmpEQ", "create_fcmpOEQ", None, True),
    "__ne__": ("create_icmpNE", "create_fcmpUNE", None, True),
    "__and__": ("create_and", "", "create_and", False),
    "__or__": ("create_or", "", "create_or", False),
    "__lshift__": ("create_shl", "", None, False),
    "__rshift__": ("create_ashr", "", None, False),
}
#: Operators with the number on the left, and those that give the same with it on the right.
MIRRORED = {"__radd__": "__add__", "__rmul__": "__mul__"}
#: Casts that keep every number, or round it once: the builder's operation, and what else it takes.
CASTS: dict[tuple[str, str], tuple[str, tuple[Any, ...]]] = {
    ("int32", "int64"): ("create_int_cast", (True,)),
    ("fp32", "fp64"): ("create_fp_ext", ()),
    ("fp16", "fp32"): ("create_fp_ext", ()),
    ("bf16", "fp32"): ("create_fp_ext", ()),
    ("fp64", "fp32"): ("create_fp_trunc", ()),
}
_INTEGERS = {"int32": np.int32, "int64": np.int64}


def install() -> None:
    """Put the short ways before Triton's."""
    tensor = tl.core.tensor
    for name, (for_ints, for_floats, for_bools, compares) in OPERATORS.items():
        operations = {"int32": for_ints, "int64": for_ints}
        if for_floats:
            operations |= {"fp32": for_floats, "fp64": for_floats}
        if for_bools:
            operations["int1"] = for_bools
        setattr(tensor, name, _short_operator(getattr(tensor, name), operations, compares))
    tensor.__add__ = _short_pointer_arithmetic(tensor.__add__)
    for name, same in MIRRORED.items():
        setattr(tensor, name, _mirrored(getattr(tensor, name), getattr(tensor, same)))
    tensor.__getitem__ = _short_index(tensor.__getitem__)
    tensor.to = _short_cast(tensor.to)
    tl.load = tl.core.load = _short_load(tl.load)


def _short_operator(slow: Any, operations: dict[str, str], compares: bool) -> Any:
    """Operands of one type, signed integers of two widths, or a signed integer and a small constant."""
    builder, tensor = interpreter.interpreter_builder, tl.core.tensor

    def operator(self: Any, other: Any) -> Any:
        scalar, left = self.dtype, self.handle
        kind = scalar.name
        operation = operations.get(kind)
        if operation is None:
            return slow(self, other)
        if type(other) is tensor:
            shape, right = _common_shape(self, other), other.handle
            if other.dtype.name != kind:
                if kind not in _INTEGERS or other.dtype.name not in _INTEGERS:
                    return slow(self, other)
                scalar = tl.int64
                left, right = _widened(left), _widened(right)
        elif type(other) is int and kind in _INTEGERS and -(2**31) <= other < 2**31:
            shape, right = _shape(self), _number(other, kind)
        else:
            return slow(self, other)
        if shape is None:
            return slow(self, other)
        return tensor(getattr(builder, operation)(left, right), _block(tl.int1 if compares else scalar, shape))

    return operator


@functools.lru_cache(maxsize=4096)
def _number(value: int, kind: str) -> Any:
    """To read, never to write."""
    return interpreter.TensorHandle(np.array([value], _INTEGERS[kind]), getattr(tl, kind))


def _widened(value: Any) -> Any:
    wide = interpreter.TensorHandle(value.data.astype(np.int64, copy=False), tl.int64)
    wide.wrapped = value.wrapped
    return wide


def _mirrored(slow: Any, same: Any) -> Any:
    """An integer on the left of a sum or a product."""

    def operator(self: Any, other: Any) -> Any:
        return same(self, other) if type(other) is int else slow(self, other)

    return operator


def _short_pointer_arithmetic(slow: Any) -> Any:
    """A pointer, or a block of them, plus an integer or a block of them."""
    builder, tensor = interpreter.interpreter_builder, tl.core.tensor

    def add(self: Any, other: Any) -> Any:
        if not self.dtype.is_ptr():
            return slow(self, other)
        if type(other) is tensor and other.dtype.name in _INTEGERS:
            shape, right = _common_shape(self, other), other.handle
        elif type(other) is int:
            shape, right = _shape(self), _number(other, "int64")
        else:
            return slow(self, other)
        if shape is None:
            return slow(self, other)
        return tensor(builder.create_addptr(self.handle, right), _block(self.dtype, shape))

    return add


def _short_index(slow: Any) -> Any:
    """`x[:, None]` and `x[None, :]` of a block of one dimension."""
    builder, tensor, whole = interpreter.interpreter_builder, tl.core.tensor, slice(None)

    def getitem(self: Any, slices: Any) -> Any:
        shape = _shape(self)
        if len(shape) != 1 or type(slices) is not tuple or len(slices) != 2:
            return slow(self, slices)
        if slices[0] is None and slices[1] == whole:
            axis = 0
        elif slices[1] is None and slices[0] == whole:
            axis = 1
        else:
            return slow(self, slices)
        wide = _remembered(("index", id(shape), axis), lambda: [1, *shape] if axis == 0 else [*shape, 1])
        return tensor(builder.create_expand_dims(self.handle, axis), _block(self.dtype, wide))

    return getitem


def _short_cast(slow: Any) -> Any:
    """A cast of `CASTS`, and none at all."""
    builder, tensor, dtype = interpreter.interpreter_builder, tl.core.tensor, tl.core.dtype

    def to(self: Any, wanted: Any, *how: Any, **named: Any) -> Any:
        wanted = getattr(wanted, "value", wanted)  # of a constexpr
        if how or named or type(wanted) is not dtype:
            return slow(self, wanted, *how, **named)
        if wanted.name == self.dtype.name:
            return self
        known = CASTS.get((self.dtype.name, wanted.name))
        if known is None:
            return slow(self, wanted)
        operation, rest = known
        return tensor(getattr(builder, operation)(self.handle, wanted, *rest), _block(wanted, _shape(self)))

    return to


def _short_load(slow: Any) -> Any:
    """Loads without a mask, and masked ones of a mask in their own shape with zeros elsewhere."""
    builder, tensor = interpreter.interpreter_builder, tl.core.tensor
    # A cache policy, a flag for volatile and their kin mean nothing to the interpreter.
    rest = (None,) * (len(inspect.signature(interpreter.InterpreterBuilder.create_load).parameters) - 2)

    def load(pointer: Any, mask: Any = None, other: Any = None, **kwargs: Any) -> Any:
        if launch.watcher is not None:  # which notes what kind of access this is
            return slow(pointer, mask, other, **kwargs)
        if kwargs or type(pointer) is not tensor or not pointer.dtype.is_ptr() or pointer.dtype.element_ty.is_int1():
            return slow(pointer, mask, other, **kwargs)
        handle, shape, element = pointer.handle, _shape(pointer), pointer.dtype.element_ty
        if mask is None and other is None:
            out = builder.create_load(handle, *rest)
        elif type(mask) is tensor and mask.shape is pointer.shape and type(other) in (int, float) and other == 0:
            zeros = memory.zeros(handle.data.shape, element, interpreter._get_np_dtype(element))
            if mask.handle.data.shape != handle.data.shape:
                return slow(pointer, mask, other)
            out = builder.create_masked_load(handle, mask.handle, zeros, *rest)
        else:
            return slow(pointer, mask, other)
        return tensor(out, _block(element, shape))

    return load


#: Shapes and types, each made once: what an operation gives is named by its operands' identities.
_known: dict[tuple[Any, ...], Any] = {}


def _remembered(key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    if key not in _known:
        _known[key] = make()
    return _known[key]


def _shape(a: Any) -> Any:
    """The shape of a block, as the one object that types of this shape share (`pace`); () of a scalar."""
    return a.type.shape if a.type.is_block() else ()


def _block(scalar: Any, shape: Any) -> Any:
    """The type of a block, or of a scalar for the shape ()."""
    if not shape:
        return scalar
    key = (scalar.name, id(shape))
    if key not in _known:
        _known[key] = tl.block_type(scalar, shape)
    return _known[key]


def _common_shape(a: Any, b: Any) -> Any:
    """What two values broadcast to, () for scalars; None unless numpy and Triton agree on it."""
    key = (id(a.shape), id(b.shape))
    if key not in _known:
        left, right = ([s.value for s in x.shape] for x in (a, b))
        if left and right and len(left) != len(right):
            _known[key] = None
        elif left and right:
            fits = all(1 in (m, n) or m == n for m, n in zip(left, right, strict=True))
            _known[key] = [max(m, n) for m, n in zip(left, right, strict=True)] if fits else None
        else:
            _known[key] = left or right
    return _known[key]
