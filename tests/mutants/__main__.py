"""`python -m tests.mutants`: how many planted faults and mutants the suite kills, by whom and how fast.

Goes on where it stopped: outcomes are kept in a file, a line each, until the code changes. Exit codes: 0; 1, fewer
killed than the stored score says, or (without `--check`) a mutant that is an error; 2, nothing to do.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
import time
from functools import partial
from pathlib import Path

#: CPU seconds within which a mutant of the sample was killed.
CHEAP = 3.0
PEER_NAMES = ("fbgemm", "torchrec", "textbook", "unaimed")


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="in the name, operator or file; or `equivalent`")
    parser.add_argument("--budget", type=int, default=500, help="examples for each mutant (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="CPU seconds for each (default: no bound)")
    parser.add_argument(
        "--peer", default="", choices=("", *PEER_NAMES), help="measure a peer's way, or ours on all paths"
    )
    parser.add_argument("--bank", default="", help="a bank of strangers (tests/mutants/strangers) instead of our own")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one a core)")
    parser.add_argument("--outcomes", type=Path, help="where they are kept (default: in .mutants, by code and terms)")
    parser.add_argument("--again", action="store_true", help="forget what is kept there")
    parser.add_argument("--no-shrink", dest="shrinks", action="store_false", help="leave failing cases as found")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of those killed within 3 CPU seconds")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 unless as many are killed as the stored score says"
    )
    parser.add_argument("--store", action="store_true", help="put this into the stored score")
    parser.add_argument("--side-by-side", action="store_true", help="only print the stored scores of all ways")
    given = parser.parse_args(arguments)
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    from tests.mutants import ledger, side_by_side, strangers
    from tests.mutants.bank import bank
    from tests.mutants.equivalent import EQUIVALENT
    from tests.mutants.score import Terms, died, judged
    from tests.mutants.workers import Died, work

    if given.side_by_side:
        print("\n".join([*side_by_side.table(), *side_by_side.only_peers()]))
        return 0
    if given.bank not in ("", *strangers.NAMES):
        parser.error(f"--bank: expected one of {', '.join(strangers.NAMES)}, got {given.bank}")
    score = "-".join(filter(None, [given.bank, given.peer]))
    stored = ledger.stored(score)
    everything = strangers.bank(given.bank) if given.bank else bank()
    mutants = [
        m for m in everything if given.only in f"{m.id} {m.operator} {m.file}{' equivalent' * (m.id in EQUIVALENT)}"
    ]
    if given.peer:
        mutants = [m for m in mutants if m.id not in EQUIVALENT]
    if given.sample is not None:
        cheap = {name for name, o in stored.items() if o.status == "killed" and o.seconds <= CHEAP}
        mutants = [m for m in mutants if m.id in cheap]
        mutants = sorted(mutants, key=lambda m: hashlib.sha256(m.id.encode()).digest())[: given.sample]
    if not mutants:
        print("no mutant to judge", file=sys.stderr)
        return 2
    terms = Terms(given.budget, given.seconds, given.shrinks, given.peer)
    given.outcomes = given.outcomes or ledger.place(terms)
    if given.again:
        given.outcomes.unlink(missing_ok=True)
    done = {o.id: o for o in ledger.read(given.outcomes)}
    left = [m for m in mutants if m.id not in done]
    print(f"{len(mutants)} mutants, {len(left)} to judge", flush=True)
    begin = time.monotonic()
    for number, (mutant, result) in enumerate(work(left, given.jobs, partial(judged, terms=terms)), 1):
        outcome = died(mutant, result.code) if isinstance(result, Died) else result
        done[outcome.id] = outcome
        ledger.append(given.outcomes, outcome)
        print(f"[{number}/{len(left)}, {time.monotonic() - begin:.0f} s] {ledger.line(outcome)}", flush=True)
    outcomes = [done[m.id] for m in mutants]
    for text in ledger.table(outcomes):
        print(text)
    if given.store:
        ledger.store(outcomes, [m.id for m in everything], score)
    if given.check:
        return ledger.compare(outcomes, stored)
    return int(any(o.status == "error" for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
