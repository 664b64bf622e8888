"""Whether somebody looks on to write a graph: `torch.compile`, `torch.export`, `make_fx` or a fake-tensor pass.

Then a lookup is one operator (`tbe_kernels.operators`), since none of them can look into a launch, and no cache is
filled, since what it would hold belongs to them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import get_proxy_slot

_MODES = torch._C._TorchDispatchModeKey
#: Modes that a user makes, to watch or to guard, are none of these.
_WRITERS = (_MODES.FAKE, _MODES.PROXY, _MODES.FUNCTIONAL)


def is_traced(*tensors: Tensor) -> bool:
    """Whether calls, or calls with these tensors, end up in a graph or in nothing but shapes."""
    if torch.compiler.is_compiling():
        return True
    if torch._C._len_torch_dispatch_stack() and any(torch._C._get_dispatch_mode(key) is not None for key in _WRITERS):
        return True
    return any(isinstance(tensor, FakeTensor) for tensor in tensors)


def save_without_version(*tensors: Tensor) -> None:
    """Have AOTAutograd hand these to the backward as they are then, as if an autograd node held them as attributes.

    Otherwise it saves what a backward reads, and raises if it was changed since: as the weights were, by the backward
    of another lookup. Eager, there is nothing to do.
    """
    writer = torch._C._get_dispatch_mode(_MODES.PROXY)
    if writer is None:
        return
    for tensor in tensors:
        written = torch._from_functional_tensor(tensor.elem) if isinstance(tensor, FunctionalTensor) else tensor
        slot = get_proxy_slot(written, writer.tracer, None)
        if slot is not None:
            slot.proxy.node.meta["saved_tensor_with_no_vc_check"] = True
