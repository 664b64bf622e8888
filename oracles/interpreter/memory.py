"""Every load, store, atomic and barrier of a kernel passes here: first its addresses are checked, then it happens.

Bounds: each lane that is not masked off has to lie inside the tensor argument that its pointer was made from, as the
caller's view has it: what else the view's storage holds is out of bounds. Where a pointer's argument is not known
(it went through `tl.where` or a cast), any argument of the launch will do. The check comes before the access: a far
address would kill the process.

A watcher, if there is one, is then told of the access; otherwise it is done as Triton does it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from triton.runtime import interpreter

from oracles.interpreter import launch, overflow
from oracles.interpreter.findings import GuardError
from oracles.interpreter.launch import Launch, Span, pointer_type_bytes

_smallest, _largest = np.minimum.reduce, np.maximum.reduce
#: Up to so many lanes, Python finds the smallest address faster than numpy.
FEW = 64


def install() -> None:
    """Put the builder's memory operations behind the check."""
    builder = interpreter.interpreter_builder
    _keep_spans(builder)
    _hook_loads(builder)
    _hook_stores(builder)
    _hook_atomics(builder)
    plain_barrier = builder.create_barrier

    def barrier() -> Any:
        if launch.watcher is not None:
            launch.watcher.barrier()
        return plain_barrier()

    builder.create_barrier = barrier


def _keep_spans(builder: Any) -> None:
    """What is made from a pointer points into the same argument."""

    def keeping(plain: Any, place: int) -> Any:
        def operation(*args: Any) -> Any:
            out = plain(*args)
            out.span = args[place].span
            return out

        return operation

    for name in ("addptr", "expand_dims", "broadcast", "reshape", "trans", "unsplat"):
        setattr(builder, f"create_{name}", keeping(getattr(builder, f"create_{name}"), 0))
    builder.create_splat = keeping(builder.create_splat, 1)


@functools.lru_cache(maxsize=1024)
def _all_lanes(shape: tuple[int, ...]) -> Any:
    return interpreter.TensorHandle(np.ones(shape, bool), interpreter.tl.int1)


@functools.lru_cache(maxsize=1024)
def zeros(shape: tuple[int, ...], element: Any, dtype: Any) -> Any:
    """Zeros to read, never to write."""
    return interpreter.TensorHandle(np.zeros(shape, dtype), element)


def _hook_loads(builder: Any) -> None:
    plain_load = builder.create_masked_load

    def load(ptrs: Any, *rest: Any) -> Any:
        element, shape = ptrs.get_element_ty(), ptrs.data.shape
        other = zeros(shape, element, interpreter._get_np_dtype(element))
        return masked_load(ptrs, _all_lanes(shape), other, *rest)

    def masked_load(ptrs: Any, mask: Any, *rest: Any) -> Any:
        mask = _truth(mask)
        check("load", ptrs, mask.data)
        if launch.watcher is None:
            return plain_load(ptrs, mask, *rest)
        return launch.watcher.load(ptrs, mask.data, functools.partial(plain_load, ptrs, mask, *rest))

    builder.create_load, builder.create_masked_load = load, masked_load


