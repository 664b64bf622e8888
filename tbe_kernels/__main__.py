"""`python -m tbe_kernels compile`: what can be done with the kernels from a command line."""

from __future__ import annotations

import argparse
import sys

from tbe_kernels.aot import compile as compile_gate


def main() -> int:
    """Run one command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tbe_kernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    compile_gate.add_arguments(
        commands.add_parser("compile", help="compile every kernel ahead of time, for GPUs that need not be there")
    )
    return compile_gate.main(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
