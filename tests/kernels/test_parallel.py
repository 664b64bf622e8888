"""Tables under data parallelism, in two processes: replicas are refused, tables of each rank's own are left alone.

Each situation is of `tests/programs/ranks.py`. Those that are unwatched have the refusal taken out: what they then come
to is what the other tests would see if it, or leaving the tables out, did nothing.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.multiprocessing

import tbe_kernels as tbe
from tests.programs import ranks
from tests.programs.ranks import Noted

pytestmark = pytest.mark.needs_device("cpu")  # gloo; nothing here depends on where kernels run


def make() -> tbe.TableBatchedEmbeddingBags:
    module = tbe.TableBatchedEmbeddingBags([(4, 3)], optimizer=tbe.OptimType.ADAM, learning_rate=1.0)
    module.init_embedding_weights_uniform(0.0, 1.0)
    return module


@pytest.fixture(scope="module")
def spawned() -> tbe.TableBatchedEmbeddingBags:
    """A module that is pickled into the processes, which share its memory, as any module's."""
    return make()


@pytest.fixture(scope="module")
def results(spawned: tbe.TableBatchedEmbeddingBags, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Noted]]:
    """What each rank noted, by situation."""
    folder = tmp_path_factory.mktemp("ranks")
    spawned.twin = copy.deepcopy(spawned)  # a submodule: it travels too, and is not touched there
    torch.multiprocessing.spawn(ranks.run, (str(folder), spawned), nprocs=ranks.WORLD)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(ranks.WORLD)]


@pytest.mark.parametrize(
    ("situation", "told"),
    [
        (
            "DDP",
            ("bags.weights, bags.bounds_check_warning,", "bags.iter", "bags.momentum2", "model_parallel_names(model)"),
        ),
        ("DDP without the rows alone", ("bags.bounds_check_warning, bags.rounding_seed, bags.iter", "bags.momentum1")),
        ("FSDP2", ("weights: fully_shard has put a copy", "ignored_params={tables.weights, ...}")),
    ],
)
def test_replicas_are_refused_and_told_how_to_leave_them_out(
    situation: str, told: tuple[str, ...], results: list[dict[str, Noted]]
) -> None:
    for of_rank in results:
        refused = of_rank[situation].refused or "nothing"
        assert [words for words in told if words not in refused] == []
    assert ("bags.weights," in (results[0][situation].refused or "")) == (situation == "DDP")


@pytest.mark.parametrize(
    "situation", ["DDP without the tables", "FSDP2 without the tables", "FSDP2, then loaded", "DDP of frozen tables"]
)
def test_tables_that_are_left_out_are_what_a_process_alone_makes_of_them(
    situation: str, results: list[dict[str, Noted]]
) -> None:
    """Rows, moments and `iter`, to the bit, after three steps with AdamW over everything; the dense layer is shared."""
    frozen = situation == "DDP of frozen tables"
    for of_rank in results:
        noted = of_rank[situation]
        assert noted.refused is None
        assert int(noted.tables["iter"]) == (0 if frozen else ranks.STEPS)
        if not frozen:  # a replica's rows are rank 0's
            assert [name for name in noted.twin if not torch.equal(noted.tables[name], noted.twin[name])] == []
    first, second = (of_rank[situation] for of_rank in results)
    assert first.dense is not None
    assert second.dense is not None
    assert torch.equal(first.dense, second.dense)
    assert torch.equal(first.tables["weights"], second.tables["weights"]) == frozen


@pytest.mark.parametrize(
    ("situation", "differ"),
    [
        ("unwatched DDP", {"weights", "momentum1"}),
        ("unwatched DDP without the rows alone", {"momentum1", "momentum2", "bounds_check_warning"}),
        ("unwatched FSDP2", {"weights"}),
    ],
)
def test_what_the_refusal_is_for(situation: str, differ: set[str], results: list[dict[str, Noted]]) -> None:
    """Without it, ranks go wrong in silence; which the tests above would see."""
    noted = results[1][situation]
    assert noted.refused is None
    wrong = {name for name in noted.twin if not torch.equal(noted.tables[name], noted.twin[name])}
    assert differ <= wrong


def test_an_outer_optimizer_would_move_rows_that_no_batch_touches(results: list[dict[str, Noted]]) -> None:
    """Row 7 of table 0, on rank 0, whose rows nobody overwrites: left alone, or decayed by zeros in `weights.grad`."""
    row = slice(7 * 3, 8 * 3)
    alone = results[0]["DDP without the tables"]
    assert torch.equal(alone.tables["weights"][row], ranks.Model(0).bags.weights.detach()[row])
    unwatched = results[0]["unwatched DDP"]
    assert not torch.equal(unwatched.tables["weights"][row], unwatched.twin["weights"][row])


def test_a_module_works_in_a_spawned_process(
    spawned: tbe.TableBatchedEmbeddingBags, results: list[dict[str, Noted]]
) -> None:
    """It is pickled into it; its tensors are shared, so what is trained there is trained here, as with any module."""
    twin = spawned.twin
    assert isinstance(twin, tbe.TableBatchedEmbeddingBags)
    twin(torch.tensor([1, 3]), torch.tensor([0, 2])).sum().backward()
    there = results[0]["spawned"].tables
    for name, expected in twin.state_dict().items():
        assert torch.equal(there[name], expected), name
        assert torch.equal(spawned.state_dict()[name], expected), name
    assert int(twin.iter) == 1


def test_a_replica_of_data_parallel_is_refused() -> None:
    """`nn.DataParallel` needs two GPUs; this is what it makes of a module on each."""
    module = make()
    replica = module._replicate_for_data_parallel()
    replica.weights = module.weights.clone()
    with pytest.raises(RuntimeError, match="weights: DataParallel has put a copy in their place"):
        replica(torch.tensor([1, 3]), torch.tensor([0, 2]))


def test_names_of_tables_in_a_model() -> None:
    module = make()
    names = list(module.tables.tensors())
    assert tbe.model_parallel_names(module) == names
    model = torch.nn.ModuleDict({"dense": torch.nn.Linear(2, 2), "deep": torch.nn.Sequential(module)})
    assert tbe.model_parallel_names(model) == [f"deep.0.{name}" for name in names]
