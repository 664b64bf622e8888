"""`python -m corpus show`: it says what is in a case, and something else if something else is in it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from corpus.__main__ import main
from corpus.case import Batch, Case, Optimizer, Sampled, Table, Values
from corpus.store import StoredCase, save, stored_cases, to_json
from oracles.adapters.routes import look_at
from oracles.contract import run_lengths
from oracles.show.bag_boxes import MOST_BOXES, strip
from oracles.show.lookups import entries, grouped, ranges
from oracles.show.show import describe
from strategies.cases import cases

#: Two features on one table and one on another: an empty bag, rows looked up 1, 2 and 3 times.
BASE = Case(
    tables=(Table(8, 4), Table(5, 2)),
    feature_table_map=(0, 0, 1),
    batches=(Batch(features=(((), (7, 7, 7)), ((1, 2), (2,)), ((0,), (4,)))),),
    order=(0, 0),
)


def shown(case: Case) -> str:
    """What is said about a case, a line break being a space."""
    return " ".join(describe(StoredCase(case, "why it is kept", Path("corpus/inbox/some.json"))).split())


def test_every_stored_case_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show"]) == 0
    text = capsys.readouterr().out
    for stored in stored_cases():
        assert f"{stored.id}\n  {stored.note[:40]}" in text
        assert f"python -m corpus replay corpus/cases/{stored.id}.json" in text


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(case=cases())
def test_every_drawn_case_can_be_shown(case: Case) -> None:
    lines = describe(StoredCase(case, "", Path("some.json"))).splitlines()
    assert max(map(len, lines)) <= 160
    for k in range(len(case.batches)):
        look = look_at(case, k)
        assert look is not None
        assert look.rows_by_length == Counter(run_lengths(case, k))
        # Each row is looked up as often as there are lookups of it.
        assert Counter(look.run_of_each[look.effective.ids >= 0].tolist()) == {
            length: length * rows for length, rows in look.rows_by_length.items()
        }


def test_the_base_case_is_shown() -> None:
    text = shown(BASE)
    for fact in (
        "why it is kept",
        "t0: 8 rows x 4, float32, features f0-1 t1: 5 rows x 2, float32, feature f2",
        "optimizer EXACT_SGD values exact: weights of 7 bits, gradients of 3, seed 0",
        "routing by default long runs from 256 lookups up, in chunks of 256",
        "steps forward 0, backward 0",
        "batch 0 6 bags, 1 of them empty, 8 lookups, no per-sample weights, gradient contiguous",
        "f0 [] [7 x 3] f1 [1, 2] [2] f2 [0] [4]",
        "1 x 3 short run 2 x 1 short run 3 x 1 short run",
        "python -m corpus replay",
    ):
        assert fact in text


def change(**changes: Any) -> Case:
    """The base case with fields of its batch, or of its own, changed."""
    own = {name: value for name, value in changes.items() if name in Case.__dataclass_fields__}
    rest = {name: value for name, value in changes.items() if name not in own}
    return replace(BASE, batches=(replace(BASE.batches[0], **rest),), **own)


ONE = {"tables": (Table(8, 64),), "feature_table_map": (0,)}
SAMPLES = Sampled(samples=10**6, mean_length=10**6, exponent=1.5, seed=3)
RANKS = ((1, 1), (2, 0), (0, 2))
FEW = (((), (7, 7, 7)), ((1, 2), (2,)))

FACTS: list[tuple[Case, str]] = [
    # Bags and ids.
    (change(features=(((), ()), *BASE.batches[0].features[1:])), "2 of them empty"),
    (change(features=(((),) * 3, ((),) * 3, ((),) * 3)), "f0-2 3 * []"),
    (change(features=((), (), ())), "f0-2 no bags"),
    (change(features=(*FEW, (((3, 4096),), (4,)))), "f2 [3 x 4096] [4]"),
    (change(features=(*FEW, ((-1,), (4,)))), "f2 [(-1)] [4] (-1) is pruned"),
    (change(features=(*FEW, ((5,), (4,)))), "f2 [5!] [4] ! is not in the table: counted and read as row 0"),
    (change(features=(*FEW, ((5,), (4,)))), "check counts 1 warning"),
    (change(features=(*FEW, ((5,), (4,))), bounds_check_mode="IGNORE"), "! is not in the table: read as row 0"),
    (
        change(features=(*FEW, ((5,), (4,))), bounds_check_mode="FATAL"),
        "check refuses indices[6] = 5, feature 2, sample 0",
    ),
    (change(features=(*FEW, (((4, 2), 4, (3, 1)), ()))), "f2 [4 x 3, 3] []"),
    # How the batch is passed.
    (change(offsets_edits=((2, 0),)), "edited offsets[2] = 0 instead of 3; repaired, bags of 0 0 5 1 1 1 lookups"),
    (change(psw="given"), "per-sample weights given, gradient"),
    (change(psw="trained"), "per-sample weights trained, gradient"),
    (change(psw="trained", feature_requires_grad=(1, 0, 0)), "per-sample weights trained but for f1-2, gradient"),
    (change(grad_layout="transposed"), "gradient transposed"),
    (change(input_layouts=(("indices", "strided"),)), "gradient contiguous, indices strided"),
    (change(learning_rate=0.5), "learning rate 0.5 from its backward on"),
    (change(batch_size_per_feature_per_rank=RANKS), "variable, bags by rank: f0 1 + 1; f1 2 + 0; f2 0 + 2"),
    (change(batch_size_per_feature_per_rank=RANKS), "f0 [] | [7 x 3] f1 [1, 2] [2] | no bags"),
    # Runs and where they go.
    (change(routing={"long_run_threshold": 3}), "2 x 1 short run 3 x 1 long run, auto merge, 1 chunks"),
    (change(routing={"long_run_threshold": 4}), "(default 256) long runs from 4 lookups up"),
    (change(routing={"long_run_threshold": 2, "chunk_size": 2}), "2 x 1 long run, auto merge, 1 chunks 3 x 1 long run"),
    (change(routing={"long_run_threshold": 2, "chunk_size": 2}), "auto merge, 2 chunks"),
    (change(routing={"long_run_threshold": 3, "long_run_merge": "fused"}), "long run, fused merge, 1 chunks"),
    (change(routing={"long_run_threshold": 3}), "long_run_threshold 3 (default 256) long runs from 3 lookups up"),
    (change(routing={"colour": 3}), "routing colour 3, not of tbe_kernels (knobs: there is no knob 'colour'"),
    (change(routing={"colour": 3}), "3 x 1 not known"),
    (change(order=(0,)), "runs no backward"),
    (change(order=()), "steps none, never batch 0"),
    (
        change(features=(((3, 4),),), **ONE, weights_dtype="float16", routing={"small_table": "always"}),
        "small table, not",
    ),
    (change(features=((((3, 64),),),), **ONE, weights_dtype="float16"), "64 x 1 counts of the small table, not runs"),
    # Large ones.
    (
        change(features=(SAMPLES,), **ONE),
        "f0 sampled: 1000000 bags of 0 to 2000000 lookups, ids Zipf with exponent 1.5",
    ),
    (change(features=(SAMPLES,), **ONE), "runs too many lookups to count them here"),
    (change(features=(Sampled(9, 5),), **ONE), "ids uniform over 8 rows, seed 0"),
    (change(features=(tuple((i,) * 2 for i in range(8)) * 99,), **ONE), "lines more"),
    # The rest of the case.
    (change(tables=(Table(8, 4), Table(5, 2), Table(1, 1), Table(1, 1))), "t2-3: 1 row x 1 each, float32, no feature"),
    (change(feature_table_map=(1, 0, 0), features=(((0,),), ((1,),), ((2,),))), "t1: 5 rows x 2, float32, feature f0"),
    (change(optimizer=Optimizer("ADAM", eps=0.25)), "optimizer ADAM, eps 0.25 values"),
    (change(stochastic_rounding=True, rounding_seed=5), "rounding stochastic, seed 5"),
    (change(values=Values("general", spread=24, specials=True)), "within 24 binary orders of 1, infinities and NaNs"),
    (change(values=Values(scale=-3, zero_rows=True, largest=True)), "times 2**-3, the largest fp16 numbers among"),
    (change(psw="given", values=Values(weight_bits=1)), "weights of 1 bit, gradients of 3, per-sample weights of 2"),
    (change(schedule=(0, 1, 0)), "schedule 0 1 0"),
    (change(pooling_mode="MEAN", output_dtype="float16"), "pooling MEAN, output float16"),
    (change(indices_dtype="int32", bounds_check_mode="NONE"), "ids int32, offsets int64, bounds check NONE"),
]


@pytest.mark.parametrize(("case", "fact"), FACTS, ids=[fact for _, fact in FACTS])
def test_a_fact_is_said_where_it_holds_and_only_there(case: Case, fact: str) -> None:
    assert fact in shown(case)
    assert fact not in shown(BASE)


def test_ids_in_a_row_are_joined_and_numbers_are_ranges() -> None:
    assert list(entries((7, (7, 4), 1, (2, 0), 1, 7))) == [(7, 5), (1, 2), (7, 1)]
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert ranges([]) == ""
    assert grouped([3, 1, 3], 2) == [(1, 1), (3, 3)]
    # Many lengths: within powers of two, and never across the threshold.
    assert grouped(range(1, 41), 20) == [(1, 1), (2, 3), (4, 7), (8, 15), (16, 19), (20, 31), (32, 40)]


def test_what_is_no_case_ends_in_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "no-such-case"]) == 2
    assert "neither a file nor" in capsys.readouterr().err
    assert main(["show", str(tmp_path)]) == 2
    assert "no cases in" in capsys.readouterr().err

    (tmp_path / "bad.json").write_text("{")
    edited = to_json(change(offsets_edits=((2, 77),)), "an edit behind the last offset")
    (tmp_path / "edit.json").write_text(edited.replace("[[2, 77]]", "[[99, 77]]"))
    large = to_json(change(features=(((77,),),) * 3), "an id that int64 does not hold")
    (tmp_path / "id.json").write_text(large.replace("77", str(2**70)))
    save(BASE, "the one good case", tmp_path, "good")
    assert main(["show", str(tmp_path)]) == 2
    text = capsys.readouterr().out
    for name in ("bad", "edit", "id"):
        assert f"ERROR  {tmp_path / name}.json: " in text
    assert "the one good case" in text


def test_without_matplotlib_plot_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "oracles.show.picture", raising=False)
    assert main(["show", "no-lookups", "--plot", str(tmp_path / "no.png")]) == 2
    assert 'pip install -e ".[plots]"' in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["show", "no-lookups"]) == 0


def test_a_picture_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for name in ("empty-bags-and-duplicates-sum", "no-samples", "small-table-spread-and-specials"):
        file = tmp_path / f"{name}.png"
        assert main(["show", name, "--plot", str(file)]) == 0
        assert file.read_bytes().startswith(b"\x89PNG")
        assert f"drawn     {file}" in capsys.readouterr().out
    assert main(["show", "no-samples", "--plot", str(tmp_path / "no.colour")]) == 2
    assert "Format 'colour' is not supported" in capsys.readouterr().err
    assert main(["show", "no-samples", "no-lookups", "--plot", str(tmp_path / "two.png")]) == 2
    assert "--plot draws one case, and 2 are named" in capsys.readouterr().err


def test_a_strip_has_a_box_for_each_row_and_each_empty_bag() -> None:
    case = change(features=(((), ((7, 3),)), ((7, 9), (-1,)), ((0,), (4,))))
    boxes = [[(box.kind, box.label, box.run) for box in strip(case, 0, f, look_at(case, 0)).boxes] for f in range(2)]
    # Row 7 is looked up four times by both features; 9 is read as row 0.
    assert boxes[0] == [("empty bag", "", 0), ("row", "7 x 3", 4)]
    assert boxes[1] == [("row", "7", 4), ("id not in its table", "9", 1), ("pruned id", "-1", 0)]

    many = change(features=(((0, 1) * MOST_BOXES, (1,), (2,)),), **ONE)
    drawn = strip(many, 0, 0, look_at(many, 0))
    assert (len(drawn.boxes), drawn.remark) == (MOST_BOXES, "and 2 bags more")
    large = change(features=(SAMPLES,), **ONE)
    assert strip(large, 0, 0, look_at(large, 0)).remark.startswith("sampled: 1000000 bags")


def test_the_histogram_has_its_lines_between_the_lengths_that_they_divide(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from oracles.show.picture import picture

    def lines(**routing: Any) -> dict[str, list[float]]:
        figure = picture(StoredCase(change(routing=routing), "", tmp_path / "x.json"))
        found: dict[str, list[float]] = {"red": [], "grey": []}
        for line in figure.axes[1].lines:
            found[str(line.get_color())].append(round(float(np.asarray(line.get_xdata())[0]), 1))
        return found

    # Runs of 1, 2 and 3 lookups stand at 0, 1 and 2.
    assert lines(long_run_threshold=3) == {"red": [1.5], "grey": []}
    assert lines(long_run_threshold=2, chunk_size=1) == {"red": [0.5], "grey": [1.5]}
