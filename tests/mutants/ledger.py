"""Outcomes as files and as tables; the stored score that the sampled one may not fall below."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.mutants.bank import BY_HAND
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.score import Outcome, Terms

ROOM = Path(__file__).parent
ROOT = ROOM.parents[1]
ROOMS = ("tbe_kernels", "corpus", "strategies", "oracles", "tests")


def read(path: Path) -> list[Outcome]:
    """The outcomes of a file, a line each; none if there is no file."""
    return [Outcome.from_json(line) for line in path.read_text().splitlines()] if path.exists() else []


def place(terms: Terms) -> Path:
    """Where outcomes are kept: they hold for these terms, and for the code as it stands."""
    digest = hashlib.sha256(f"{terms.examples} {terms.seconds}".encode())
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return ROOT / ".mutants" / f"{terms.peer or 'ours'}-{digest.hexdigest()[:12]}.jsonl"


def append(path: Path, outcome: Outcome) -> None:
    """Keep one more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(outcome.to_json() + "\n")


def _score(peer: str) -> Path:
    return ROOM / (f"score-{peer}.json" if peer else "score.json")


def stored(peer: str = "") -> dict[str, Outcome]:
    """The stored score, ours or a peer's: each mutant's outcome, without its case."""
    lines = json.loads(_score(peer).read_text()) if _score(peer).exists() else {}
    return {
        name: Outcome(name, operator, file, status, by, examples, seconds, tuple(size) if size else None)
        for name, (operator, file, status, by, examples, seconds, size) in lines.items()
    }


def store(outcomes: Iterable[Outcome], names: Iterable[str], peer: str = "") -> None:
    """Make these the stored score. Of the other mutants in `names`, all that there are, what is stored stays."""
    known = stored(peer) | {o.id: o for o in outcomes}
    lines = [
        f"{json.dumps(o.id)}: {json.dumps([o.operator, o.file, o.status, o.by, o.examples, o.seconds, o.size])}"
        for o in (known[name] for name in names if name in known)
    ]
    _score(peer).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def line(outcome: Outcome) -> str:
    """One outcome, in a line."""
    size = f", shrunk to {outcome.size}" if outcome.size else ""
    return (
        f"{outcome.status:6} {outcome.by:12} {outcome.examples:4} examples {outcome.seconds:6.1f} s  "
        f"{outcome.id} ({outcome.operator}){size}"
    )


def table(outcomes: list[Outcome]) -> list[str]:
    """Totals by operator, by file and by who killed; then whoever is alive or an error."""
    lines = []
    groups: list[tuple[str, Callable[[Outcome], str]]] = [
        ("operator", lambda o: o.operator),
        ("file", lambda o: o.file),
    ]
    for title, key in groups:
        lines.append(f"{title:28} {'mutants':>8} {'killed':>8} {'crashes':>8} {'examples':>9} {'CPU s':>8}")
        for name in [*sorted({key(o) for o in outcomes}), "all"]:
            some = [o for o in outcomes if name in (key(o), "all")]
            killed = [o for o in some if o.status == "killed"]
            middle = sorted(o.examples for o in killed)[len(killed) // 2] if killed else 0
            crashes, seconds = sum(o.crashed for o in killed), sum(o.seconds for o in some)
            lines.append(f"{name:28} {len(some):8} {len(killed):8} {crashes:8} {middle:9} {seconds:8.0f}")
    by: dict[str, int] = {}
    for o in outcomes:
        if o.status == "killed":
            by[o.by.split(":")[0]] = by.get(o.by.split(":")[0], 0) + 1
    lines.append("killed by " + ", ".join(f"{name} {n}" for name, n in sorted(by.items(), key=lambda x: -x[1])))
    lines += [line(o) for o in outcomes if o.status != "killed"]
    lines.append(score(outcomes))
    return lines


def summary(outcomes: Iterable[Outcome]) -> list[str]:
    """The score in short, in Markdown: those that can be told from the true kernels."""
    real = [o for o in outcomes if o.id not in EQUIVALENT]
    lines = ["| | mutants | killed | by crash | median examples |", "|---|---|---|---|---|"]
    groups = {
        "by hand": [o for o in real if o.operator == BY_HAND],
        "made by operators": [o for o in real if o.operator != BY_HAND],
        "all": real,
    }
    for name, some in groups.items():
        killed = [o for o in some if o.status == "killed"]
        examples = sorted(o.examples for o in killed)[len(killed) // 2]
        share = f" ({100 * len(killed) / len(some):.1f} %)" if len(killed) < len(some) else ""
        lines.append(f"| {name} | {len(some)} | {len(killed)}{share} | {sum(o.crashed for o in killed)} | {examples} |")
    return lines


def score(outcomes: list[Outcome]) -> str:
    """Killed of those that can be, in a line. Examples in the tables above are medians of the killed."""
    real = [o for o in outcomes if o.id not in EQUIVALENT]
    killed = sum(o.status == "killed" for o in real)
    minutes = sum(o.seconds for o in real) / 60
    return (
        f"score: {killed} of {len(real)} killed ({100 * killed / max(1, len(real)):.1f} %), "
        f"{killed / max(minutes, 1e-9):.1f} a CPU minute; {len(outcomes) - len(real)} more are equivalent"
    )


def compare(outcomes: list[Outcome], before: dict[str, Outcome]) -> int:
    """0 if every mutant that the stored score has killed is killed again; else 1, and which are not."""
    fallen = [o for o in outcomes if o.status != "killed" and o.id in before and before[o.id].status == "killed"]
    for o in fallen:
        print(f"no longer killed: {line(dataclasses.replace(o, case=''))}")
    return int(bool(fallen))
