"""Speed alone: off by a flag, and off with a warning on a Triton that it was not written for; verdicts stay."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
from triton.runtime import interpreter as theirs

from oracles import interpreter
from oracles.interpreter import PaceWarning
from oracles.interpreter.pace import written_for


@pytest.fixture
def _asked_anew() -> Iterator[None]:
    interpreter.quick.cache_clear()
    yield
    interpreter.quick.cache_clear()


@pytest.mark.usefixtures("_asked_anew")
def test_it_was_written_for_the_triton_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TBE_PACE", raising=False)
    assert written_for.other_files() == []
    assert interpreter.quick()


@pytest.mark.usefixtures("_asked_anew")
def test_another_triton_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TBE_PACE", raising=False)
    first, *rest = written_for.digests()
    monkeypatch.setattr(written_for, "digests", lambda: ("0" * len(first), *rest))
    with pytest.warns(PaceWarning, match=r"runtime/interpreter\.py of this Triton"):
        interpreter.quick()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not interpreter.quick()


@pytest.mark.usefixtures("_asked_anew")
def test_the_flag_turns_it_off_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TBE_PACE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not interpreter.quick()


@pytest.mark.usefixtures("_asked_anew")
def test_a_process_that_compiles_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(written_for, "digests", lambda: ("0",) * len(written_for.FILES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with interpreter.remembering():
            pass


#: Raced and not; small, for it runs slowly.
CASES = (
    "two-features-one-row",
    "none-on-every-merge",
    "a-relaxed-countdown",
    "gradients-are-clipped-before",
    "no-lookups",
)
FAULTY = "tests.programs.fuzzed:ONE_FAULT"
UNTOUCHED = """
from oracles import interpreter
interpreter.install()
from triton.runtime import interpreter as theirs
import oracles.interpreter.launch, sys
pace = [name for name in sys.modules if name.startswith("oracles.interpreter.pace.")]
print(theirs.InterpretedFunction.__call__.__module__, pace)
"""


def _python(*arguments: str, pace: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TBE_PACE": pace}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


def test_the_flag_leaves_triton_as_it_is() -> None:
    interpreter.install()
    assert theirs.InterpretedFunction.__call__.__module__ == "oracles.interpreter.pace.language"  # the control
    assert _python("-c", UNTOUCHED, pace="0").stdout.split(maxsplit=1) == ["triton.runtime.interpreter", "[]\n"]


@pytest.mark.parametrize(("impl", "code"), [("oracles.adapters.kernels:IMPLEMENTATION", 0), (FAULTY, 1)])
def test_verdicts_do_not_depend_on_it(impl: str, code: int) -> None:
    """Of right kernels and of faulty ones; every guard is proved again by its controls in the process without it."""

    def verdicts(pace: str) -> tuple[int, list[str]]:
        done = _python("-m", "corpus", "replay", *CASES, "--impl", impl, "--jobs", "1", pace=pace)
        return done.returncode, [line.rsplit("  ", 1)[0] for line in done.stdout.splitlines() if line.startswith("[")]

    quick, slow = verdicts("1"), verdicts("0")
    assert (quick[0], len(quick[1])) == (code, len(CASES))
    assert quick == slow
