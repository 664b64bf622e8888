"""The strategies: every hard place is reached, every draw is a case, exact mode is exact, skews look as claimed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import NoSuchExample
from hypothesis.internal.conjecture import providers

from corpus.case import Case, Sampled
from corpus.optimizers import KINDS, NORMS
from corpus.tensors import ids_and_lengths, table_rows
from oracles.values import optimizers
from oracles.values.judge import first_state
from oracles.values.reference import ReferenceBatch
from strategies.cases import cases
from strategies.ids import RUN_LENGTH_SHARE, SKEWS, compressed, id_lists, production_run
from strategies.regions import AIMED, REGIONS
from strategies.routing import GPU
from tbe_kernels.paths import PATHS
from tests import independent
from tests.independent import BACKEND

search = settings(max_examples=3000, derandomize=True, database=None, deadline=None, backend=BACKEND)
#: The same from Hypothesis's own backend.
plain = settings(search, backend="hypothesis")


@pytest.mark.parametrize("region", REGIONS)
def test_region_is_reached(region: str) -> None:
    path = next((path for path in PATHS if path.name == AIMED.get(region)), None)
    find(cases(path=path), REGIONS[region], settings=search)


def test_a_region_that_is_not_there_is_noticed() -> None:
    with pytest.raises(NoSuchExample):
        find(cases(), lambda case: case.num_features == 1000, settings=settings(search, max_examples=200))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_cases_aimed_at_a_path_meet_its_needs(path) -> None:
    @settings(search, max_examples=150)
    @given(cases(path=path))
    def check(case: Case) -> None:
        for knob, values in path.needs.knobs.items():
            assert case.routing[knob] in values
        for axis, values in path.needs.case.items():
            assert getattr(case, axis) in values
        if path.needs.lookups:
            assert (ids_and_lengths(case, 0)[0] != -1).any()
        if path.needs.trains_psw:
            assert case.batches[0].psw == "trained"

    check()


def bags_alike(profile: settings) -> int:
    """How many of 200 cases for one path have the bags of another one."""
    drawn: list[str] = []

    @settings(profile, max_examples=200)
    @given(cases(path=PATHS[0]))
    def note(case: Case) -> None:
        drawn.append(str([batch.features for batch in case.batches]))

    note()
    return sum(times for times in Counter(drawn).values() if times > 1)


def test_examples_are_drawn_independently() -> None:
    """Small cases meet by accident; with Hypothesis's copies, four cases of five are like another."""
    assert bags_alike(search) < 10
    assert bags_alike(plain) > 120


def integers_after_loading(
    profile: settings, directory: Path, monkeypatch: pytest.MonkeyPatch, constants: tuple[int, ...]
) -> set[int]:
    """Integers drawn once a local module with these constants is loaded."""
    (directory / "loaded.py").write_text(f"KNOWN = {constants}\n")
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setitem(sys.modules, "loaded", importlib.import_module("loaded"))
    drawn: set[int] = set()

    @settings(profile, max_examples=500)
    @given(st.integers(0, 2**60))
    def note(number: int) -> None:
        drawn.add(number)

    note()
    return drawn


def test_examples_do_not_depend_on_what_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(providers.CONSTANTS_CACHE.cache.clear)
    constants = tuple(range(3**30, 3**30 + 300))
    assert integers_after_loading(plain, tmp_path, monkeypatch, constants) & set(constants)
    # Not even by what Hypothesis's own backend has kept of them.
    assert not integers_after_loading(search, tmp_path, monkeypatch, constants) & set(constants)


def test_a_hypothesis_that_mixes_constants_otherwise_is_noticed_in_one_line() -> None:
    hidden = "from hypothesis.internal.conjecture import providers as p; del p.HypothesisProvider._maybe_draw_constant"
    ran = subprocess.run(
        [sys.executable, "-c", f"{hidden}; import tests.independent"], capture_output=True, text=True, check=True
    )
    assert ran.stderr.count("\n") == 1
    assert independent.CONSTANTS in ran.stderr


@pytest.mark.parametrize("failing", [search, plain], ids=["independent", "plain"])
def test_what_fails_is_shrunk_and_kept(failing: settings, tmp_path: Path) -> None:
    """As with Hypothesis's own backend: the least failing example, and from the database at once when run again."""
    seen: list[int] = []

    kept = DirectoryBasedExampleDatabase(tmp_path)

    @settings(failing, derandomize=False, database=kept, max_examples=300, phases=tuple(Phase))
    @given(st.integers(0, 10**6))
    def fail(number: int) -> None:
        seen.append(number)
        assert number < 5000

    with pytest.raises(AssertionError):
        fail()
    assert seen[-1] == 5000
    seen.clear()
    with pytest.raises(AssertionError):
        fail()
    assert seen[0] == 5000


