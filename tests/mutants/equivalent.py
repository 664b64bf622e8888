"""Mutants that no input can tell from the true kernels, each with the reason. They do not count in the score."""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {}
