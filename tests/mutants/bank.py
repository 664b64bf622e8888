"""The bank: every planted fault, and mutants that operators make of the kernels and of the host's planning.

Of an operator that finds many places a sample is taken, by a hash of what is changed and where, so that it stays the
same where the code does.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tbe_kernels.optimizers import OPTIMIZERS
from tbe_kernels.paths import PATHS
from tests.mutants import FAULTS
from tests.mutants.fault import Fault
from tests.mutants.guarded import BOUNDS, COUNTDOWN, HINTS, OVERFLOW, RACES, VALUES
from tests.mutants.operators import IN_KERNELS, ON_THE_HOST, Operator
from tests.mutants.plant import SOURCE, Change, Splice

BY_HAND = "by hand"
#: So many of an operator's places in kernels, and on the host.
MOST_IN_KERNELS, MOST_ON_THE_HOST = 9, 5
#: Where the host plans; other files hold arguments, options and what is told to users.
PLANNING = ("backward/", "forward/", "batch.py", "functional.py")
#: Whose cases look for a fault of a function that no row's kernel calls.
ANY_PATH = ("backward.plan", "forward.pooled", "backward.long_run.ordered")
MOST_PATHS = 3
#: Which cases run a file's kernels; two in three are rounded stochastically.
AIMS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "rounding.py": {"weights_dtype": ("float16", "bfloat16"), "stochastic_rounding": (True, True, False)}
}


@dataclass(frozen=True)
class Mutant:
    """A changed copy of the kernels. `paths`: whose strategies look for it, aimed at `optimizers` and `case`.

    `operator`: what made it, or `BY_HAND`. `function`: the one that is changed, "" where nobody says.
    """

    id: str
    operator: str
    edits: tuple[Change, ...]
    paths: tuple[str, ...]
    function: str = ""
    optimizers: tuple[str, ...] = ()
    case: Mapping[str, tuple[Any, ...]] = field(default_factory=dict, hash=False)

    @property
    def file(self) -> str:
        return self.edits[0].file


def bank() -> list[Mutant]:
    """Every mutant, in a fixed order."""
    planted = (*FAULTS, *BOUNDS, *HINTS, OVERFLOW, *RACES, *COUNTDOWN, *VALUES)
    return [
        *map(_by_hand, planted),
        *_sampled(_in_kernels(), MOST_IN_KERNELS),
        *_sampled(_on_the_host(), MOST_ON_THE_HOST),
    ]


def _by_hand(fault: Fault) -> Mutant:
    return Mutant(fault.name, BY_HAND, fault.edits, (fault.path,), "", fault.optimizers, fault.case)


def _sampled(mutants: Iterator[Mutant], most: int) -> list[Mutant]:
    of_operator: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        of_operator.setdefault(mutant.operator, []).append(mutant)
    chosen = []
    for some in of_operator.values():
        chosen += sorted(some, key=lambda m: hashlib.sha256(m.id.encode()).digest())[:most]
    return chosen


def _in_kernels() -> Iterator[Mutant]:
    reach = Reach()
    for file, function in functions(jit=True):
        paths, optimizers = reach.of(file, function.name)
        yield from _mutants(file, function, IN_KERNELS, paths, optimizers, AIMS.get(file, {}))


def _on_the_host() -> Iterator[Mutant]:
    for file, function in functions(jit=False):
        if file.startswith(PLANNING):
            module = "tbe_kernels." + file.removesuffix(".py").replace("/", ".")
            paths = [p.name for p in PATHS if any(k.fn.__module__ == module for k in p.kernels)]
            yield from _mutants(file, function, ON_THE_HOST, tuple(paths[:MOST_PATHS]) or ANY_PATH, (), {})


def functions(jit: bool) -> Iterator[tuple[str, ast.FunctionDef]]:
    """(file, function) of every function of the package that is, or is not, compiled for a GPU."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                is_jit = any("triton.jit" in ast.unparse(d) for d in node.decorator_list)
                if is_jit == jit:
                    yield str(path.relative_to(SOURCE)), node


def _mutants(
    file: str,
    function: ast.FunctionDef,
    operators: tuple[Operator, ...],
    paths: tuple[str, ...],
    optimizers: tuple[str, ...],
    case: Mapping[str, tuple[Any, ...]],
) -> Iterator[Mutant]:
    text = (SOURCE / file).read_text()
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    assert text.isascii(), file  # columns of a syntax tree are bytes
    seen: dict[str, int] = {}
    for node in _nodes(function):
        begin = lines[node.lineno - 1] + node.col_offset
        old = text[begin : lines[node.end_lineno - 1] + node.end_col_offset]
        for operator in operators:
            for change in operator(node):
                new = _source(change, node)
                name = f"{file.removesuffix('.py')}.{function.name}: {_short(old)} -> {_short(new)}"
                seen[name] = seen.get(name, 0) + 1
                name += f" #{seen[name]}" if seen[name] > 1 else ""
                edits = (Splice(file, begin, old, new),)
                yield Mutant(name, operator.__name__, edits, paths, function.name, optimizers, case)


def _nodes(function: ast.FunctionDef) -> Iterator[Any]:
    """What may be changed: the body without its docstring, without types, and without what only refuses arguments."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    frontier: list[ast.AST] = list(reversed(body))
    while frontier:
        node = frontier.pop()
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)):
            continue
        if hasattr(node, "lineno"):
            yield node
        inside = [node.target, node.value] if isinstance(node, ast.AnnAssign) else ast.iter_child_nodes(node)
        frontier += reversed([child for child in inside if child is not None])


def _source(change: ast.AST, node: ast.AST) -> str:
    """The text of a change; an `if` keeps what stands below it where it is."""
    text = ast.unparse(ast.fix_missing_locations(change))
    if isinstance(node, ast.If):
        return text.replace("\n", "\n" + " " * node.col_offset)
    return f"({text})" if isinstance(node, ast.expr) and not isinstance(change, (ast.Name, ast.Attribute)) else text


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 70 else f"{flat[:60]}...{hashlib.sha256(flat.encode()).hexdigest()[:6]}"


class Reach:
    """Which rows of the registry, and which optimizers, run a device function."""

    def __init__(self) -> None:
        self.files = {function.name: file for file, function in functions(jit=True)}
        self.calls = {
            function.name: {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
            for _, function in functions(jit=True)
        }

    def of(self, file: str, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(paths, optimizers); no optimizers where any will do. Kernels of the function's own file come first."""
        optimizers = tuple(o.name for o, row in OPTIMIZERS.items() if name in self._below({row.rule.__name__}))
        target = "step_row" if optimizers and name not in self._below({"step_row"}) else name
        paths = [p for p in PATHS if target in self._below({k.__name__ for k in p.kernels})]
        paths.sort(key=lambda p: all(self.files[k.__name__] != file for k in p.kernels))
        return tuple(p.name for p in paths[:MOST_PATHS]), optimizers if target != name else ()

    def of_file(self, file: str) -> set[str]:
        """Every path that runs a device function of a file; of a file without any, every path."""
        here = {name for name, place in self.files.items() if place == file}
        steps = here & self._below({row.rule.__name__ for row in OPTIMIZERS.values()})
        here |= {"step_row"} if steps else set()
        return {p.name for p in PATHS if not here or here & self._below({k.__name__ for k in p.kernels})}

    def _below(self, names: set[str]) -> set[str]:
        reached: set[str] = set()
        while names:
            reached |= names
            names = set().union(*(self.calls[n] for n in names)) & self.calls.keys() - reached
        return reached
