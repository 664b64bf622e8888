"""Which line follows which while kernels are interpreted: what branch coverage is made of.

The interpreter reads a kernel's source again and compiles that, so calls that note lines are put between the kernel's
statements there, once for each kernel. A tracer, which sees every call that the interpreter makes, costs three times
the time of a run; this costs nothing that can be measured. Each call of a kernel or device function remembers its own
last line, so programs that take turns (`turns`) do not mix theirs.

An arc (a, b) says that line b ran right after line a of one call. As in coverage.py, a call comes from and goes to -f,
where f is the line of the first decorator, and a statement of several lines is its first.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from triton.runtime import interpreter

Arcs = set[tuple[int, int]]
_NOTE, _ENTER = "_note_line", "_enter_kernel"
_roots: set[str] = set()
_arcs: dict[str, Arcs] = {}


def install(root: Path) -> None:
    """Note the lines of kernels whose files are below `root`. Raises RuntimeError if one of them has run already."""
    _hook()
    below = [fn for fn in interpreter.InterpretedFunction.rewritten_fn if _is_below(fn, f"{root}/")]
    early = [fn.__name__ for fn in below if fn.__code__.co_filename not in _arcs]
    if early:
        raise RuntimeError(f"{', '.join(sorted(early))} ran before lines were noted")
    _roots.add(f"{root}/")


def noted(root: Path) -> dict[str, Arcs]:
    """What has been noted so far below `root`, by file."""
    return {file: arcs for file, arcs in _arcs.items() if file.startswith(f"{root}/")}


def _is_below(fn: Any, *roots: str) -> bool:
    return fn.__code__.co_filename.startswith(roots)


@functools.cache
def _hook() -> None:
    """Have the interpreter's rewriter, which runs once for each kernel, put the calls in."""
    rewriter, operation = interpreter.FunctionRewriter, interpreter.ReduceScanOpInterface
    transform, init = rewriter._transform_ast, operation.__init__

    def with_notes(self: Any, source: str) -> Any:
        tree = transform(self, source)
        if _is_below(self.fn, *_roots):
            file, first = self.fn.__code__.co_filename, self.fn.__code__.co_firstlineno
            _arcs.setdefault(file, set())
            self.fn.__globals__[_ENTER] = _enter
            for function in tree.body:
                _put_notes_into(function, file, first)
        return tree

    def with_rewritten(self: Any, axis: Any, combine: Any) -> None:
        init(self, axis, combine)
        if _is_below(combine.fn, *_roots):  # scans call a kernel's `fn` as Python has compiled it
            self.combine_fn = SimpleNamespace(fn=combine.rewrite())

    rewriter._transform_ast, operation.__init__ = with_notes, with_rewritten


def _enter(file: str, first: int) -> Callable[[int], None]:
    """Called at the beginning of a function; gives what is called with each of its lines."""
    arcs, last = _arcs[file], -first

    def note(line: int) -> None:
        nonlocal last
        if line != last:
            arcs.add((last, line))
            last = line

    return note


def _put_notes_into(function: ast.FunctionDef, file: str, first: int) -> None:
    begin = 0 if ast.get_docstring(function) is None else 1
    line = function.body[begin].lineno
    enter = _statement(f"{_NOTE} = {_ENTER}({file!r}, {first})", line)
    end = _statement(f"{_NOTE}({-first})", function.body[-1].lineno)
    function.body[begin:] = [enter, *_with_notes(function.body[begin:]), end]


def _with_notes(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements with a note before each; a loop is noted again whenever it looks whether to go on."""
    out: list[ast.stmt] = []
    for statement in body:
        note = _statement(f"{_NOTE}({statement.lineno})", statement.lineno)
        if isinstance(statement, ast.If | ast.For | ast.While):
            again = [] if isinstance(statement, ast.If) else [note]
            statement.body = again + _with_notes(statement.body)
            statement.orelse = again + _with_notes(statement.orelse)
        elif hasattr(statement, "body"):
            raise NotImplementedError(f"{type(statement).__name__} in a kernel, line {statement.lineno}")
        out += [note, statement]
    return out


def _statement(text: str, line: int) -> ast.stmt:
    (statement,) = ast.parse(text).body
    return ast.increment_lineno(statement, line - 1)
