"""The fused merge on a real GPU: millions of rows of two chunks each, not one wrong bit; without its barrier or with a
relaxed count, wrong rows. `python -m pytest tests/kernels/test_fused_merge.py --device cuda`
"""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

import tbe_kernels
from tests.mutants.plant import Edit, plant

pytestmark = pytest.mark.needs_device("cuda")

ROWS_IN_ALL = 8 * 2**20
ELEMENTS = 2**28  # of one table
SAMPLES = 1024
FILE = "backward/long_run_fused.py"
#: A program that walks several chunks reuses shared memory, for which Triton puts a barrier of its own before the
#: count. One chunk a program takes that accident away.
ONE_CHUNK = Edit(
    FILE,
    "    for chunk in range(first_chunk + tl.program_id(0), end_chunk, tl.num_programs(0)):",
    "    chunk = first_chunk + tl.program_id(0)\n    if chunk < end_chunk:",
)
NO_BARRIER = Edit(FILE, "        tl.debug_barrier()\n        before = tl.atomic_add", "        before = tl.atomic_add")
RELAXED = Edit(FILE, 'sem="acq_rel"', 'sem="relaxed"')
#: What makes the last program see every sum. Without either, some row comes out wrong on an H200.
BROKEN = {"no barrier before the count": (ONE_CHUNK, NO_BARRIER), "a relaxed count": (ONE_CHUNK, RELAXED)}


def wrong_rows(
    package: ModuleType, D: int, num_warps: int, device: torch.device, rows_in_all: int = ROWS_IN_ALL, enough: int = 100
) -> int:
    """Of `rows_in_all` rows that two lookups each touch, in two chunks of one: how many come out wrong, up to `enough`.

    Exact: gradients are small integers, weights start at zero, SGD with a learning rate of 1.
    """
    rows = ELEMENTS // D
    module = package.TableBatchedEmbeddingBags(
        [(rows, D)],
        learning_rate=1.0,
        bounds_check_mode=package.BoundsCheckMode.NONE,
        config={
            "long_run_merge": "fused",
            "long_run_threshold": 2,
            "chunk_size": 1,
            "num_warps": num_warps,
            "long_run_programs": 2 * rows,
            # One gradient row at a time, so that no exchange between warps keeps them in step before they add.
            "backward_gather_width": 1,
        },
        device=device,
    )
    (weights,) = module.split_embedding_weights()
    offsets = torch.linspace(0, 2 * rows, SAMPLES + 1, device=device).round().to(torch.int64)
    bags = torch.repeat_interleave(torch.arange(SAMPLES, device=device), offsets.diff())
    wrong = 0
    for number in range(rows_in_all // rows):
        if wrong >= enough:
            break
        torch.manual_seed(number)
        indices = torch.cat((torch.randperm(rows, device=device), torch.randperm(rows, device=device)))
        gradient = torch.randint(1, 100, (SAMPLES, D), device=device).float()
        weights.zero_()
        module(indices, offsets).backward(gradient)
        bag_of = torch.stack((bags[:rows][indices[:rows].argsort()], bags[rows:][indices[rows:].argsort()]))
        for part in torch.arange(rows, device=device).split(2**14):
            expected = -(gradient[bag_of[0, part]] + gradient[bag_of[1, part]])
            wrong += int((weights[part] != expected).any(dim=1).sum())
    return wrong


@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("D", [1024, 4096])
@pytest.mark.parametrize("edits", [(), (ONE_CHUNK,)], ids=["as it is", "one chunk a program"])
def test_every_row_of_two_chunks_is_right(
    edits: tuple[Edit, ...], D: int, num_warps: int, device: torch.device
) -> None:
    package = plant(*edits) if edits else tbe_kernels
    assert wrong_rows(package, D, num_warps, device) == 0


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_count_is_seen(fault: str, device: torch.device) -> None:
    """The control: the test above can fail. Which shape shows it is up to the GPU, so all are tried; widths that
    nothing divides, since what is loaded by vectors goes through shared memory to the adds, with barriers."""
    broken = plant(*BROKEN[fault])
    wrong = {}
    for shape in ((1023, 4), (1023, 8), (4095, 4), (4095, 8)):
        wrong[shape] = wrong_rows(broken, *shape, device, 8 * ROWS_IN_ALL, enough=1)
    print(f"\n{fault}: wrong rows by (D, warps): {wrong}")
    assert any(wrong.values())


@pytest.mark.parametrize("D", [64, 1024])
def test_one_row_of_thousands_of_chunks(D: int, device: torch.device) -> None:
    lookups = 20_000
    module = tbe_kernels.TableBatchedEmbeddingBags(
        [(3, D)],
        learning_rate=1.0,
        config={"long_run_merge": "fused", "chunk_size": 3, "long_run_threshold": 2},
        device=device,
    )
    (weights,) = module.split_embedding_weights()
    offsets = torch.arange(0, lookups + 1, 100, device=device)
    for number in range(20):
        weights.zero_()
        indices = torch.full((lookups,), number % 3, device=device)
        gradient = torch.randint(1, 5, (len(offsets) - 1, D), device=device).float()
        module(indices, offsets).backward(gradient)
        expected = torch.zeros_like(weights)
        expected[number % 3] = -100 * gradient.sum(dim=0)
        assert torch.equal(weights, expected)


def test_two_streams_have_workspaces_of_their_own(device: torch.device) -> None:
    """Two modules train at once, each on a stream of its own, from clean sums to clean sums."""
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    config = {"long_run_merge": "fused", "chunk_size": 1, "long_run_threshold": 2}
    modules = [
        tbe_kernels.TableBatchedEmbeddingBags([(5000, 64)], learning_rate=1.0, config=config, device=device)
        for _ in streams
    ]
    indices = torch.arange(20_000, device=device) % 5000
    offsets = torch.arange(0, 20_001, 4, device=device)
    gradient = torch.ones(5000, 64, device=device)
    for module in modules:
        module.split_embedding_weights()[0].zero_()
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, module in zip(streams, modules, strict=True):
            with torch.cuda.stream(stream):
                module(indices, offsets).backward(gradient)
    torch.cuda.synchronize()
    for module in modules:
        assert (module.split_embedding_weights()[0] == -4 * 50).all()
        for sums, counters in module.tables.fused_workspaces.values():
            assert not sums.any()
            assert not counters.any()


def test_one_module_on_two_streams(device: torch.device) -> None:
    """Steps that follow each other on different streams: each stream keeps a workspace."""
    module = tbe_kernels.TableBatchedEmbeddingBags(
        [(500, 32)],
        learning_rate=1.0,
        config={"long_run_merge": "fused", "chunk_size": 1, "long_run_threshold": 2},
        device=device,
    )
    module.split_embedding_weights()[0].zero_()
    indices, offsets = torch.arange(2000, device=device) % 500, torch.arange(0, 2001, 4, device=device)
    gradient = torch.ones(500, 32, device=device)
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    done = torch.cuda.Event()
    done.record()
    for number in range(20):
        with torch.cuda.stream(streams[number % 2]):
            done.wait()
            module(indices, offsets).backward(gradient)
            done = torch.cuda.Event()
            done.record()
    torch.cuda.synchronize()
    assert (module.split_embedding_weights()[0] == -4 * 20).all()
    assert len(module.tables.fused_workspaces) == 2
