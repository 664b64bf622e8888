"""Plants one fault in a fresh copy of `tbe_kernels`. The package's own files stay as they are."""

from __future__ import annotations

import importlib
import itertools
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import tbe_kernels

SOURCE = Path(tbe_kernels.__file__).parent
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Edit:
    """In `file`, `old`, which is there once, becomes `new`."""

    file: str
    old: str
    new: str


class PlantError(Exception):
    """The fault could not be planted: its text is not there, or not once. Never a caught fault."""


def plant(*edits: Edit) -> ModuleType:
    """A fresh, imported copy of the package with the edits made."""
    directory = Path(tempfile.mkdtemp(prefix="planted-"))
    name = f"planted_{next(_numbers)}"
    copy_with(edits, directory, name)
    sys.path.insert(0, str(directory))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(directory))


def copy_with(edits: tuple[Edit, ...], directory: Path, name: str) -> None:
    """Write the package `name` below `directory`: `tbe_kernels` with each edit made."""
    texts = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    for edit in edits:
        text = texts.get(edit.file, "")
        if text.count(edit.old) != 1:
            raise PlantError(
                f"{edit.file}: expected this text once, found it {text.count(edit.old)} times:\n{edit.old}"
            )
        texts[edit.file] = text.replace(edit.old, edit.new)
    for file, text in texts.items():
        target = directory / name / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("tbe_kernels", name))
