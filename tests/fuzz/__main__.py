"""`python -m tests.fuzz --minutes N`: the property of the suite on one case after another, by the clock, on a CPU.

Goes on after a failure. Failures are put down to their causes, the smallest case of each is kept in the inbox, and at
the end each is reported with the command that replays it. Ctrl-C ends a run early, with all that it found.

With --seed, worker w of any number of workers draws the same cases in the same order each time, given the same paths,
checkout and version of Hypothesis; how many it gets through, which is made small and how small is a matter of time. A
worker that takes the place of its w-th predecessor draws others, the same ones each time again.

Exit codes: 0, nothing found; 1, something was; 2, an error: wrong arguments, no worker that starts, no case checked.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oracles import OURS


def main(arguments: list[str] | None = None, enough: Callable[[Any], bool] = lambda session: False) -> int:
    """Parse the command line and fuzz; returns the exit code. `enough(session)` may end it before its time."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=minutes, required=True, help="how long, counted from when workers begin")
    parser.add_argument("--jobs", type=jobs, default=len(os.sched_getaffinity(0)), help="workers (default: one a core)")
    parser.add_argument("--path", nargs="+", metavar="NAME", action="extend", help="aim at these paths (default: all)")
    parser.add_argument("--impl", default=OURS, metavar="MODULE:ATTRIBUTE")
    parser.add_argument("--sweep", choices=("own", "some", "all"), default="some", help="routings of each case")
    parser.add_argument("--seed", type=int, help="draw what a run with this seed drew (default: another each time)")
    parser.add_argument("--inbox", type=Path, help="where failing cases are kept (default: corpus/inbox)")
    given = parser.parse_args(arguments)
    # Before anything imports triton, and in every worker.
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from corpus.store import INBOX
    from oracles.replay import attribute
    from tbe_kernels.paths import PATHS
    from tests.fuzz.session import Session

    names = [path.name for path in PATHS]
    given.path = list(dict.fromkeys(given.path or names))
    given.seed = secrets.randbits(32) if given.seed is None else given.seed
    given.inbox = (given.inbox or INBOX).resolve()
    if unknown := [name for name in given.path if name not in names]:
        parser.error(f"--path: there is no {', '.join(unknown)}; there are {', '.join(names)}")
    try:
        attribute(given.impl)
    except (ImportError, AttributeError, ValueError) as error:
        parser.error(f"--impl: {error}")
    return Session(given, enough).run()


def minutes(text: str) -> float:
    if not 0 < (number := float(text)) < float("inf"):
        raise ValueError
    return number


def jobs(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    sys.exit(main())
