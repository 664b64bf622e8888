"""Tests of the suite itself: its oracles, strategies, corpus and command line, and what it must not let pass."""
