"""Every routing knob of the kernels, with its default per target and the values it may take.

A knob changes how a batch is worked through, never what comes out (`accumulate_fp64` apart, which says how wide the
forward adds). Nothing else in `tbe_kernels` holds a threshold or a width of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tbe_kernels.knobs import BACKWARD, BOTH, FORWARD, SMALL_TABLE, knob, rows

TARGETS = ("cuda", "hip", "interpreter")
#: What rows are gathered at once, and how wide tiles are.
WIDTHS = (1, 2, 4, 8, 16, 32)
COLUMNS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
#: How many programs small cases are spread over.
FEW = (1, 2, 5)


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """How the kernels split their work: a row for each knob (`tbe_kernels.knobs`).

    Defaults differ by target: an interpreter wants few programs, since each costs milliseconds. Raises ValueError for a
    value that a knob does not take.
    """

    # forward: row loads in flight
    gather_width: int = knob(
        16, FORWARD, menu=WIDTHS, gpu=(4, 16), turns=(4, 1, 2, 8, 32, 16), constant=True, axis=(16, 4, 1)
    )
    # the forward judges ids on the way, instead of a launch of its own
    fused_bounds_check: bool = knob(False, FORWARD, menu=(False, True), turns=(False, True), axis=(False, True))
    # rows narrower than this share one block size
    min_block_d: int = knob(
        16, FORWARD, menu=COLUMNS, seldom=True, gpu=(16, 128), turns=(1, 16, 128), constant=True, moves_tiles=True
    )
    # forward: columns of one tile; wider rows take several
    max_block_d: int = knob(
        2048,
        FORWARD,
        menu=COLUMNS[4:],
        seldom=True,
        gpu=(64, 2048),
        turns=(2048, 16, 64),
        constant=True,
        moves_tiles=True,
    )
    # backward: gradient rows in flight
    backward_gather_width: int = knob(
        8, BACKWARD, menu=WIDTHS, gpu=(2, 8), turns=(2, 1, 4, 32, 8), constant=True, axis=(8, 2, 1)
    )
    # a run of this many lookups, or more, is split
    long_run_threshold: int = knob(256, BACKWARD, drawn=(2, 1, 3, 4, 5, 8, 16, 33, 256))
    # lookups of a long run that one program sums
    chunk_size: int = knob(256, BACKWARD, drawn=(2, 1, 3, 4, 7, 16, 256))
    # how chunk sums meet; see `merge`
    long_run_merge: str = knob(
        "auto", BACKWARD, menu=("auto", "atomic", "ordered", "fused"), axis=("atomic", "ordered", "fused")
    )
    # sort the lookups in the forward; the plan travels with autograd
    hoist_transpose_to_forward: bool = knob(
        False, BACKWARD, menu=(False, True), turns=(False, True, True), axis=(False, True)
    )
    # forward: bags that one program pools, one after the other
    bags_per_program: int = knob(4, FORWARD, drawn=(1, 2, 3, 4), turns=(2, 1, 3, 8))
    # at most so many programs walk the short runs
    short_run_programs: int = knob(24576, BACKWARD, drawn=FEW, turns=(1, 3), targets={"interpreter": 2})
    # at most so many walk the chunks, and the long rows
    long_run_programs: int = knob(4096, BACKWARD, drawn=FEW, turns=(3, 1), targets={"interpreter": 2})
    # bounds check: programs a feature
    check_programs: int = knob(64, FORWARD, drawn=(1, 2, 3), turns=(1, 3), targets={"interpreter": 1})
    # forward: at most so many programs a bucket walk the bags
    forward_programs: int = knob(2**20, FORWARD, drawn=(1024, 1, 2, 3), turns=(1024, 1, 3))
    # forward without pooling: programs a feature
    unpooled_programs: int = knob(256, FORWARD, drawn=(1, 2, 3), turns=(1, 2), targets={"interpreter": 1})
    # offsets, ids or keys that one elementwise step looks at
    block: int = knob(
        1024,
        FORWARD,
        menu=(16, 64, 256, 1024),
        seldom=True,
        gpu=(64, 1024),
        turns=(1024, 16),
        constant=True,
        axis=(1024, 16),
    )
    # warps a program; "auto": one, more for wide rows
    num_warps: int | str = knob(
        "auto",
        BOTH,
        menu=("auto", 1, 2, 4, 8, 16),
        seldom=True,
        gpu=("auto", 4),
        turns=("auto", 4),
        constant=True,
        axis=("auto", 4),
    )
    # most elements of a gathered tile: wide rows gather fewer at once
    tile_elements: int = knob(
        4096,
        BOTH,
        menu=(1024, 2048, 4096, 8192),
        seldom=True,
        gpu=(4096,),
        turns=(4096, 8192, 2048),
        constant=True,
        moves_tiles=True,
    )
    # forward: fp32 rows are added in fp64
    accumulate_fp64: bool = knob(
        True,
        FORWARD,
        menu=(True, False),
        seldom=True,
        turns=(True, True, True, False),
        constant=True,
        axis=(True, False),
    )
    # counts x table: where it pays, never, or wherever it can. Matrix cores of gfx90a take subnormal fp16 numbers for
    # zeros (AMD on the MI200's MFMA); elsewhere not measured.
    small_table: str = knob(
        "auto",
        SMALL_TABLE,
        menu=("auto", "never", "always"),
        turns=("never", "always"),
        axis=("never", "always"),
        targets={"hip": "never"},
    )
    # most rows of a table that is counted. The second turns of both limits let every table in: there a sweep begins to
    # count wherever it can.
    small_table_rows: int = knob(64, SMALL_TABLE, menu=(16, 32, 64), seldom=True, turns=(16, 64, 32), moves_tiles=True)
    # most columns of it
    small_table_columns: int = knob(
        128, SMALL_TABLE, menu=(64, 128), seldom=True, turns=(64, 128, 64), moves_tiles=True
    )
    # it pays from this D up
    small_table_least_columns: int = knob(64, SMALL_TABLE, drawn=(1, 64), seldom=True, turns=(1, 64))
    # and from this expected bag length up
    small_table_bag_length: int = knob(64, SMALL_TABLE, drawn=(1, 4, 64), seldom=True, turns=(1, 64, 4))
    # bags that one product takes
    small_table_bags: int = knob(16, SMALL_TABLE, menu=(16, 32), seldom=True, gpu=(16,), constant=True, axis=(16, 32))
    # ids of a bag that are counted at once
    small_table_window: int = knob(
        256, SMALL_TABLE, menu=(4, 16, 64, 256), seldom=True, gpu=(16, 256), constant=True, axis=(256, 4)
    )
    # at most so many programs walk the bags
    small_table_programs: int = knob(2048, SMALL_TABLE, drawn=FEW, seldom=True)
    # warps of a program that multiplies
    small_table_warps: int = knob(
        4, SMALL_TABLE, menu=(4, 8), seldom=True, gpu=(4,), turns=(4, 8), constant=True, axis=(4, 8)
    )
    # the small table's counts are kept and make the backward
    backward_from_counts: bool = knob(
        True, SMALL_TABLE, menu=(True, False), seldom=True, turns=(False,), axis=(True, False)
    )
    # backward from counts: bags that one product takes
    from_counts_bags: int = knob(
        64, SMALL_TABLE, menu=(16, 32, 64), seldom=True, gpu=(16, 64), constant=True, axis=(64, 16)
    )
    # backward from counts: at most so many partial sums
    from_counts_programs: int = knob(264, SMALL_TABLE, drawn=FEW, seldom=True)

    def __post_init__(self) -> None:
        for name, row in KNOBS.items():
            value = getattr(self, name)
            if not row.takes(value):
                raise ValueError(f"{name}: expected {row.expected()}, got {value!r}")

    @classmethod
    def for_target(cls, target: str, knobs: Mapping[str, object] | None = None) -> KernelConfig:
        """The defaults of `target` ("cuda", "hip" or "interpreter"), with `knobs` on top.

        Raises ValueError for an unknown target, an unknown knob or a value that the knob does not take.
        """
        if target not in TARGETS:
            raise ValueError(f"target: expected one of {', '.join(TARGETS)}, got {target!r}")
        for name in knobs or {}:
            if name not in KNOBS:
                raise ValueError(f"knobs: there is no knob {name!r}; expected some of {', '.join(sorted(KNOBS))}")
        of_target = {name: row.targets[target] for name, row in KNOBS.items() if target in row.targets}
        return cls(**{**of_target, **(knobs or {})})  # type: ignore[arg-type]

    @property
    def merge(self) -> str:
        """The merge of long runs that "auto" stands for now: "ordered" where torch is asked to be deterministic.

        Raises RuntimeError for a merge that torch, asked to be deterministic, forbids; warns if it was asked with
        `warn_only`.
        """
        deterministic = torch.are_deterministic_algorithms_enabled()
        if self.long_run_merge == "auto":
            return "ordered" if deterministic else "atomic"
        if self.long_run_merge != "ordered" and deterministic:
            told = (
                f"long_run_merge={self.long_run_merge!r} adds in no fixed order, which "
                "torch.use_deterministic_algorithms(True) forbids; use 'ordered' or 'auto'"
            )
            if not torch.is_deterministic_algorithms_warn_only_enabled():
                raise RuntimeError(told)
            warnings.warn(told, UserWarning, stacklevel=2)
        return self.long_run_merge

    def forward_block(self, block_d: int) -> int:
        """Columns of a forward tile for rows of a bucket."""
        return min(block_d, self.max_block_d)

    def gather(self, block_d: int) -> int:
        """Rows that one forward step gathers."""
        return max(1, min(self.gather_width, self.tile_elements // self.forward_block(block_d)))

    def backward_gather(self, block_d: int) -> int:
        """Gradient rows that one backward step gathers."""
        return max(1, min(self.backward_gather_width, self.tile_elements // block_d))

    def warps(self, block_d: int) -> int:
        """Warps for tiles of `block_d` columns."""
        return self.num_warps if isinstance(self.num_warps, int) else max(1, min(16, block_d // 512))


#: The row of each knob.
KNOBS = rows(KernelConfig)


def target_of(device: torch.device) -> str:
    """Which of TARGETS a device stands for."""
    if device.type == "cpu":
        return "interpreter"
    return "hip" if torch.version.hip else "cuda"