@pytest.mark.parametrize("limits", [None, GPU], ids=["interpreter", "gpu"])
def test_nothing_is_discarded(limits) -> None:
    """Every draw is a case: no filter, no assume, and none of Hypothesis's complaints about size suppressed."""
    drawn = 0

    @settings(search, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
    @given(cases(limits=limits) if limits else cases())
    def count(case: Case) -> None:
        nonlocal drawn
        drawn += 1

    count()
    assert drawn >= 297


def exact_share(case: Case) -> tuple[int, int]:
    """(exact, all) elements of the first forward and backward of a case."""
    tracked = table_rows(case)
    batch, weights = ReferenceBatch(case, 0, tracked), [rows.values for rows in tracked]
    if batch.effective.refusal is not None:
        return 0, 0
    intervals = [batch.forward(weights, torch.float32)]
    if case.order.count(0) == 2:
        backward = batch.backward(weights, first_state(case, tracked), case.optimizer.learning_rate, 1, torch.float32)
        kind = KINDS[case.optimizer.name]
        intervals += [table.weights for table in backward.tables if kind.linear]
        # What follows from norms has been rounded on the way.
        intervals += [value for table in backward.tables for value in table.state.values() if kind.columns != NORMS]
        intervals += [backward.psw_gradient] if backward.psw_gradient else []
    return sum(int(i.is_point().sum()) for i in intervals), sum(i.lo.numel() for i in intervals)


def test_exact_mode_is_exact() -> None:
    """Outputs, weights after a linear step, state without norms and psw gradients: nearly all are proved exact."""
    counts = Counter[str]()

    @settings(search, max_examples=400)
    # Stochastic rounding may store either neighbour of an exact result.
    @given(cases().filter(lambda c: c.values.mode == "exact" and not c.values.specials and not c.stochastic_rounding))
    def add(case: Case) -> None:
        exact, every = exact_share(case)
        counts.update(exact=exact, every=every)

    add()
    assert counts["exact"] / counts["every"] > 0.97


def test_general_mode_is_not_exact() -> None:
    """The control: the proof does not go through for values of many magnitudes."""
    counts = Counter[str]()

    @settings(search, max_examples=300)
    @given(cases().filter(lambda case: case.values.mode == "general"))
    def add(case: Case) -> None:
        exact, every = exact_share(case)
        counts.update(exact=exact, every=every)

    add()
    assert counts["every"] - counts["exact"] > 1000


@pytest.mark.parametrize("skew", SKEWS)
@given(data=st.data())
def test_ids_are_rows_of_their_table(skew: str, data: st.DataObject) -> None:
    rows, count = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 30))
    ids = data.draw(id_lists(rows=rows, count=count, skew=skew, pruned=data.draw(st.booleans())))
    assert len(ids) == count
    assert all(-1 <= i < rows for i in ids)


def test_production_runs_look_like_the_traces() -> None:
    """The share of lookups that fall on runs of each length, over all quantiles."""
    share = np.array(RUN_LENGTH_SHARE) / sum(RUN_LENGTH_SHARE)
    runs = np.array([production_run(q / 2**18) for q in range(2**18)])
    lookups = np.array([runs[runs == 2**octave].sum() for octave in range(len(share))])
    assert np.abs(lookups / lookups.sum() - share).max() < 0.005


def test_compressed_bags_hold_the_same_lookups() -> None:
    from corpus.case import expand

    ids = [1, 1, 1, 2, 2, 2, 2, 0, 5, 5, 5, 5, 5]
    bag = compressed(ids)
    assert list(expand(bag)) == ids
    assert bag == (1, 1, 1, (2, 4), 0, (5, 5))


def test_large_cases_are_drawn_for_gpus_alone() -> None:
    def sampled(case: Case) -> bool:
        return any(isinstance(f, Sampled) for b in case.batches for f in b.features)

    case = find(cases(limits=GPU), sampled, settings=search)
    assert len(ids_and_lengths(case, max(case.order))[0]) >= 1
    with pytest.raises(NoSuchExample):
        find(cases(), sampled, settings=settings(search, max_examples=300))


def test_optimizers_of_cases_are_those_of_the_oracle() -> None:
    from corpus.case import OPTIMIZERS

    assert set(OPTIMIZERS) == set(optimizers.RULES)
