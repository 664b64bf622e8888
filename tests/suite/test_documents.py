"""The documents: short enough to be read, and every path and command that they name is there."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRONT_DOOR = ROOT / "README.md"
ROOMS = ("tbe_kernels", "strategies", "oracles", "corpus", "tests/mutants")
DOCUMENTS = [FRONT_DOOR, ROOT / "CONTRIBUTING.md", *(ROOT / room / "README.md" for room in ROOMS)]
#: Words of the front door, all counted; of a room's README, tables and blocks of code apart.
MOST_AT_THE_DOOR, MOST_IN_A_ROOM = 1000, 600
#: What users write themselves stands in examples by these names.
THEIRS = ("my_package", "package")
SUFFIXES = "py|json|md|toml"


def prose(text: str) -> str:
    """What is left of Markdown without its tables and blocks of code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def absent(text: str, folder: Path) -> set[str]:
    """The files, folders in backquotes, links and `python -m` modules that a document names and that are not there."""
    own = text.replace("corpus/inbox/b79b36ca2821.json", "")  # of a failure that is shown
    wrong = {
        f for f in re.findall(rf"\b(?:\w+/)+[\w-]+\.(?:{SUFFIXES})\b", prose_links_apart(own)) if not _is(ROOT / f)
    }
    wrong |= {f for f in re.findall(r"`((?:[\w.]+/)+)`", own) if not _is(ROOT / f)}
    wrong |= {f for f in re.findall(r"\]\(([^):#]+)\)", own) if not _is(folder / f)}
    return wrong | {m for m in re.findall(r"python -m ([\w.]+)", own) if not _runs(m)}


def prose_links_apart(text: str) -> str:
    """The text without the targets of its links, which are counted from the document's own folder."""
    return re.sub(r"\]\([^)]*\)", "]", text)


def _is(path: Path) -> bool:
    return path.exists()


def _runs(module: str) -> bool:
    if module.split(".")[0] in THEIRS:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_what_a_document_names_is_there(document: Path) -> None:
    assert absent(document.read_text(), document.parent) == set()


def test_the_documents_are_short() -> None:
    assert len(FRONT_DOOR.read_text().split()) <= MOST_AT_THE_DOOR
    words = {room: len(prose((ROOT / room / "README.md").read_text()).split()) for room in ROOMS}
    assert {room: n for room, n in words.items() if n > MOST_IN_A_ROOM} == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("see `oracles/judge.py`", "oracles/judge.py"),
        ("see oracles/values/judge.py and tests/suite/test_nothing.py", "tests/suite/test_nothing.py"),
        ("`tests/corpus/` holds", "tests/corpus/"),
        ("[the room](oracle/README.md)", "oracle/README.md"),
        ("```\npython -m tests.mutation --only x\n```", "tests.mutation"),
        ("```\npython -m corpora replay\n```", "corpora"),
    ],
)
def test_what_is_not_there_is_seen(text: str, wrong: str) -> None:
    assert absent(text, ROOT) == {wrong}


def test_prose_is_counted_and_nothing_else() -> None:
    assert prose("one\n```\ntwo\n```\n| three |\nfour").split() == ["one", "four"]
    assert len(prose("word " * (MOST_IN_A_ROOM + 1)).split()) > MOST_IN_A_ROOM


def test_every_readme_is_known() -> None:
    found = {
        path
        for room in ("tbe_kernels", "strategies", "oracles", "corpus", "tests")
        for path in (ROOT / room).rglob("*.md")
    }
    assert found <= set(DOCUMENTS)


def untold(text: str) -> set[str]:
    """The kernels of a file that do not say what their grid is, or which program owns what it writes."""
    kernels = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name.endswith("_kernel")]
    told = {kernel.name: ast.get_docstring(kernel) or "" for kernel in kernels}
    return {name for name, doc in told.items() if "Grid: " not in doc or not re.search(r"\bowns?\b", doc)}


def test_every_kernel_says_its_grid_and_who_owns_what() -> None:
    files = [file for stage in ("forward", "backward") for file in (ROOT / "tbe_kernels" / stage).glob("*.py")]
    assert {name for file in files for name in untold(file.read_text())} == set()


def test_a_kernel_that_does_not_say_is_seen() -> None:
    text = (ROOT / "tbe_kernels/backward/short_run.py").read_text()
    assert untold(text.replace("Grid: 1-D", "1-D")) == {"short_run_kernel"}
    assert untold(text.replace("owns the", "has the")) == {"short_run_kernel"}
