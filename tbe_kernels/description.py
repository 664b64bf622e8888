"""What does not change about a set of tables, as a string: operators take tensors, numbers and strings alone.

Being the whole of it, the string also says all in a graph that is saved and loaded into another process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch

from tbe_kernels.config import KernelConfig
from tbe_kernels.optimizers import OptimType
from tbe_kernels.spec import BoundsCheckMode, PoolingMode, TableLayout, WeightDecayMode

_ENUMS = {
    "pooling_mode": PoolingMode,
    "bounds_check_mode": BoundsCheckMode,
    "optimizer": OptimType,
    "weight_decay_mode": WeightDecayMode,
}


def describe(parts: Mapping[str, Any]) -> str:
    """Parts by name as JSON: `layout`, `config`, `output_dtype`, the enums above, and whatever JSON knows."""
    plain = dict(parts)
    plain["layout"], plain["config"] = asdict(parts["layout"]), asdict(parts["config"])
    plain["output_dtype"] = str(parts["output_dtype"]).removeprefix("torch.")
    for name in _ENUMS:
        plain[name] = parts[name].name
    return json.dumps(plain)


@lru_cache(maxsize=256)
def parts_of(description: str) -> Mapping[str, Any]:
    """The parts again. Not to be changed."""
    parts = json.loads(description)
    layout = parts["layout"]
    for name in ("rows", "dims", "feature_table_map"):
        layout[name] = tuple(layout[name])
    parts["layout"] = TableLayout(**layout)
    parts["config"] = KernelConfig(**parts["config"])
    parts["output_dtype"] = getattr(torch, parts["output_dtype"])
    for name, kind in _ENUMS.items():
        parts[name] = kind[parts[name]]
    return parts
