"""Triton kernels for table-batched embeddings (TBE): pooled lookups over many tables, trained by their own backward."""

from tbe_kernels.config import KernelConfig
from tbe_kernels.construction import ComputeDevice, EmbeddingLocation
from tbe_kernels.module import TableBatchedEmbeddingBags
from tbe_kernels.optimizers import OptimType
from tbe_kernels.parallel import model_parallel_names
from tbe_kernels.spec import BoundsCheckError, BoundsCheckMode, PoolingMode, WeightDecayMode

__all__ = [
    "BoundsCheckError",
    "BoundsCheckMode",
    "ComputeDevice",
    "EmbeddingLocation",
    "KernelConfig",
    "OptimType",
    "PoolingMode",
    "TableBatchedEmbeddingBags",
    "WeightDecayMode",
    "model_parallel_names",
]
