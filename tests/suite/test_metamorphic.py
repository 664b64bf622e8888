"""Each relation sees a planted fault with the reference turned off, compares only what is proved, and reports failures.

That the kernels themselves pass is the property of `tests/kernels/test_metamorphic.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from hypothesis import Phase, given, settings

from corpus.__main__ import main
from corpus.case import Batch, Case, Optimizer, Table, Values
from corpus.store import INBOX
from corpus.tensors import Carried
from oracles.adapters.kernels import TbeKernels
from oracles.adapters.torch_reference import IMPLEMENTATION
from oracles.check import Status, Sweep, Verdict, check
from oracles.implementation import Backward, Implementation, Routing, Trace
from oracles.relations.exactness import exact
from oracles.relations.pieces import put_together, take_apart
from oracles.relations.relate import RELATIONS, relate
from oracles.report import report, size
from oracles.shrink import shrink
from oracles.values.reference import ReferenceBatch
from strategies.cases import cases
from strategies.routing import Limits
from tbe_kernels.paths import PATHS
from tests.mutants import FAULTS
from tests.mutants.fault import Fault
from tests.mutants.plant import Edit, plant

CPU = torch.device("cpu")
SMALL = Limits(steps=60)
#: Cases for the path of a fault; the `ci` profile relates about twice as many in all.
MOST = 200
BY_NAME = {fault.name: fault for fault in FAULTS}

LEFT_BEHIND = Fault(
    "all modules share a workspace of fused runs, and leave their sums in it",
    "tables.py",
    "dict[int, tuple[Tensor, Tensor]] = field(init=False, default_factory=dict)",
    "dict[int, tuple[Tensor, Tensor]] = field(init=False, default_factory=lambda: _EVERYBODYS)",
    "backward.long_run.fused",
    more=(
        Edit("tables.py", "@dataclass\nclass Emb", "_EVERYBODYS: dict[int, tuple] = {}\n\n\n@dataclass\nclass Emb"),
        Edit(
            "backward/long_run_fused.py",
            "            tl.store(sums, tl.zeros([BLOCK_D], dtype=tl.float32), mask=inside)\n",
            "",
        ),
        Edit("backward/long_run_fused.py", "kept[1].numel() < runs", "kept[0].shape != (runs, max_D)"),
    ),
)
UNSIGNED = Fault(
    "an int32 id is taken for unsigned",
    "forward/bounds_check.py",
    "        bad = (index < -1) | (index >= rows)\n        if checked",
    "        if indices.dtype.element_ty == tl.int32:\n"
    "            index = index & 0xFFFFFFFF\n"
    "        bad = (index < -1) | (index >= rows)\n        if checked",
    "check.indices",
)
#: By relation: a fault that it has to see.
SEEN: dict[str, Fault] = {
    "samples": BY_NAME["the last group of bags has no program"],
    "ids": BY_NAME["a relative error of 2 ** -18 in one lookup of the forward"],
    "features": BY_NAME["the first feature's columns for the whole run"],
    "rows": BY_NAME["a pruned id is counted as row 0"],
    "stacked": BY_NAME["the state of another table's row"],
    "apart": BY_NAME["the first feature's columns for the whole run"],
    "batches": BY_NAME["the last, partial chunk is lost"],
    "ones": BY_NAME["the counts of the neighbour bag"],
    "mean": BY_NAME["a pruned id counts in the mean"],
    "units": BY_NAME["eps inside the root"],
    "integers": UNSIGNED,
    "layout": BY_NAME["gradients are taken for contiguous"],
    "twice": LEFT_BEHIND,
}


@pytest.fixture
def no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks the reference fails."""

    def forbidden(*given: object) -> NoReturn:
        raise AssertionError("the reference was asked")

    monkeypatch.setattr(ReferenceBatch, "__init__", forbidden)


class FoundError(Exception):
    """Ends the search."""


