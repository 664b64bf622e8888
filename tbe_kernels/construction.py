"""What the constructor of a module is given, checked: a value that is fit for use, or a ValueError that names the
argument."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from ctypes import c_float
from numbers import Integral

import torch

from tbe_kernels.optimizers import checked_number

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
#: FBGEMM's default, as those in `tbe_kernels.optimizers.DEFAULTS`.
MAX_GRADIENT = 1.0


class EmbeddingLocation(enum.Enum):
    """Where a table lies, in FBGEMM's words; here all lie on the module's device."""

    DEVICE = "DEVICE"
    MANAGED = "MANAGED"
    MANAGED_CACHING = "MANAGED_CACHING"
    HOST = "HOST"


class ComputeDevice(enum.Enum):
    """What computes, in FBGEMM's words; here the module's device."""

    CPU = "CPU"
    CUDA = "CUDA"


def rows_and_dims(embedding_specs: Sequence[Sequence[object]], device: torch.device) -> list[tuple[int, int]]:
    """(rows, D) of each spec: of two entries, or of FBGEMM's four, whose location and compute device have to say where
    the module's tables are. They are taken by their names, so FBGEMM's own enums serve."""
    out = []
    for t, spec in enumerate(embedding_specs):
        name = f"embedding_specs[{t}]"
        if not isinstance(spec, Sequence) or len(spec) not in (2, 4):
            raise ValueError(f"{name}: expected (rows, D) or (rows, D, location, compute device), got {spec!r}")
        rows, dim = integer(name, spec[0]), integer(name, spec[1])
        if rows == 0:
            raise ValueError(
                f"{name}: rows must be at least 1, got 0; leave an empty shard out, with the features that map to it"
            )
        if len(spec) == 4 and device.type != "meta":
            expected = ("HOST", "CPU") if device.type == "cpu" else ("DEVICE", "CUDA")
            if tuple(getattr(entry, "name", entry) for entry in spec[2:]) != expected:
                raise ValueError(
                    f"{name}: tables lie on device={str(device)!r} and nowhere else, in FBGEMM's words "
                    f"EmbeddingLocation.{expected[0]} and ComputeDevice.{expected[1]}, got {spec[2]!r} and {spec[3]!r}"
                )
        out.append((rows, dim))
    return out


def one_of(name: str, value: object, kind: type[enum.Enum]) -> None:
    """Raise ValueError unless the value is a member."""
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected one of {', '.join(map(str, kind))}, got {value!r}")


def truth(name: str, value: object) -> None:
    """Raise ValueError unless the value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected True or False, got {value!r}")


def float_dtype(name: str, value: object) -> None:
    """Raise ValueError unless the value is a type that rows may have."""
    if value not in FLOATS:
        raise ValueError(f"{name}: expected {', '.join(map(str, FLOATS))}, got {value!r}")


def integer(name: str, value: object) -> int:
    """Python's or numpy's."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name}: expected an integer, got {value!r}, a {type(value).__name__}")
    return int(value)


def clipping(gradient_clipping: bool, max_gradient: float) -> float | None:
    """The bound to which gradients are clamped, or None."""
    truth("gradient_clipping", gradient_clipping)
    number = checked_number("max_gradient", max_gradient)
    if c_float(number).value == 0:
        raise ValueError(f"max_gradient: expected a finite number above 0, got {max_gradient!r}")
    if not gradient_clipping and number != MAX_GRADIENT:
        raise ValueError(f"max_gradient: {max_gradient!r} has no effect without gradient_clipping")
    return number if gradient_clipping else None
