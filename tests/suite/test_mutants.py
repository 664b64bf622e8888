"""The bank of mutants: operators change what they say, errors are no kills, and the stored score stands."""

from __future__ import annotations

import ast
import multiprocessing
from collections import Counter
from pathlib import Path

import pytest

from corpus.store import stored_cases
from oracles.adapters.kernels import TbeKernels
from oracles.check import Sweep, check
from oracles.implementation import Trace
from tests.mutants import ledger, operators, search, side_by_side
from tests.mutants.bank import BY_HAND, Mutant, Reach, bank
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.operators import IN_KERNELS, ON_THE_HOST
from tests.mutants.peers import PEERS
from tests.mutants.plant import SOURCE, Edit
from tests.mutants.score import Outcome, Terms, died, judged
from tests.mutants.search import CPU, Hurried
from tests.mutants.workers import Died, work

CHANGES = {
    "boundary": ("a < b", ["a <= b"]),
    "lost_term": ("a & (b < c)", ["a", "b < c"]),
    "no_mask": ("tl.load(p, mask=m, other=0.0)", ["tl.load(p)"]),
    "no_widening": ("x.to(tl.float32)", ["x"]),
    "plain_add": ("tl.atomic_add(p, v, mask=m, sem='relaxed')", ["tl.store(p, tl.load(p, mask=m) + v, mask=m)"]),
    "weaker_order": ("sem='acq_rel'", ["sem='relaxed'", "sem='release'", "sem='acquire'"]),
    "lost_statement": ("tl.store(p, v)", ["pass"]),
    "lost_accumulation": ("a += b", ["a = b"]),
    "lost_tail": ("(n + c - 1) // c", ["n // c"]),
    "wrong_sign": ("a + b", ["a - b"]),
    "lost_one": ("p + 1", ["p"]),
    "no_division": ("tl.div_rn(a, b)", ["a"]),
    "other_extreme": ("tl.minimum(a, b)", ["tl.maximum(a, b)"]),
    "other_branch": ("tl.where(c, a, b)", ["tl.where(c, b, a)"]),
    "negated": ("if a:\n    b", ["if not a:\n    b"]),
    "confused": ("first", ["last"]),
    "flag": ("stable=True", ["stable=False"]),
}


def node_of(source: str, name: str) -> ast.AST:
    """The node that an operator is shown: a keyword, a statement, or an expression."""
    if name in ("weaker_order", "flag"):
        return ast.parse(f"f({source})").body[0].value.keywords[0]  # type: ignore[attr-defined]
    statement = ast.parse(source).body[0]
    on_statements = name in ("plain_add", "lost_statement")
    return statement.value if isinstance(statement, ast.Expr) and not on_statements else statement


def test_operators_change_what_they_say() -> None:
    assert CHANGES.keys() == {operator.__name__ for operator in (*IN_KERNELS, *ON_THE_HOST)}
    for name, (source, expected) in CHANGES.items():
        found = [ast.unparse(ast.fix_missing_locations(c)) for c in getattr(operators, name)(node_of(source, name))]
        assert found == expected, name


@pytest.mark.parametrize("name", CHANGES)
def test_operators_leave_the_rest_alone(name: str) -> None:
    for source in ("a * b", "f(x)", "a = b", "return a"):
        assert list(getattr(operators, name)(node_of(source, "plain_add" if "f(" not in source else ""))) == [], source


def test_mutants_differ_and_their_files_still_parse() -> None:
    mutants = bank()
    assert len({m.id for m in mutants}) == len(mutants)
    assert {m.operator for m in mutants} == {BY_HAND, *CHANGES}
    for mutant in mutants:
        text = (SOURCE / mutant.file).read_text()
        for edit in mutant.edits:
            if edit.file == mutant.file:
                changed = edit.apply(text)
                assert changed != text
                text = changed
        ast.parse(text)


