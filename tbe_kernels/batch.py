"""One batch as the kernels see it: ids, offsets, weights, and where each bag belongs.

A plain batch has B samples for every feature: bag `feature * B + sample`, output row `sample`. A variable batch (VBE)
has its own number of samples for each feature and rank, so each bag's feature and place in the flat output are looked
up.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tbe_kernels.spec import TableLayout
from tbe_kernels.tracing import is_traced


class BagPlaces(NamedTuple):
    """For a variable batch, where its bags belong; None throughout for a plain one."""

    feature: Tensor | None = None  # int32 [bags]
    output: Tensor | None = None  # int64 [bags]: the first element of the bag's output
    starts: Tensor | None = None  # int64 [T + 1]: the first bag of each feature


@dataclass(frozen=True)
class BagLayout:
    """The bags of a batch.

    `bucket_bags[k]`: how many belong to bucket k; `bucket_lists[k]`: which, for a variable batch.
    `batch_size` is B, or 0 for a variable batch. `starts`: the first bag of each feature, and their number last.
    """

    batch_size: int
    starts: tuple[int, ...]
    output_shape: tuple[int, ...]
    places: BagPlaces
    bucket_bags: tuple[int, ...]
    bucket_lists: tuple[Tensor | None, ...]

    @property
    def num_bags(self) -> int:
        return self.starts[-1]

    @property
    def is_variable(self) -> bool:
        return self.places.feature is not None

    def feature_and_sample(self, bag: int) -> tuple[int, int]:
        """Which feature a bag belongs to, and its number among that feature's bags."""
        feature = max(f for f in range(len(self.starts) - 1) if self.starts[f] <= bag)
        return feature, bag - self.starts[feature]


@dataclass(frozen=True)
class LookupBatch:
    """The tensors of one batch. `check_rows`: the features' row counts, if kernels have to read a bad id as row 0.

    `indices` `[N]` and `offsets` `[bags + 1]`: int32 or int64. `per_sample_weights`: fp32 `[N]` or None.
    `feature_requires_grad` `[T]` or None: 0 where the gradient of a feature's per-sample weights is 0.
    """

    indices: Tensor
    offsets: Tensor
    per_sample_weights: Tensor | None
    bags: BagLayout
    check_rows: Tensor | None = None
    feature_requires_grad: Tensor | None = None


def plain_bags(layout: TableLayout, batch_size: int) -> BagLayout:
    """`batch_size` samples for every feature: output `[B, total_D]`."""
    return BagLayout(
        batch_size=batch_size,
        starts=tuple(f * batch_size for f in range(layout.num_features + 1)),
        output_shape=(batch_size, layout.total_D),
        places=BagPlaces(),
        bucket_bags=tuple(len(b.features) * batch_size for b in layout.buckets),
        bucket_lists=(None,) * len(layout.buckets),
    )


def variable_bags(layout: TableLayout, sizes: Sequence[Sequence[int]], device: torch.device) -> BagLayout:
    """`sizes[feature][rank]` samples: output flat, ordered (rank, feature, sample, column).

    Made once for each `sizes` and kept for a while, so that a step that was warmed up can be captured; for good, if it
    was. Raises RuntimeError in a capture for sizes that were not seen before: they would have to come from the host.
    Nothing is kept while a graph is written: what is made then is not of this world.
    """
    if is_traced():
        return _variable_bags.__wrapped__(layout, tuple(tuple(s) for s in sizes), device)
    bags = _variable_bags(layout, tuple(tuple(s) for s in sizes), device)
    if _capturing(device) and not any(bags is kept for kept in _kept_for_graphs):
        _kept_for_graphs.append(bags)
    return bags


