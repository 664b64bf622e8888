"""Plants one fault in a fresh copy of `tbe_kernels`. The package's own files stay as they are."""

from __future__ import annotations

import importlib
import itertools
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

import tbe_kernels

SOURCE = Path(tbe_kernels.__file__).parent
_numbers = itertools.count(1)


class PlantError(Exception):
    """The fault could not be planted: its text is not there, or not once. Never a caught fault."""


class Change(Protocol):
    """Something that changes the text of one file. Raises PlantError if it does not fit the text."""

    @property
    def file(self) -> str:
        """Which, from the package's folder."""

    def apply(self, text: str) -> str:
        """The text with the change made."""


@dataclass(frozen=True)
class Edit:
    """In `file`, `old`, which is there once, becomes `new`."""

    file: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise PlantError(
                f"{self.file}: expected this text once, found it {text.count(self.old)} times:\n{self.old}"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Splice:
    """In `file`, `old`, which stands at character `begin`, becomes `new`."""

    file: str
    begin: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        end = self.begin + len(self.old)
        if text[self.begin : end] != self.old:
            raise PlantError(f"{self.file}: expected this text at {self.begin}:\n{self.old}")
        return text[: self.begin] + self.new + text[end:]


def plant(*edits: Change) -> ModuleType:
    """A fresh, imported copy of the package with the edits made."""
    directory = Path(tempfile.mkdtemp(prefix="planted-"))
    name = f"planted_{next(_numbers)}"
    copy_with(edits, directory, name)
    sys.path.insert(0, str(directory))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(directory))


def copy_with(edits: tuple[Change, ...], directory: Path, name: str) -> None:
    """Write the package `name` below `directory`: `tbe_kernels` with each edit made."""
    texts = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    for edit in edits:
        texts[edit.file] = edit.apply(texts.get(edit.file, ""))
    for file, text in texts.items():
        target = directory / name / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("tbe_kernels", name))
