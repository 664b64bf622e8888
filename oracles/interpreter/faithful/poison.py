"""Masked loads without `other` give NaN, or a number no id has, in the lanes that are masked off.

A GPU leaves there whatever was in the register; the interpreter gives zeros, which hide a mask that was forgotten.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime import interpreter

NUMBER = 7777


def install() -> None:
    """Give masked loads an `other` where the kernel gave none."""
    builder, semantic = interpreter.interpreter_builder, interpreter.interpreter_semantic
    builder_load, semantic_load = builder.create_masked_load, semantic.load
    other_given = True

    def load(ptr: Any, mask: Any, other: Any, *rest: Any) -> Any:
        # Noted here, because the builder sees no `other` where it is a single zero (`other.handle if other else None`).
        nonlocal other_given
        other_given = other is not None
        try:
            return semantic_load(ptr, mask, other, *rest)
        finally:
            other_given = True

    def masked_load(ptrs: Any, mask: Any, other: Any, *rest: Any) -> Any:
        if not other_given and not mask.data.all():
            other = _poison(ptrs)
        return builder_load(ptrs, mask, other, *rest)

    semantic.load, builder.create_masked_load = load, masked_load


def _poison(ptrs: Any) -> Any:
    element = ptrs.get_element_ty()
    dtype = interpreter._get_np_dtype(element)
    if element.is_bf16():
        filled = np.full(ptrs.data.shape, 0x7FC0, dtype)  # bf16's NaN
    elif np.issubdtype(dtype, np.floating):
        filled = np.full(ptrs.data.shape, np.nan, dtype)
    else:
        filled = np.full(ptrs.data.shape, NUMBER, np.int64).astype(dtype)
    return interpreter.TensorHandle(filled, element)
