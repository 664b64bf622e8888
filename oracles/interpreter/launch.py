"""A launch: which kernel runs, which program of it, and what memory its arguments are.

Replaces what Triton's `GridExecutor` does at a launch. Arguments are CPU tensors, so nothing is copied to a host and
back; each pointer remembers the argument it was made from; and a watcher (`races`, `schedules`) may run the programs in
its own way. What a guard raises inside a kernel comes out as it is.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import triton
from triton.runtime import interpreter

from oracles.interpreter.findings import guard_error

#: Views with gaps are known element by element up to so many bytes; beyond, by their first and last.
MOST_MAPPED = 2**24
#: Files of this room that hold kernels.
_KERNELS = ("controls.py", "countdown.py")
_ROOM, _TRITON = str(Path(__file__).parent), str(Path(triton.__file__).parent)


class Span:
    """The memory of one tensor argument: bytes from `begin` to `end`; `inside`: which of its elements, if not all."""

    __slots__ = ("begin", "end", "inside", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.begin = self.end = tensor.data_ptr()
        self.inside: np.ndarray | None = None
        elements = tensor.numel()
        if elements and not tensor.is_contiguous():
            kept = [(n, s) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s]
            distinct = int(np.prod([n for n, _ in kept]))
            elements = 1 + sum((n - 1) * s for n, s in kept)
            if distinct != elements and elements * tensor.element_size() <= MOST_MAPPED:
                self.inside = np.zeros(elements, bool)
                # A view of the view, in numpy: whatever watches torch's allocations need not see it.
                shape, strides = [n for n, _ in kept], [s for _, s in kept]
                np.lib.stride_tricks.as_strided(self.inside, shape, strides)[...] = True
        self.end += elements * tensor.element_size()


class Launch:
    """One launch in progress. `arguments`: by parameter, as the caller gave them."""

    def __init__(self, kernel: Any, arguments: dict[str, Any], grid: tuple[int, ...]) -> None:
        self.kernel, self.arguments, self.grid = kernel, arguments, grid

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor argument by its name in the kernel, such as `lookups.places.output`."""
        for name, argument in self.arguments.items():
            yield from _tensors(name, argument)

    def describe(self) -> str:
        """The kernel, the program that runs now and its line."""
        file, line = kernel_line()
        return f"{self.kernel.__name__}, program {interpreter.interpreter_builder.grid_idx}, {file}:{line}"


