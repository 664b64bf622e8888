"""The one scope in which Triton's interpreter is patched: what its namespaces held before is what they hold after.

Patches are many and small, and each is made where its reason stands. None of them is undone one by one: the namespaces
that they go to are remembered before the first and put back after the last.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from triton.runtime import interpreter

#: Of a namespace, name by name, what it held.
Held = list[tuple[Any, dict[str, Any]]]
#: What a class has of its own accord, and nobody sets.
_OWN = frozenset(("__dict__", "__weakref__", "__module__", "__doc__"))


def namespaces() -> Iterator[Any]:
    """Triton's interpreter and language: modules, their classes, and the two objects that kernels are run by."""
    language = [m for name, m in sys.modules.items() if name.split(".")[:2] == ["triton", "language"]]
    for module in (interpreter, *language):
        yield module
        yield from _classes(module)
    yield from (interpreter.interpreter_builder, interpreter.interpreter_semantic)


def _classes(module: ModuleType) -> Iterator[type]:
    for value in list(vars(module).values()):
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield value


def remember() -> Held:
    """What every namespace holds now."""
    return [(holder, dict(vars(holder))) for holder in namespaces()]


def put_back(held: Held) -> None:
    """Make every namespace hold that again."""
    for holder, before in held:
        for name in changed(holder, before):
            if name in before:
                setattr(holder, name, before[name])
            else:
                delattr(holder, name)


def changed(holder: Any, before: dict[str, Any]) -> list[str]:
    """The names under which a namespace holds something else than before.

    What has been added to a module is Triton's: it gives each module whose functions it rewrites what they call.
    """
    missing, now = object(), dict(vars(holder))
    names = before.keys() if isinstance(holder, ModuleType) else now.keys() | before.keys()
    return [n for n in names if n not in _OWN and now.get(n, missing) is not before.get(n, missing)]
