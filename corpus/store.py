"""Cases on disk: readable JSON, one case a file, checked when loaded.

`corpus/cases/` holds the cases that every replay runs; `corpus/inbox/` takes new failures until somebody has looked at
them. A file holds the format's number, a note that says what the case guards, and the case itself without the fields
that have their default.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.case import Case, CaseError

FORMAT = 1
ROOT = Path(__file__).parent
CASES = ROOT / "cases"
INBOX = ROOT / "inbox"


@dataclass(frozen=True)
class StoredCase:
    """A case, what it is kept for, and where it lies."""

    case: Case
    note: str
    path: Path

    @property
    def id(self) -> str:
        """The file's name without its ending."""
        return self.path.stem


def case_id(case: Case) -> str:
    """A short name that depends on nothing but the case."""
    return hashlib.sha256(_canonical(case).encode()).hexdigest()[:12]


def save(case: Case, note: str, directory: Path = INBOX, name: str | None = None) -> Path:
    """Write a case; the file is complete or absent, never half written."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name or case_id(case)}.json"
    scratch = path.with_suffix(".tmp")
    scratch.write_text(to_json(case, note))
    scratch.replace(path)
    return path


def load(path: Path) -> StoredCase:
    """Read a case. Raises CaseError, naming the file, if it holds none or comes from a newer format."""
    try:
        case, note = from_json(path.read_text())
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}") from error
    except (CaseError, UnicodeDecodeError) as error:
        raise CaseError(f"{path}: {error}") from error
    return StoredCase(case, note, path)


def find(wanted: str) -> list[Path]:
    """The files that a PATH (file or folder) or an ID (or the beginning of one) names. Raises CaseError for none."""
    path = Path(wanted)
    if path.is_dir():
        return sorted(path.glob("*.json"))
    if path.exists() or path.suffix == ".json":
        return [path]
    found = sorted(p for folder in (CASES, INBOX) for p in folder.glob(f"{wanted}*.json"))
    if not found:
        raise CaseError(f"{wanted}: neither a file nor the beginning of a case's name in {CASES} or {INBOX}")
    return found


def to_json(case: Case, note: str) -> str:
    """Readable JSON: a line for each field, one for each feature's bags."""
    fields = _plain(case)
    batches = fields.pop("batches")
    lines = [f'  "format": {FORMAT}', f'  "note": {json.dumps(note)}']
    lines += [f'  "{name}": {json.dumps(value)}' for name, value in fields.items()]
    lines.append('  "batches": [\n' + ",\n".join(_batch_json(b) for b in batches) + "\n  ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _batch_json(batch: dict[str, Any]) -> str:
    features = ",\n".join(f"      {json.dumps(f)}" for f in batch.pop("features", []))
    rest = "".join(f', "{name}": {json.dumps(value)}' for name, value in batch.items())
    return f'    {{"features": [\n{features}\n    ]{rest}}}'


def from_json(text: str) -> tuple[Case, str]:
    """The case and its note. Raises CaseError with the place of what is wrong."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise CaseError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise CaseError(f"expected an object, got {type(data).__name__}")
    version = data.pop("format", None)
    if version != FORMAT:
        hint = "; a newer checkout can read it" if isinstance(version, int) and version > FORMAT else ""
        raise CaseError(f"format: expected {FORMAT}, got {version!r}{hint}")
    note = data.pop("note", "")
    return _build(Case, data, "case"), str(note)


def _canonical(case: Case) -> str:
    return json.dumps(_plain(case), sort_keys=True)


def _plain(value: Any) -> Any:
    """Dataclasses as objects without their defaults, tuples as lists."""
    if dataclasses.is_dataclass(value):
        out = {}
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
            if item != default:
                out[f.name] = _plain(item)
        return out
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def _build(kind: type, data: object, where: str) -> Any:
    """A dataclass of the case format from a JSON object, every field checked."""
    if not isinstance(data, dict):
        raise CaseError(f"{where}: expected an object, got {type(data).__name__}")
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}
    for name in data:
        if name not in known:
            raise CaseError(f"{where}: there is no field {name!r}")
    for name, f in known.items():
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise CaseError(f"{where}: the field {name!r} is missing")
    return kind(**{name: _read(hints[name], value, f"{where}.{name}") for name, value in data.items()})


def _read(hint: Any, data: Any, where: str) -> Any:
    """`data` as the annotated type `hint`: tuples from lists, dataclasses from objects, everything else as it is."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _build(hint, data, where)
    if origin in (typing.Union, types.UnionType):
        return _read_union(args, data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise CaseError(f"{where}: expected a list, got {data!r}")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_read(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
        if len(data) != len(args):
            raise CaseError(f"{where}: expected {len(args)} entries, got {data!r}")
        return tuple(_read(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(args, data, strict=True)))
    if origin is Mapping:
        if not isinstance(data, dict):
            raise CaseError(f"{where}: expected an object, got {data!r}")
        return data
    return _read_scalar(hint, data, where)


def _read_union(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    problems: list[CaseError] = []
    for kind in kinds:
        try:
            return _read(kind, data, where)
        except CaseError as problem:
            problems.append(problem)
    raise problems[-1]


def _read_scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is type(None) and data is None:
        return None
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(kind, type) and isinstance(data, kind) and not (kind is int and isinstance(data, bool)):
        return data
    raise CaseError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {data!r}")


def stored_cases(directory: Path = CASES) -> Iterator[StoredCase]:
    """Every case of a folder, by name."""
    for path in sorted(directory.glob("*.json")):
        yield load(path)


@contextmanager
def running(case: Case, journal: bool) -> Iterator[None]:
    """Leave `case` in the inbox while the block runs, if `journal`: there a killed process leaves what it was doing.
    Not where the checkout is read-only."""
    if not journal:
        yield
        return
    try:
        path = save(case, "was running when its process was killed", INBOX, f"running-{os.getpid()}")
    except OSError:  # nothing can be written here, and nothing has to be
        yield
        return
    try:
        yield
    finally:
        path.unlink()


def left_running() -> list[Path]:
    """Cases in the inbox whose process is no longer there: what it ran when it was killed."""
    found = []
    for path in sorted(INBOX.glob("running-*.json")):
        if not Path(f"/proc/{path.stem.removeprefix('running-')}").exists():
            found.append(path)
    return found
