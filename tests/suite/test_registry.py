"""The registry: every kernel is reachable from a row, and every row's needs can be read by the strategies."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import tbe_kernels
from tbe_kernels.config import MENUS, KernelConfig
from tbe_kernels.optimizers import OPTIMIZERS
from tbe_kernels.paths import PATHS

PACKAGE = Path(tbe_kernels.__file__).parent


def _is_jit(decorator: ast.expr) -> bool:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(node, ast.Attribute) and node.attr == "jit"


def jit_functions() -> dict[str, ast.FunctionDef]:
    """Every @triton.jit function of the package by name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
                assert node.name not in found, f"two kernels are called {node.name}"
                found[node.name] = node
    return found


def unreachable(rows: set[str], functions: dict[str, ast.FunctionDef]) -> set[str]:
    """The functions that no row's kernel calls, directly or through others."""
    reached, frontier = set(), rows
    while frontier:
        reached |= frontier
        named = {n.id for name in frontier for n in ast.walk(functions[name]) if isinstance(n, ast.Name)}
        frontier = (named & functions.keys()) - reached
    return functions.keys() - reached


def rows() -> set[str]:
    """The kernels of all rows, and the update rules, which kernels get as arguments."""
    kernels = {kernel.__name__ for path in PATHS for kernel in path.kernels}
    return kernels | {row.rule.__name__ for row in OPTIMIZERS.values()}


def test_every_kernel_is_reachable_from_a_row() -> None:
    assert unreachable(rows(), jit_functions()) == set()


def test_a_kernel_without_a_row_is_noticed() -> None:
    functions = jit_functions()
    assert unreachable(rows() - {"psw_gradient_kernel"}, functions) == {"psw_gradient_kernel"}
    steppers = {"short_run_kernel", "step_long_runs_kernel", "fused_long_runs_kernel", "step_named_rows_kernel"}
    assert "step_row" in unreachable(rows() - steppers, functions)


def test_rows_are_named_once_and_need_what_exists() -> None:
    assert len({path.name for path in PATHS}) == len(PATHS)
    for path in PATHS:
        for knob, values in path.needs.knobs.items():
            assert set(values) <= set(MENUS[knob] or ()), (path.name, knob)


def test_every_knob_has_a_menu_and_takes_its_values() -> None:
    assert MENUS.keys() == {field.name for field in dataclasses.fields(KernelConfig)}
    for knob, menu in MENUS.items():
        for value in menu or (1, 7):
            assert getattr(KernelConfig.for_target("cuda", {knob: value}), knob) == value
