"""Who imports whom: the rooms of the project stay apart."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What users call: may import everything.
FACES = ("corpus/__main__.py", "corpus/replay.py", "corpus/routes.py", "corpus/distill.py")
ROOMS = ("tbe_kernels", "corpus", "strategies", "oracles", "tests")


def allowed(file: Path) -> set[str]:
    """The modules of ours, or beginnings of their names, that a file may import."""
    room = file.parts[0]
    if room == "tests" or str(file) in FACES:
        return set(ROOMS)
    return {
        "tbe_kernels": {"tbe_kernels"},
        "corpus": {"corpus"},
        "strategies": {"strategies", "corpus.case", "tbe_kernels.config", "tbe_kernels.paths"},
        # Only the adapter of the kernels knows them.
        "oracles": {"oracles", "corpus"} | ({"tbe_kernels"} if file.name == "kernels.py" else set()),
    }[room]


def imports(text: str) -> set[str]:
    """Every module that a source text imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def forbidden(file: Path, text: str) -> set[str]:
    """The imports that a file may not make."""
    may = allowed(file)
    ours = {name for name in imports(text) if name.split(".")[0] in ROOMS}
    return {name for name in ours if not any(name == m or name.startswith(f"{m}.") for m in may)}


FILES = sorted(p.relative_to(ROOT) for room in ROOMS for p in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_imports_only_what_its_room_may(file: Path) -> None:
    assert forbidden(file, (ROOT / file).read_text()) == set()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tbe_kernels/x.py", "import oracles.check"),
        ("oracles/check.py", "from strategies.cases import cases"),
        ("oracles/check.py", "def f():\n    import tbe_kernels"),
        ("strategies/x.py", "from tbe_kernels import module"),
        ("corpus/case.py", "from oracles import check"),
    ],
)
def test_the_wall_holds(file: str, text: str) -> None:
    assert forbidden(Path(file), text)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_says_what_it_is_and_stays_short(file: Path) -> None:
    text = (ROOT / file).read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 400
