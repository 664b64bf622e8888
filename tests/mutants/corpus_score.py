"""What the stored cases see by themselves: distilling measures and keeps it, replaying tells it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from corpus.store import case_id, stored_cases

SCORE = Path(__file__).parent / "corpus-score.json"


def keep(killed: int, mutants: int) -> None:
    """Keep how many of the killed mutants the stored cases see."""
    SCORE.write_text(json.dumps({"seen": killed, "of": mutants, "cases": sorted(_ids())}) + "\n")


def told() -> str:
    """The kept score in a line."""
    if not SCORE.exists():
        return "what these cases see has not been measured; see `python -m corpus distill`"
    score = json.loads(SCORE.read_text())
    share = 100 * score["seen"] / score["of"]
    line = f"these cases see {score['seen']} of {score['of']} mutants that the suite kills ({share:.1f} %)"
    changed = len(set(score["cases"]) ^ set(_ids()))
    return line + (f", or did before {changed} of them came, went or changed" if changed else "")


def _ids() -> Iterable[str]:
    return (case_id(stored.case) for stored in stored_cases())