def _tensors(name: str, argument: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(argument, tuple):
        fields = getattr(argument, "_fields", range(len(argument)))
        for field, item in zip(fields, argument, strict=True):
            yield from _tensors(f"{name}.{field}" if isinstance(field, str) else f"{name}[{field}]", item)
    elif hasattr(argument, "data_ptr"):
        yield name, argument
    elif hasattr(argument, "base"):  # a tensor descriptor, or a wrapped tensor
        yield from _tensors(name, argument.base)


def kernel_line() -> tuple[str, int]:
    """File and line of the kernel, or of the device function, that is being interpreted."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        hooks = file.startswith(_ROOM) and not file.endswith(_KERNELS)
        if not hooks and not file.startswith(_TRITON):
            return "/".join(Path(file).parts[-2:]), frame.f_lineno
        frame = frame.f_back
    return "?", 0


class Watcher(Protocol):
    """Sees, and may change, what the programs of a launch do. `mask`: the lanes of an access, in its shape.

    `plain()` loads them as would be done without a watcher; `plain(lanes)` stores to, or updates, some of them.
    """

    def run(self, launch: Launch, programs: list[Callable[[], None]]) -> None:
        """Run every program of a launch."""

    def load(self, ptrs: Any, mask: np.ndarray, plain: Callable[[], Any]) -> Any:
        """A load."""

    def store(self, ptrs: Any, mask: np.ndarray, plain: Callable[[np.ndarray], Any]) -> Any:
        """A plain store."""

    def atomic(self, ptrs: Any, mask: np.ndarray, sem: str, add: bool, plain: Callable[[np.ndarray], Any]) -> Any:
        """An atomic; `sem` as in Triton, or "cta" where other programs need not see it; `add`: nothing but adds."""

    def barrier(self) -> None:
        """`tl.debug_barrier()`."""


#: The launch in progress, and who watches launches.
current: Launch | None = None
watcher: Watcher | None = None
#: Whether the access in progress is a scalar's; known while a watcher is there.
scalar = False
#: Called at the end of each launch.
at_end: list[Callable[[], None]] = []


class Twin(Protocol):
    """A launch that may have been made before, bit for bit."""

    def repeat(self) -> bool:
        """Write what it left then; False if there was no such launch, or nobody remembers."""

    def note(self) -> None:
        """Remember what it has left now."""


#: Looks for a launch's twin; None where nothing is remembered (`pace.memo`).
twin_of: Callable[[Launch], Twin | None] | None = None


def install() -> None:
    """Run launches here from now on."""
    interpreter.TensorHandle.span = None  # of a pointer: the Span of its argument, where that is known
    interpreter.GridExecutor.__call__ = run


@contextmanager
def watched_by(watch: Watcher) -> Iterator[None]:
    """Have `watch` run the launches inside the block. Raises RuntimeError inside another such block."""
    global watcher
    if watcher is not None:
        raise RuntimeError("a launch has one watcher at a time")
    semantic = interpreter.interpreter_semantic
    before = {name: getattr(semantic, name) for name in ("load", "store")}

    def noting(plain: Any) -> Any:
        def operation(ptr: Any, *rest: Any) -> Any:
            global scalar
            scalar = not ptr.type.is_block()  # the builder cannot tell a scalar from a block of one
            return plain(ptr, *rest)

        return operation

    for name, plain in before.items():
        setattr(semantic, name, noting(plain))
    watcher = watch
    try:
        yield
    finally:
        watcher = None
        for name, plain in before.items():
            setattr(semantic, name, plain)


@functools.lru_cache(maxsize=256)
def _signature(fn: Any) -> inspect.Signature:
    return inspect.signature(fn)


def _convert(argument: Any) -> Any:
    """A kernel's argument as the interpreter takes it, its pointers with their spans."""
    if isinstance(argument, tuple):
        items = map(_convert, argument)
        return type(argument)(*items) if hasattr(argument, "_fields") else type(argument)(items)
    converted = interpreter._implicit_cvt(argument)
    if isinstance(argument, torch.Tensor):
        converted.handle.span = Span(argument)
    return converted


def run(executor: Any, *args: Any, **kwargs: Any) -> None:
    """What `GridExecutor.__call__` does."""
    global current
    fn, builder = executor.fn, interpreter.interpreter_builder
    signature = _signature(fn)
    kwargs = {name: value for name, value in kwargs.items() if name in signature.parameters}  # without num_warps
    for hook in executor.pre_run_hooks:
        hook(*args, **kwargs)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    scope = interpreter._patch_lang(fn)
    before = current
    try:
        grid = executor.grid(given) if callable(executor.grid) else executor.grid
        grid = (*grid, 1, 1, 1)[:3]
        current = Launch(fn, given, grid)
        twin = twin_of(current) if twin_of is not None and watcher is None else None
        if twin is not None and twin.repeat():
            return
        arguments = {n: value if n in executor.constexprs else _convert(value) for n, value in given.items()}
        builder.set_grid_dim(*grid)
        places = [(x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])]
        try:
            if watcher is None:
                for place in places:
                    builder.grid_idx = place
                    fn(**arguments)
            else:
                watcher.run(current, [functools.partial(_program, fn, arguments, place) for place in places])
        except Exception as error:
            found = guard_error(error)
            if found is not None:
                raise found from None
            if triton.knobs.compilation.front_end_debugging:
                raise
            raise interpreter.InterpreterError(repr(error)) from error
        if twin is not None:
            twin.note()
    finally:
        current = before
        scope.restore()
        for act in at_end:
            act()


def _program(fn: Any, arguments: dict[str, Any], place: tuple[int, int, int]) -> None:
    interpreter.interpreter_builder.grid_idx = place
    fn(**arguments)


def pointer_type_bytes(ptrs: Any) -> int:
    """Bytes of what a pointer points to."""
    bits = ptrs.get_element_ty().primitive_bitwidth
    return max(1, bits // 8)
