"""The arguments of a lookup, checked: a `LookupBatch` comes out, or a ValueError that names the argument and the
value."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from tbe_kernels.batch import BagLayout, LookupBatch, plain_bags, variable_bags
from tbe_kernels.spec import PoolingMode, TableLayout
from tbe_kernels.tables import EmbeddingTables

INTEGERS = (torch.int32, torch.int64)


def checked_batch(
    tables: EmbeddingTables,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None,
    batch_size_per_feature_per_rank: Sequence[Sequence[int]] | None,
    feature_requires_grad: Tensor | None,
) -> LookupBatch:
    """The batch, contiguous and outside autograd, once every argument is known to fit.

    Raises ValueError otherwise, and RuntimeError for tensors on a CPU in a process that does not interpret.
    """
    if tables.weights.device.type == "cpu" and not triton.knobs.runtime.interpret:
        raise RuntimeError(
            "weights: kernels run on a cpu only in Triton's interpreter: set TRITON_INTERPRET=1 at the start"
        )
    layout, device = tables.layout, tables.weights.device
    check_arguments(layout, tables.pooling_mode, device, indices, offsets, per_sample_weights, feature_requires_grad)
    if batch_size_per_feature_per_rank is None:
        bags = _plain_bags(tables, offsets)
    else:
        bags = _variable_bags(tables, offsets, batch_size_per_feature_per_rank)
    N = indices.numel()
    if bags.num_bags == 0 and N > 0:
        raise ValueError(f"offsets: describe no bag, but there are {N} indices")
    psw = per_sample_weights
    if psw is not None:
        if psw.numel() != N:
            raise ValueError(f"per_sample_weights: expected one for each of the {N} indices, got {psw.numel()}")
        psw = psw.detach().contiguous()
    requires = feature_requires_grad
    if requires is not None:
        requires = requires.detach().to(torch.int32).contiguous()
    return LookupBatch(
        indices.detach().contiguous(),
        offsets.detach().contiguous(),
        psw,
        bags,
        feature_requires_grad=requires,
    )


def check_arguments(
    layout: TableLayout,
    pooling_mode: PoolingMode,
    device: torch.device,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None,
    feature_requires_grad: Tensor | None,
) -> None:
    """Raise ValueError for what no number of lookups or bags would make right."""
    _check_tensor("indices", indices, INTEGERS, device)
    _check_tensor("offsets", offsets, INTEGERS, device)
    if per_sample_weights is not None:
        _check_tensor("per_sample_weights", per_sample_weights, (torch.float32,), device)
        if pooling_mode is not PoolingMode.SUM:
            raise ValueError(f"per_sample_weights: only SUM takes them, the pooling mode is {pooling_mode.name}")
    if feature_requires_grad is not None:
        _check_tensor("feature_requires_grad", feature_requires_grad, (torch.bool, torch.int32), device)
        if feature_requires_grad.numel() != layout.num_features:
            raise ValueError(
                f"feature_requires_grad: expected one for each of the {layout.num_features} features, "
                f"got {feature_requires_grad.numel()}"
            )


def _check_tensor(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], device: torch.device) -> None:
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dim() != 1:
        raise ValueError(f"{name}: expected one dimension, got shape {tuple(tensor.shape)}")
    if tensor.device != device:
        raise ValueError(f"{name}: expected device {device}, where the weights are, got {tensor.device}")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name}: expected {' or '.join(map(str, dtypes))}, got {tensor.dtype}")


def _plain_bags(tables: EmbeddingTables, offsets: Tensor) -> BagLayout:
    T, entries = tables.layout.num_features, offsets.numel()
    if entries == 0 or (entries - 1) % T != 0:
        raise ValueError(f"offsets: expected T * B + 1 entries with T = {T} features, got {entries}")
    return plain_bags(tables.layout, (entries - 1) // T)


def _variable_bags(tables: EmbeddingTables, offsets: Tensor, sizes: Sequence[Sequence[int]]) -> BagLayout:
    name, T = "batch_size_per_feature_per_rank", tables.layout.num_features
    if isinstance(sizes, Tensor):
        raise ValueError(
            f"{name}: expected a list for each feature, got a tensor; feature_requires_grad is the fifth argument here "
            "and the fourth in FBGEMM: pass both by name"
        )
    if len(sizes) != T:
        raise ValueError(f"{name}: expected a list for each of the {T} features, got {len(sizes)}")
    for f, of_feature in enumerate(sizes):
        if len(of_feature) != len(sizes[0]) or len(of_feature) == 0:
            raise ValueError(f"{name}[{f}]: expected as many ranks as in [0], at least one, got {list(of_feature)}")
        for size in of_feature:
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise ValueError(f"{name}[{f}]: expected integers from 0 up, got {list(of_feature)}")
    bags = variable_bags(tables.layout, sizes, offsets.device)
    if offsets.numel() != bags.num_bags + 1:
        raise ValueError(
            f"offsets: expected {bags.num_bags + 1} entries, one more than the samples of "
            f"batch_size_per_feature_per_rank, got {offsets.numel()}"
        )
    return bags
