"""The Hypothesis profiles, each saying all of its settings.

Where the environment variable CI is set, Hypothesis makes whatever a profile leaves out that of its own `ci` profile:
derandomized, without a database. A right kernel then fails, for a handful of settled examples need not meet what many
random ones meet, and there is nothing to replay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import Phase, Verbosity, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.independent import BACKEND

REMEMBERED = DirectoryBasedExampleDatabase(Path(__file__).parents[1] / ".hypothesis" / "examples")
SEARCH = (Phase.explicit, Phase.reuse, Phase.generate)
#: What all profiles have in common.
COMMON: dict[str, Any] = {
    "backend": BACKEND,
    "deadline": None,
    "print_blob": False,
    "report_multiple_bugs": True,
    "stateful_step_count": 50,
    "suppress_health_check": (),
    "verbosity": Verbosity.normal,
}
#: And where they differ. The property suite draws `max_examples` for each kernel path.
PROFILES: dict[str, dict[str, Any]] = {
    "dev": {"max_examples": 36, "phases": SEARCH, "derandomize": False, "database": REMEMBERED},
    "ci": {"max_examples": 150, "phases": SEARCH, "derandomize": True, "database": None},
    "nightly": {"max_examples": 1400, "phases": (*SEARCH, Phase.target), "derandomize": False, "database": REMEMBERED},
    "gpu": {"max_examples": 65, "phases": SEARCH, "derandomize": False, "database": None},
    "replay": {"max_examples": 100, "phases": SEARCH[:2], "derandomize": False, "database": REMEMBERED},
}
#: Profiles that check every routing of the sweep.
FULL_SWEEP = ("nightly", "replay")


def register() -> None:
    """Make them known, and the first of them the one in force."""
    for name, own in PROFILES.items():
        settings.register_profile(name, **COMMON, **own)
    settings.load_profile(next(iter(PROFILES)))