def _hook_stores(builder: Any) -> None:
    plain_store = builder.create_masked_store

    def store(ptrs: Any, value: Any, *rest: Any) -> Any:
        return masked_store(ptrs, value, _all_lanes(ptrs.data.shape), *rest)

    def masked_store(ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        mask = _truth(mask)
        check("store", ptrs, mask.data)
        if launch.watcher is None:
            return plain_store(ptrs, value, mask, *rest)
        return launch.watcher.store(ptrs, mask.data, lambda lanes: plain_store(ptrs, value, _lanes(lanes), *rest))

    builder.create_store, builder.create_masked_store = store, masked_store


def _hook_atomics(builder: Any) -> None:
    plain_rmw, plain_cas = builder.create_atomic_rmw, builder.create_atomic_cas
    ir = interpreter._ir
    adds = (ir.ATOMIC_OP.ADD, ir.ATOMIC_OP.FADD)

    def rmw(operation: Any, ptrs: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        mask = _truth(mask)
        check("atomic", ptrs, mask.data)
        if launch.watcher is None:
            return plain_rmw(operation, ptrs, value, mask, sem, scope)

        def some(lanes: np.ndarray) -> Any:
            return plain_rmw(operation, ptrs, value, _lanes(lanes), sem, scope)

        return launch.watcher.atomic(ptrs, mask.data, order_of(sem, scope), operation in adds, some)

    def cas(ptrs: Any, compare: Any, value: Any, sem: Any, scope: Any) -> Any:
        check("atomic", ptrs, None)
        if launch.watcher is None:
            return plain_cas(ptrs, compare, value, sem, scope)

        def all_of_them(lanes: np.ndarray) -> Any:
            return plain_cas(ptrs, compare, value, sem, scope)

        everywhere = np.ones(ptrs.data.shape, bool)
        return launch.watcher.atomic(ptrs, everywhere, order_of(sem, scope), False, all_of_them)

    builder.create_atomic_rmw, builder.create_atomic_cas = rmw, cas


def _truth(mask: Any) -> Any:
    """The mask as booleans: of a block and a scalar, Triton's `&` makes int32, which it then takes for no mask."""
    return mask if mask.data.dtype == bool else _lanes(mask.data != 0)


def _lanes(mask: np.ndarray) -> Any:
    return interpreter.TensorHandle(mask, interpreter.tl.int1)


def order_of(sem: Any, scope: Any) -> str:
    """An atomic's order, as kernels name it; "cta" where its scope is the program alone."""
    ir = interpreter._ir
    if scope == ir.MEM_SYNC_SCOPE.CTA:
        return "cta"
    names = {
        ir.MEM_SEMANTIC.RELAXED: "relaxed",
        ir.MEM_SEMANTIC.ACQUIRE: "acquire",
        ir.MEM_SEMANTIC.RELEASE: "release",
        ir.MEM_SEMANTIC.ACQUIRE_RELEASE: "acq_rel",
    }
    return names[sem]


def check(access: str, ptrs: Any, mask: np.ndarray | None) -> None:
    """Raise GuardError unless every lane in `mask` (None: all) may be accessed."""
    data = ptrs.data
    if data.size == 1:
        if mask is not None and not mask.item():
            return
        first = last = data.item()
    else:
        if mask is not None and mask is not _all_lanes(data.shape).data:
            data = data[mask]
            if not data.size:
                return
        data = data.ravel()
        if data.size <= FEW:
            addresses = data.tolist()
            first, last = min(addresses), max(addresses)
        else:
            first, last = int(_smallest(data)), int(_largest(data))
    if ptrs.wrapped is not None:
        overflow.judge(access, ptrs, mask)
    span = ptrs.span
    if span is None or first < span.begin or last >= span.end or span.inside is not None:
        _examine(access, data.ravel(), span, pointer_type_bytes(ptrs))


def _examine(access: str, addresses: np.ndarray, span: Span | None, width: int) -> None:
    """The long way, for what did not obviously lie inside."""
    now = launch.current
    if now is None:
        return
    named = [(name, Span(tensor)) for name, tensor in now.tensors()]
    allowed = [s for _, s in named] if span is None else [span]
    outside = np.ones(addresses.size, bool)
    for s in allowed:
        outside &= ~_inside(addresses, s, width)
    if outside.any():
        address = int(addresses[outside.argmax()])
        raise GuardError("bounds", _outside(access, address, int(outside.sum()), span, named, now, width))


def _inside(addresses: np.ndarray, span: Span, width: int) -> np.ndarray:
    """Which accesses of `width` bytes lie inside a span."""
    inside = (addresses >= span.begin) & (addresses + np.uint64(width) <= span.end)
    if span.inside is not None and inside.any():
        size = span.tensor.element_size()
        elements = (addresses[inside] - np.uint64(span.begin)) // np.uint64(size)
        inside[inside] = span.inside[elements.astype(np.int64)]
    return inside


def _outside(
    access: str, address: int, lanes: int, span: Span | None, named: list[tuple[str, Span]], now: Launch, width: int
) -> str:
    """Says of a bad access how far it lies from its argument, or from the nearest one."""

    def distance(s: Span) -> int:
        return max(s.begin - address, address + width - s.end, 0)

    if span is None:
        name, span = min(named, key=lambda item: distance(item[1]), default=("no tensor", Span.__new__(Span)))
    else:
        tensor = span.tensor
        name = next((n for n, s in named if s.tensor is tensor), "an argument")
    size = max(1, span.tensor.element_size())
    shape = f"{str(span.tensor.dtype).removeprefix('torch.')}{list(span.tensor.shape)}"
    if address < span.begin:
        place = f"{_elements(-((address - span.begin) // size))} before"
    elif address >= span.end:
        place = f"{_elements((address - span.end) // size + 1)} behind the end of"
    else:
        place = f"between the elements (at byte {address - span.begin}) of"
    there = [n for n, s in named if s.begin <= address < s.end and s.tensor is not span.tensor]
    also = f", inside {there[0]}" if there else ""
    return f"{access} {place} {name} {shape}{also}, {lanes} lane{'s' if lanes > 1 else ''}, in {now.describe()}"


def _elements(count: int) -> str:
    return "1 element" if count == 1 else f"{count} elements"
