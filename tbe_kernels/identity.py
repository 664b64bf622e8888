"""What a checkpoint has to have in common with the module that takes it, as a tensor that travels in the state dict.

Flat tensors of the same length fit whatever lies in them: tables in another order, other rows of the same total, the
moments of another optimizer. So a state dict says what it is of, and the rest is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tbe_kernels.optimizers import OptimType
from tbe_kernels.spec import PoolingMode, TableLayout, WeightDecayMode


def identity_of(
    layout: TableLayout, pooling_mode: PoolingMode, optimizer: OptimType, weight_decay_mode: WeightDecayMode
) -> dict[str, Any]:
    """What has to be the same, by the names of the constructor's arguments."""
    return {
        "embedding_specs": [list(spec) for spec in zip(layout.rows, layout.dims, strict=True)],
        "pooling_mode": pooling_mode.name,
        "optimizer": optimizer.name,
        "weight_decay_mode": weight_decay_mode.name,
    }


def as_tensor(identity: Mapping[str, Any]) -> Tensor:
    """uint8 on the host: JSON in UTF-8."""
    return torch.tensor(list(json.dumps(identity).encode()), dtype=torch.uint8, device="cpu")


def differences(mine: Mapping[str, Any], saved: Any) -> list[str]:
    """A text for each name that differs, tables one by one; one text for something that is no identity at all."""
    try:
        theirs = json.loads(bytes(saved.tolist()).decode())
        specs = theirs["embedding_specs"]
    except (AttributeError, TypeError, ValueError, KeyError):
        return [f"expected the identity of a module, got {saved!r}"]
    found = []
    if len(specs) != len(mine["embedding_specs"]):
        found.append(f"embedding_specs: {len(mine['embedding_specs'])} tables here, {len(specs)} in the checkpoint")
    else:
        for t, (here, there) in enumerate(zip(mine["embedding_specs"], specs, strict=True)):
            if here != there:
                found.append(f"embedding_specs[{t}]: {tuple(here)} here, {tuple(there)} in the checkpoint")
    for name, here in mine.items():
        if name != "embedding_specs" and here != theirs.get(name):
            found.append(f"{name}: {here} here, {theirs.get(name)} in the checkpoint")
    return found
