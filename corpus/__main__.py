"""`python -m corpus replay [PATH | ID ...]`: run stored cases again, on the CPU (interpreter) or a GPU.
`python -m corpus show [PATH | ID ...] [--plot FILE]`: say, and draw, what is in them.
`python -m corpus distill`: add the fewest cases that see every mutant which `python -m tests.mutants` saw killed.

Exit codes: 0, every case holds (FIXED, for one from the inbox), or is shown; 1, some case FAILED; 2, an ERROR: a file
that holds no case, a name that matches none, nothing to run or show, or nothing to draw with.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from oracles import OURS


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m corpus", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("replay", help="run stored cases on every routing")
    command.add_argument("cases", nargs="*", metavar="PATH|ID", help="files, folders or names; default: corpus/cases")
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    command.add_argument("--impl", default=OURS, metavar="MODULE:ATTRIBUTE")
    command.add_argument(
        "--sweep",
        choices=("own", "some", "all", "raced"),
        default="all",
        help="which routings to run; raced: the own one, under the race detector, as all does in the end",
    )
    command.add_argument(
        "--relation", metavar="NAME", help="run a relation of oracles.relations.relate, not the reference"
    )
    command.add_argument("--jobs", type=int, help="processes (default: one a core on a CPU, one on a GPU)")
    shown = commands.add_parser("show", help="say what is in stored cases: bags, runs and which way they go, settings")
    shown.add_argument("cases", nargs="*", metavar="PATH|ID", help="files, folders or names; default: corpus/cases")
    shown.add_argument("--plot", metavar="FILE", help="draw the one case named (.png, .svg, .pdf); needs matplotlib")
    distilled = commands.add_parser("distill", help="keep the fewest cases that see every mutant anybody saw")
    distilled.add_argument("--outcomes", type=Path, help="of `tests.mutants` (default: those of the code as it is)")
    distilled.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one a core)")
    distilled.add_argument("--half", type=int, metavar="SEED", help="from a random half, to be judged on the other")
    given = parser.parse_args(arguments)
    if given.command == "show":
        from oracles.show.show import show

        return show(given)
    if given.command == "distill" or given.device == "cpu":
        # Before anything imports triton, and in every process that this one starts.
        os.environ.setdefault("TRITON_INTERPRET", "1")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.command == "distill":
        from tests.mutants.distill import distill

        return distill(given)
    from oracles.replay import replay

    code = replay(given)
    if not given.cases and not given.relation:
        from tests.mutants.corpus_score import told

        print(told())
    return code


if __name__ == "__main__":
    sys.exit(main())
