"""Which kernels the registry reaches: every @triton.jit function of the package has to be called from some row."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

from tbe_kernels.optimizers import OPTIMIZERS
from tbe_kernels.paths import PATHS

PACKAGE = Path(__file__).parents[1]


def jit_files(package: Path = PACKAGE) -> dict[Path, list[ast.FunctionDef]]:
    """The @triton.jit functions of each file that has some."""
    found: dict[Path, list[ast.FunctionDef]] = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
                found.setdefault(path, []).append(node)
    return found


def jit_functions() -> dict[str, ast.FunctionDef]:
    """Every @triton.jit function of the package by name. Raises ValueError if two have the same."""
    found: dict[str, ast.FunctionDef] = {}
    for node in itertools.chain.from_iterable(jit_files().values()):
        if node.name in found:
            raise ValueError(f"two kernels are called {node.name}")
        found[node.name] = node
    return found


def kernels() -> dict[str, Any]:
    """The kernels that rows name, by name, in the order of the registry."""
    return {kernel.__name__: kernel for path in PATHS for kernel in path.kernels}


def rows() -> set[str]:
    """The kernels of all rows, and the update rules, which kernels get as arguments."""
    return kernels().keys() | {row.rule.__name__ for row in OPTIMIZERS.values()}


def unreachable(rows: set[str], functions: dict[str, ast.FunctionDef]) -> set[str]:
    """The functions that no row's kernel calls, directly or through others."""
    reached: set[str] = set()
    frontier = rows
    while frontier:
        reached |= frontier
        named = {n.id for name in frontier for n in ast.walk(functions[name]) if isinstance(n, ast.Name)}
        frontier = (named & functions.keys()) - reached
    return functions.keys() - reached


def _is_jit(decorator: ast.expr) -> bool:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(node, ast.Attribute) and node.attr == "jit"
