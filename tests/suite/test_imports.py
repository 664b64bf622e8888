"""Who imports whom: the rooms of the project stay apart, and no two files need each other."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("tbe_kernels", "corpus", "strategies", "oracles", "tests")
#: What the files of a folder may import, of ours; the longest folder that a file lies in decides.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "tbe_kernels": ("tbe_kernels",),
    "corpus": ("corpus",),
    "strategies": ("strategies", "corpus", "tbe_kernels.config", "tbe_kernels.knobs", "tbe_kernels.paths"),
    "oracles": ("oracles", "corpus"),
    "oracles/adapters": ("oracles", "corpus", "tbe_kernels"),
    "tests": ROOMS,
}
#: The command line of `corpus`, which looks upwards.
EXEMPT = {"corpus/__main__.py": ROOMS}
#: Speed alone: only the front of the interpreter's room may know of it, and it may go.
PACE, KNOWS_PACE = "oracles.interpreter.pace", "oracles/interpreter/__init__.py"
#: Files and folders at the top of `oracles`, and arrows between them, at the most.
MOST_ROOMS, MOST_ARROWS = 12, 24
FILES = sorted(p.relative_to(ROOT) for room in ROOMS for p in (ROOT / room).rglob("*.py"))


def module_of(file: Path) -> str:
    """The module that a file holds."""
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file) for file in FILES}


def imports(text: str) -> set[str]:
    """Every module of ours that a source text imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return {name for name in found if name.split(".")[0] in ROOMS}


def below(name: str, allowed: tuple[str, ...]) -> bool:
    """Whether a module is one of some, or lies in one."""
    return any(name == a or name.startswith(f"{a}.") for a in allowed)


def forbidden(file: Path, text: str) -> set[str]:
    """The imports that a file may not make."""
    folder = max((f for f in MAY_IMPORT if file.is_relative_to(f)), key=len)
    may, found = EXEMPT.get(str(file), MAY_IMPORT[folder]), imports(text)
    wrong = {name for name in found if not below(name, may)}
    knows = str(file) == KNOWS_PACE or file.parts[0] == "tests" or below(module_of(file), (PACE,))
    return wrong | (set() if knows else {name for name in found if below(name, (PACE,))})


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_imports_only_what_its_room_may(file: Path) -> None:
    assert forbidden(file, (ROOT / file).read_text()) == set()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tbe_kernels/x.py", "import oracles.check"),
        ("oracles/check.py", "from strategies.cases import cases"),
        ("oracles/check.py", "def f():\n    import tbe_kernels"),
        ("oracles/show/show.py", "from tbe_kernels import config"),
        ("oracles/interpreter/launch.py", "from oracles.interpreter.pace import memo"),
        ("strategies/x.py", "from tbe_kernels import module"),
        ("corpus/case.py", "from oracles import check"),
        ("corpus/shrink/reduce.py", "import tbe_kernels.config"),
    ],
)
def test_the_wall_holds(file: str, text: str) -> None:
    assert forbidden(Path(file), text)


def circle(needs: dict[str, set[str]]) -> list[str]:
    """Names that need each other in a circle; none if there is no circle."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_need_each_other() -> None:
    needs = {module_of(file): imports((ROOT / file).read_text()) - {module_of(file)} for file in FILES}
    assert circle(needs) == []


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def room_of(module: str) -> str:
    """The file or folder at the top of `oracles` that a module lies in; "" for the package itself."""
    return ".".join(module.split(".")[1:2])


def test_the_rooms_of_oracles_are_few_and_stand_on_floors() -> None:
    arrows: dict[str, set[str]] = {}
    for file in FILES:
        if file.parts[0] == "oracles":
            room = room_of(module_of(file))
            targets = {room_of(name) for name in imports((ROOT / file).read_text()) if name.startswith("oracles.")}
            arrows.setdefault(room, set()).update(targets - {room})
    del arrows[""]
    assert len(arrows) <= MOST_ROOMS
    assert sum(map(len, arrows.values())) <= MOST_ARROWS
    assert circle(arrows) == []


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_says_what_it_is_and_stays_short(file: Path) -> None:
    text = (ROOT / file).read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 400
