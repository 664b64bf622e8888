"""Every routing knob of the kernels, with its default per target and the values it may take.

A knob changes how a batch is worked through, never what comes out (`accumulate_fp64` apart, which says how wide the
forward adds). Nothing else in `tbe_kernels` holds a threshold or a width of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch

#: Values worth trying, by knob. `None` marks a knob that takes any integer from 1 up.
MENUS: dict[str, tuple[object, ...] | None] = {
    "gather_width": (1, 2, 4, 8, 16, 32),
    "bags_per_program": None,
    "forward_programs": None,
    "unpooled_programs": None,
    "fused_bounds_check": (False, True),
    "min_block_d": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
    "max_block_d": (16, 32, 64, 128, 256, 512, 1024, 2048),
    "backward_gather_width": (1, 2, 4, 8, 16, 32),
    "long_run_threshold": None,
    "chunk_size": None,
    "long_run_merge": ("auto", "atomic", "ordered", "fused"),
    "hoist_transpose_to_forward": (False, True),
    "short_run_programs": None,
    "long_run_programs": None,
    "check_programs": None,
    "block": (16, 64, 256, 1024),
    "num_warps": ("auto", 1, 2, 4, 8, 16),
    "tile_elements": (1024, 2048, 4096, 8192),
    "accumulate_fp64": (True, False),
    "small_table": ("auto", "never", "always"),
    "small_table_rows": (16, 32, 64),
    "small_table_columns": (64, 128),
    "small_table_least_columns": None,
    "small_table_bag_length": None,
    "small_table_bags": (16, 32),
    "small_table_window": (4, 16, 64, 256),
    "small_table_programs": None,
    "small_table_warps": (4, 8),
    "backward_from_counts": (True, False),
    "from_counts_bags": (16, 32, 64),
    "from_counts_programs": None,
}

#: What differs from the dataclass defaults, by target. "interpreter" wants few programs, since each costs milliseconds.
TARGETS: dict[str, dict[str, object]] = {
    "cuda": {},
    # Matrix cores of gfx90a take subnormal fp16 numbers for zeros (AMD on the MI200's MFMA); elsewhere not measured.
    "hip": {"small_table": "never"},
    "interpreter": {"short_run_programs": 2, "long_run_programs": 2, "check_programs": 1, "unpooled_programs": 1},
}


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """How the kernels split their work. Raises ValueError for a value that a knob does not take."""

    gather_width: int = 16  # forward: row loads in flight
    bags_per_program: int = 4  # forward: bags that one program pools, one after the other
    forward_programs: int = 2**20  # forward: at most so many programs a bucket walk the bags
    unpooled_programs: int = 256  # forward without pooling: programs a feature
    fused_bounds_check: bool = False  # the forward judges ids on the way, instead of a launch of its own
    min_block_d: int = 16  # rows narrower than this share one block size
    max_block_d: int = 2048  # forward: columns of one tile; wider rows take several
    backward_gather_width: int = 8  # backward: gradient rows in flight
    long_run_threshold: int = 256  # a run of this many lookups, or more, is split
    chunk_size: int = 256  # lookups of a long run that one program sums
    long_run_merge: str = "auto"  # how chunk sums meet; see `merge`
    hoist_transpose_to_forward: bool = False  # sort the lookups in the forward; the plan travels with autograd
    short_run_programs: int = 24576  # at most so many programs walk the short runs
    long_run_programs: int = 4096  # at most so many walk the chunks, and the long rows
    check_programs: int = 64  # bounds check: programs a feature
    block: int = 1024  # offsets, ids or keys that one elementwise step looks at
    num_warps: int | str = "auto"  # warps a program; "auto": one, more for wide rows
    tile_elements: int = 4096  # most elements of a gathered tile: wide rows gather fewer at once
    accumulate_fp64: bool = True  # forward: fp32 rows are added in fp64
    small_table: str = "auto"  # counts x table: where it pays, never, or wherever it can
    small_table_rows: int = 64  # most rows of a table that is counted
    small_table_columns: int = 128  # most columns of it
    small_table_least_columns: int = 64  # it pays from this D up
    small_table_bag_length: int = 64  # and from this expected bag length up
    small_table_bags: int = 16  # bags that one product takes
    small_table_window: int = 256  # ids of a bag that are counted at once
    small_table_programs: int = 2048  # at most so many programs walk the bags
    small_table_warps: int = 4  # warps of a program that multiplies
    backward_from_counts: bool = True  # the small table's counts are kept and make the backward
    from_counts_bags: int = 64  # backward from counts: bags that one product takes
    from_counts_programs: int = 264  # backward from counts: at most so many partial sums

    def __post_init__(self) -> None:
        for knob, menu in MENUS.items():
            value = getattr(self, knob)
            if menu is None:
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise ValueError(f"{knob}: expected an integer from 1 up, got {value!r}")
            elif value not in menu or isinstance(value, bool) != isinstance(menu[0], bool):
                raise ValueError(f"{knob}: expected one of {', '.join(map(repr, menu))}, got {value!r}")

    @classmethod
    def for_target(cls, target: str, knobs: Mapping[str, object] | None = None) -> KernelConfig:
        """The defaults of `target` ("cuda", "hip" or "interpreter"), with `knobs` on top.

        Raises ValueError for an unknown target, an unknown knob or a value that the knob does not take.
        """
        if target not in TARGETS:
            raise ValueError(f"target: expected one of {', '.join(TARGETS)}, got {target!r}")
        known = {field.name for field in dataclasses.fields(cls)}
        for knob in knobs or {}:
            if knob not in known:
                raise ValueError(f"knobs: there is no knob {knob!r}; expected some of {', '.join(sorted(known))}")
        return cls(**{**TARGETS[target], **(knobs or {})})  # type: ignore[arg-type]

    @property
    def merge(self) -> str:
        """The merge of long runs that "auto" stands for now: "ordered" where torch is asked to be deterministic.

        Raises RuntimeError for a merge that torch, asked to be deterministic, forbids.
        """
        deterministic = torch.are_deterministic_algorithms_enabled()
        if self.long_run_merge == "auto":
            return "ordered" if deterministic else "atomic"
        if self.long_run_merge != "ordered" and deterministic:
            raise RuntimeError(
                f"long_run_merge={self.long_run_merge!r} adds in no fixed order, which "
                "torch.use_deterministic_algorithms(True) forbids; use 'ordered' or 'auto'"
            )
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


def target_of(device: torch.device) -> str:
    """Which column of TARGETS a device stands for."""
    if device.type == "cpu":
        return "interpreter"
    return "hip" if torch.version.hip else "cuda"