def first_failure(relation: str, fault: Fault, implementation: Implementation) -> tuple[Verdict | None, int]:
    """The first of `MOST` cases for the fault's path whose two results differ, and how many were tried."""
    path = next(p for p in PATHS if p.name == fault.path)
    found: list[Verdict] = []
    tried = 0

    @settings(settings.get_profile("ci"), phases=(Phase.generate,), max_examples=MOST)
    @given(cases(path=path, limits=SMALL))
    def look(case: Case) -> None:
        nonlocal tried
        tried += 1
        verdict = relate(relation, case, implementation, CPU)
        if verdict.status is Status.FAILED and not (verdict.findings[0].guard or verdict.findings[0].raised):
            found.append(verdict)
            raise FoundError

    try:
        look()
    except FoundError:
        return found[0], tried
    return None, tried


def test_every_relation_has_a_fault_to_see() -> None:
    assert SEEN.keys() == RELATIONS.keys()


@pytest.mark.usefixtures("no_reference")
@pytest.mark.parametrize("relation", SEEN)
def test_a_relation_sees_its_fault_without_a_reference(relation: str) -> None:
    fault = SEEN[relation]
    verdict, tried = first_failure(relation, fault, TbeKernels(plant(*fault.edits)))
    assert verdict is not None, f"not seen in {tried} examples"
    headline = verdict.findings[0].headline
    print(f"\n{relation}: {fault.name}: {tried} examples: {headline}")
    assert headline.startswith(f"{relation}: ")


@pytest.mark.usefixtures("no_reference")
def test_a_failure_shrinks_and_says_how_to_see_it_again() -> None:
    fault = SEEN["features"]
    implementation = TbeKernels(plant(*fault.edits))
    verdict, _ = first_failure("features", fault, implementation)
    assert verdict is not None
    small = shrink(verdict, implementation, CPU)
    assert small.status is Status.FAILED
    assert all(have <= most for have, most in zip(size(small.case), fault.size, strict=True)), size(small.case)
    text = report(small, INBOX / "x.json", "cpu")
    assert "the other way" in text
    assert "x.json --device cpu --relation features" in text


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_relation_holds_for_another_implementation(relation: str) -> None:
    """And so it is not true of these kernels alone. This one does not say that it repeats: all has to be proved."""
    applied = 0

    @settings(settings.get_profile("ci"), phases=(Phase.generate,), max_examples=20)
    @given(cases(limits=SMALL))
    def holds(case: Case) -> None:
        nonlocal applied
        verdict = relate(relation, case, IMPLEMENTATION, CPU)
        applied += verdict.status is Status.PASSED
        assert verdict.status is not Status.FAILED, verdict.findings

    holds()
    assert applied >= 20 / 3


ONE = Case((Table(4, 3),), (0,), (Batch((((0, 1), (2, 3, 3)),)),), (0, 0))


@pytest.mark.parametrize(
    ("numbers", "terms", "is_exact"),
    [
        ((3.0, -5.0), 1_000_000, True),
        ((3.0, -5.0), 2_000_000, False),  # 10 million: more than 2 ** 23
        ((3.0, 0.1), 2, False),
        ((3.0, 0.1), 1, True),  # no sum
        ((0.0, 0.0), 1_000_000, True),
        ((3.0, torch.inf, torch.nan), 5, True),
        ((), 5, True),
    ],
)
def test_what_is_proved_exact(numbers: tuple[float, ...], terms: int, is_exact: bool) -> None:
    assert exact(terms, torch.tensor(numbers)) == is_exact


def test_numbers_count_together() -> None:
    small = torch.tensor([2.0**-10, 1.0])
    assert exact(2, small, torch.tensor([2.0**-10, 1.0]))
    assert not exact(2, small, small, small)