#: A graph knows the addresses of its tensors alone, so what one was captured with must stay.
_kept_for_graphs: list[BagLayout] = []


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@functools.lru_cache(maxsize=64)
def _variable_bags(layout: TableLayout, sizes: tuple[tuple[int, ...], ...], device: torch.device) -> BagLayout:
    if _capturing(device):
        raise RuntimeError(
            f"batch_size_per_feature_per_rank: {sizes} has to be looked up once before it is captured in a graph"
        )
    dims = [layout.dims[t] for t in layout.feature_table_map]
    starts = [0]
    for feature in sizes:
        starts.append(starts[-1] + sum(feature))
    # On the host, whatever the default device is.
    features = torch.zeros(starts[-1], dtype=torch.int32, device="cpu")
    outputs = torch.zeros(starts[-1], dtype=torch.int64, device="cpu")
    element = 0
    done = list(starts)
    for rank in range(len(sizes[0])):
        for f, dim in enumerate(dims):
            samples = sizes[f][rank]
            part = slice(done[f], done[f] + samples)
            features[part] = f
            outputs[part] = element + torch.arange(samples, device="cpu") * dim
            done[f] += samples
            element += samples * dim
    lists = [
        torch.cat(
            [torch.arange(starts[f], starts[f + 1], dtype=torch.int64, device="cpu") for f in b.features]
            or [outputs[:0]]
        )
        for b in layout.buckets
    ]
    on_device = [
        _copied(x, device) for x in (features, outputs, torch.tensor(starts, dtype=torch.int64, device="cpu"), *lists)
    ]
    return BagLayout(
        batch_size=0,
        starts=tuple(starts),
        output_shape=(element,),
        places=BagPlaces(*on_device[:3]),
        bucket_bags=tuple(len(x) for x in lists),
        bucket_lists=tuple(on_device[3:]),
    )


def _copied(host: Tensor, device: torch.device) -> Tensor:
    """A copy on the device, without waiting for it. Pinned memory is not given out again before it has been read."""
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


@triton.jit
def feature_of(places, bag, B):
    """The feature of a bag, or of each of a block of bags."""
    if places.feature is not None:
        feature = tl.load(places.feature + bag)
    else:
        feature = bag // B
    return feature


@triton.jit
def lookups_of(places, offsets, feature, B):
    """First and end of a feature's lookups, which lie side by side."""
    if places.starts is not None:
        first_bag = tl.load(places.starts + feature)
        end_bag = tl.load(places.starts + feature + 1)
    else:
        first_bag = feature.to(tl.int64) * B
        end_bag = first_bag + B
    return tl.load(offsets + first_bag).to(tl.int64), tl.load(offsets + end_bag).to(tl.int64)


@triton.jit
def locate_slot(places, bucket_list, features, D_offsets, slot, B, total_D):
    """The bag that a bucket's slot stands for: (bag, feature, first element of its output)."""
    if bucket_list is not None:
        bag = tl.load(bucket_list + slot)
        feature = tl.load(places.feature + bag)
        start = tl.load(places.output + bag)
    else:
        place = slot // B
        feature = tl.load(features + place)
        sample = tl.cast(slot - place * B, tl.int64)
        bag = feature.to(tl.int64) * B + sample
        start = sample * total_D + tl.load(D_offsets + feature)
    return bag, feature, start


@triton.jit
def locate_bag(
    places, bucket_list, features, weights, weights_offsets, D_offsets, offsets, slot, B, total_D, ALIGN: tl.constexpr
):
    """What a kernel that walks a bucket's bags needs of one of them.

    (bag, feature, D, the first element of its table, that of its output, its first lookup, the end of its lookups)
    """
    bag, feature, element = locate_slot(places, bucket_list, features, D_offsets, slot, B, total_D)
    D = tl.load(D_offsets + feature + 1) - tl.load(D_offsets + feature)
    D = tl.multiple_of(D, ALIGN)
    table = weights + tl.multiple_of(tl.load(weights_offsets + feature), ALIGN)
    first = tl.load(offsets + bag).to(tl.int64)
    last = tl.load(offsets + bag + 1).to(tl.int64)
    return bag, feature, D, table, tl.multiple_of(element, ALIGN), first, last
