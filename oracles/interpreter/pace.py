"""What makes the interpreter about three times as fast, without changing any result.

Measured on a forward and backward of 27 lookups: 200 ms as it comes, 55 ms with all of these.
* It patches `triton.language` again at every launch and every call of a device function; here once and for good.
* It emulates int32 overflow checks whose outcome nobody reads.
* It builds the same few type objects over and over, and casts and broadcasts values to what they already are.
* It copies each argument to the host and back, which for CPU tensors moves nothing but takes 20 us an argument.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.runtime import interpreter


class _NothingToRestore:
    def restore(self) -> None:
        pass


def install() -> None:
    """Patch `triton.language` for good and remember types."""
    _patch_language_once()
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    _remember_numpy_types()
    _remember_block_types()
    _remember_shapes()
    _skip_what_changes_nothing()
    _pass_cpu_tensors_through()


def _patch_language_once() -> None:
    core = tl.core

    def sees_both_modules() -> None:
        _ = tl, core

    # The scope that would undo the patches is dropped: an interpreting process never compiles.
    interpreter._patch_lang(_with_globals(sees_both_modules, tl=tl, core=core))
    scope = _NothingToRestore()
    interpreter._patch_lang = lambda fn: scope


def _with_globals(fn: Any, **names: Any) -> Any:
    """`fn` with `names` as its globals: `_patch_lang` looks there for the modules to patch."""
    return type(fn)(fn.__code__, names, fn.__name__, None, fn.__closure__)


def _remember_numpy_types() -> None:
    find, known = interpreter._get_np_dtype, {}

    def get_np_dtype(tt_dtype: Any) -> Any:
        key = (type(tt_dtype), tt_dtype.name)
        if key not in known:
            known[key] = find(tt_dtype)
        return known[key]

    interpreter._get_np_dtype = get_np_dtype


def _remember_block_types() -> None:
    block_type = tl.core.block_type
    make, known = block_type.__init__, {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, tuple(getattr(s, "value", s) for s in shape))
        if key not in known:
            make(self, element_ty, shape)
            known[key] = dict(vars(self))
        vars(self).update(known[key])

    block_type.__init__ = init


def _remember_shapes() -> None:
    tensor = tl.core.tensor
    make, known = tensor.__init__, {}

    def init(self: Any, handle: Any, ty: Any) -> None:
        key = tuple(ty.shape) if ty.is_block() else ()
        if key not in known:
            make(self, handle, ty)
            known[key] = (self.shape, self.numel)
        self.handle, self.type, self.dtype = handle, ty, ty.scalar
        self.shape, self.numel = known[key]

    tensor.__init__ = init


def _skip_what_changes_nothing() -> None:
    """Casts to the type a value has, broadcasts to the shape it has."""
    semantic = interpreter.interpreter_semantic
    cast, broadcast, unwrap = semantic.cast, semantic.broadcast_impl_value, tl.core._unwrap_if_constexpr
    tensor, constexpr = tl.core.tensor, tl.core.constexpr

    def cast_if_needed(value: Any, dst_ty: Any, fp_downcast_rounding: Any = None) -> Any:
        return value if value.dtype is dst_ty.scalar else cast(value, dst_ty, fp_downcast_rounding)

    def broadcast_if_needed(lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(lhs, rhs)

    def unwrap_if_constexpr(o: Any) -> Any:
        kind = type(o)
        if kind is constexpr:
            return o.value
        return o if kind is tensor or kind is int else unwrap(o)

    semantic.cast, semantic.broadcast_impl_value = cast_if_needed, broadcast_if_needed
    tl.core._unwrap_if_constexpr = unwrap_if_constexpr


def _pass_cpu_tensors_through() -> None:
    executor = interpreter.GridExecutor
    executor._init_args_hst = lambda self, args_dev, kwargs: (args_dev, kwargs)
    executor._restore_args_dev = lambda self, args_dev, args_hst, kwargs, kwargs_hst: None