@pytest.mark.parametrize(
    ("change", "relation", "reason"),
    [
        (lambda case: replace(case, batches=(Batch((((0,), (2,)),)),)), "ids", "does not apply"),
        (lambda case: replace(case, indices_dtype="int64", batches=(Batch((((2**40,),),)),)), "integers", "not apply"),
        (lambda case: replace(case, batches=(Batch((((9,),),)),)), "rows", "does not apply"),
        (
            lambda case: replace(case, batches=(replace(case.batches[0], offsets_edits=((1, 9),)),)),
            "samples",
            "not apply",
        ),
        (
            lambda case: replace(
                case, values=Values(weight_bits=23, grad_bits=23), optimizer=Optimizer("EXACT_ADAGRAD")
            ),
            "ids",
            "nothing was proved to be exact",
        ),
    ],
)
def test_what_is_not_compared_is_not_passed(change: Callable[[Case], Case], relation: str, reason: str) -> None:
    assert relate(relation, ONE, IMPLEMENTATION, CPU).status is Status.PASSED
    verdict = relate(relation, change(ONE), IMPLEMENTATION, CPU)
    assert verdict.status is Status.NOT_CHECKED
    assert reason in verdict.reason


class OtherwiseTheSecondTime(TbeKernels):
    """Every other run, weights come out a little larger, as where a GPU adds up the columns in another order."""

    runs = 0

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        trace = super().run(case, routing, CPU)
        self.runs += 1
        for step in trace.steps:
            if self.runs % 2 == 0 and isinstance(step, Backward):
                step.weights = [torch.nextafter(weights, torch.tensor(torch.inf)) for weights in step.weights]
        return trace


@pytest.mark.parametrize(
    ("optimizer", "relation", "device", "status"),
    [
        (Optimizer("EXACT_SGD"), "layout", "cuda", "failed"),  # adds up no columns
        (Optimizer("EXACT_ROWWISE_ADAGRAD"), "layout", "cuda", "failed"),  # adds up exact squares
        (Optimizer("EXACT_ROWWISE_ADAGRAD", max_norm=1.0), "layout", "cuda", "passed"),
        (Optimizer("LAMB"), "layout", "cuda", "passed"),
        (Optimizer("LAMB"), "layout", "cpu", "failed"),
        (Optimizer("LAMB"), "twice", "cuda", "failed"),  # the same instructions
    ],
)
def test_a_gpu_may_add_up_columns_in_another_order(
    optimizer: Optimizer, relation: str, device: str, status: str
) -> None:
    case = replace(
        ONE,
        optimizer=optimizer,
        batches=(replace(ONE.batches[0], grad_layout="transposed"),),
        routing={"long_run_merge": "ordered"},
    )
    verdict = relate(relation, case, OtherwiseTheSecondTime(), torch.device(device))
    assert verdict.status == status, (verdict.reason, verdict.findings)


def test_only_merges_that_repeat_repeat_and_whatever_other_knobs_say() -> None:
    """A case that gets small may get knobs that the kernels refuse; to refuse them is the run's business."""
    routings = [{"long_run_merge": merge, "gather_width": 3} for merge in ("ordered", "atomic")]
    assert [TbeKernels().repeats(ONE, routing, torch.device("cuda")) for routing in routings] == [True, False]


@settings(settings.get_profile("ci"), phases=(Phase.generate,), max_examples=30)
@given(cases(limits=SMALL))
def test_a_case_that_carries_its_numbers_is_the_same_case(case: Case) -> None:
    """Taken apart and put together again, the judge takes one for the other."""
    pieces = take_apart(case)
    if pieces is None:
        return
    again = put_together(pieces, pieces.tables, pieces.batches)
    assert isinstance(again.values, Carried)
    assert again != put_together(pieces, pieces.tables, pieces.batches)

    class First(type(IMPLEMENTATION)):  # type: ignore[misc]
        """Runs the case itself, whatever it is asked to run."""

        def run(self, other: Case, routing: object, device: torch.device) -> object:
            return super().run(case, {}, device)

    assert check(again, First(), CPU, Sweep.OWN).status is Status.PASSED


def test_replay_takes_a_relation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = ["--impl", "oracles.adapters.torch_reference:IMPLEMENTATION"]
    assert main(["replay", "empty-bags-and-duplicates-mean", *reference, "--relation", "samples"]) == 0
    assert main(["replay", "no-lookups", *reference, "--relation", "colour"]) == 2
    assert "expected one of samples, ids" in capsys.readouterr().err