def test_mutants_are_looked_for_where_they_run() -> None:
    reach = Reach()
    assert reach.of("backward/psw_gradient.py", "psw_gradient_kernel") == (("backward.psw_gradient",), ())
    assert reach.of("backward/long_run_fused.py", "fused_long_runs_kernel")[0] == ("backward.long_run.fused",)
    paths, optimizers = reach.of("rules.py", "exact_adagrad")
    assert optimizers == ("EXACT_ADAGRAD",)
    assert "backward.short_run" in paths


def test_a_mutant_that_does_not_import_is_an_error_and_so_is_one_that_runs_nothing() -> None:
    broken = Mutant(
        "does not import", "test", (Edit("spec.py", "import math\n", "import maths\n"),), ("forward.pooled",)
    )
    assert judged(broken, Terms()).status == "error"
    idle = Mutant("runs nothing", "test", (Edit("spec.py", "MAX_D = 2**20", "MAX_D = 2 * 2**19"),), ())
    assert judged(idle, Terms()).status == "error"


def test_a_crash_is_told_from_an_oracle() -> None:
    crash = Edit("backward/plan.py", "    most_runs = N // config.long_run_threshold\n", "    most_runs = N // 0\n")
    outcome = judged(Mutant("divides by zero", "test", (crash,), ("backward.plan",)), Terms(shrinks=False))
    assert (outcome.status, outcome.by) == ("killed", "crash: ZeroDivisionError")
    assert outcome.crashed


def test_a_case_that_loops_for_ever_is_no_smaller_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> Trace:
        while True:
            pass

    monkeypatch.setattr(search, "MOST_SECONDS", 0.1)
    monkeypatch.setattr(TbeKernels, "run", run)
    verdict = check(next(stored_cases()).case, Hurried(), CPU, Sweep.OWN)
    assert (verdict.status, verdict.findings[0].raised) == ("failed", "TimeoutError")


def test_a_mutant_that_nobody_can_see_stays_alive_within_its_budget() -> None:
    same = Mutant("no change", "test", (Edit("spec.py", "MAX_D = 2**20", "MAX_D = 2 * 2**19"),), ("forward.pooled",))
    outcome = judged(same, Terms(examples=12))
    assert (outcome.status, outcome.examples) == ("alive", 12)


def judged_unless_strange(mutant: Mutant) -> Outcome:
    """What another process is to do."""
    if mutant.id == "unheard of":
        raise LookupError(mutant.id)
    return judged(mutant, Terms(20, shrinks=False))


def test_a_process_that_dies_takes_its_mutant_with_it_and_the_next_goes_on() -> None:
    stranger = Mutant("unheard of", "test", (Edit("no such file", "", ""),), ("no such path",))
    known = next(m for m in bank() if m.id == "an empty bag is not written")
    (first, result), (second, outcome) = work([stranger, known], 1, judged_unless_strange)
    assert (first, result) == (stranger, Died(1))
    assert died(stranger, 1).status == "error"  # an exception of the suite's own is no kill
    assert (died(stranger, -11).status, died(stranger, -11).by) == ("killed", "crash: signal 11")
    assert (second, outcome.status) == (known, "killed")
    assert not multiprocessing.active_children()


def test_the_stored_score_is_of_this_bank_and_high_enough() -> None:
    """Of mutants that are there now; those not judged yet must be few."""
    stored, mutants = ledger.stored(), {m.id: m for m in bank()}
    known = [stored[name] for name in mutants if name in stored]
    assert len(known) >= 0.9 * len(mutants)
    real = [o for o in known if o.id not in EQUIVALENT]
    assert len(real) >= 150
    assert sum(o.status == "killed" for o in real) >= 0.98 * len(real)
    assert all(o.status == "killed" for o in real if o.operator == BY_HAND)
    assert EQUIVALENT.keys() <= mutants.keys()


def test_a_score_that_falls_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    before = {"a": Outcome("a", "test", "f.py", "killed", "values", 3), "b": Outcome("b", "test", "f.py", "alive")}
    same = [Outcome("a", "test", "f.py", "killed", "bounds", 9), Outcome("b", "test", "f.py", "alive")]
    assert ledger.compare(same, before) == 0
    fallen = [Outcome("a", "test", "f.py", "alive", "", 500), same[1]]
    assert ledger.compare(fallen, before) == 1
    assert "no longer killed: alive" in capsys.readouterr().out


