"""Profiles mean the same wherever they run: Hypothesis has settings of its own where CI is set."""

from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import settings
from hypothesis._settings import _CI_VARS

from tests.profiles import COMMON, PROFILES


def settled(ci: str | None) -> list[str]:
    """Every setting of every profile, in a process of its own, with the environment variable CI set or not."""
    environment = {name: value for name, value in os.environ.items() if name not in _CI_VARS}
    if ci is not None:
        environment["CI"] = ci
    command = [sys.executable, "-m", "tests.programs.settled"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()


def test_profiles_are_the_same_with_and_without_ci() -> None:
    here, there = settled(None), settled("true")
    assert len(here) == len(there) == (len(PROFILES) + 1) * (len(COMMON) + len(PROFILES["dev"]))
    differ = {a.split(" | ")[0] for a, b in zip(here, there, strict=True) if a != b}
    assert differ == {"says nothing"}  # the control: what is left out is Hypothesis' own


def test_profiles_say_every_setting() -> None:
    known = {name for name in vars(settings) if isinstance(getattr(settings, name), property)}
    for own in PROFILES.values():
        assert COMMON.keys() | own.keys() == known