def test_what_is_not_judged_again_stays_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ledger, "_score", lambda peer: tmp_path / f"score{peer}")
    a, b, again = (
        Outcome(name, "test", "f.py", status) for name, status in (("a", "alive"), ("b", "alive"), ("b", "killed"))
    )
    ledger.store([b, a, Outcome("gone", "test", "f.py", "alive")], ["a", "b", "gone"])
    ledger.store([again], ["a", "b", "never judged"])
    assert list(ledger.stored().items()) == [("a", a), ("b", again)]


def test_ways_are_compared_on_the_same_mutants_and_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(seconds: float) -> Outcome:
        return Outcome("", "test", "f.py", "killed", "values", 3, seconds)

    alive, limit = Outcome("", "test", "f.py", "alive", "", 9, side_by_side.SECONDS), side_by_side.SECONDS
    scores = {
        "": {"a": killed(1), "b": killed(limit + 1), "c": alive, "not measured by all": killed(1)},
        "unaimed": {"a": killed(limit), "b": alive, "c": alive},
        **{name: {"a": alive, "b": alive, "c": killed(0.5)} for name in PEERS},
    }
    monkeypatch.setattr(ledger, "stored", lambda peer="": scores[peer])
    rows = [line.split(" | ") for line in side_by_side.table()[2:]]
    assert [row[1] for row in rows] == ["1 of 3 (33.3 %)"] * len(rows)
    assert [row[3] for row in rows] == ["1"] * len(rows)
    assert float(rows[0][4]) == pytest.approx((1 + 2 * limit) / 60, abs=0.05)
    assert [line.split(":")[0] for line in side_by_side.only_peers()] == ["c"]


def test_ours_is_ahead_of_every_peer() -> None:
    ways = side_by_side.ways()
    assert all(len(outcomes) >= 150 for outcomes in ways.values())
    kills = {name: sum(map(side_by_side.killed, outcomes.values())) for name, outcomes in ways.items()}
    ours = [kills.pop(side_by_side.AIMED), kills.pop(side_by_side.NOT_AIMED)]
    assert len(kills) == len(PEERS)
    assert min(ours) > max(kills.values())


def missing(tables: list[str], readme: str) -> set[str]:
    """The lines of tables that a README does not show."""
    return set(tables) - set(readme.splitlines())


def test_the_readmes_show_the_stored_scores() -> None:
    score, sides = [*ledger.summary(ledger.stored().values())], side_by_side.table()
    assert missing(score, (ledger.ROOT / "README.md").read_text()) == set()
    assert missing(score + sides, (ledger.ROOM / "README.md").read_text()) == set()


def test_the_readmes_count_the_bank_and_who_saw_it() -> None:
    mutants = bank()
    by_hand = sum(m.operator == "by hand" for m in mutants)
    counted = f"{by_hand} faults planted by hand and {len(mutants) - by_hand} mutants made by operators"
    assert f"{counted}, {len(EQUIVALENT)} of which cannot be told" in (ledger.ROOT / "README.md").read_text()
    by = Counter(outcome.by for outcome in ledger.stored().values())
    room = " ".join((ledger.ROOM / "README.md").read_text().split())
    assert f"**Equivalent**: {len(EQUIVALENT)} that" in room
    assert (
        f"{by['values']} were seen in the values, {by['bounds']} by the bounds guard, {by['races']} as races, "
        f"{by['hints']} as hints that lie, {by['routings']} only by comparing two routings, {by['overflow']} as an over"
    ) in room


def test_a_readme_whose_score_is_another_is_seen() -> None:
    readme = (ledger.ROOM / "README.md").read_text()
    assert len(missing(side_by_side.table(), readme.replace("| 15 of 109 |", "| 16 of 109 |"))) == 1
