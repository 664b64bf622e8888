"""Real optimizers that `torch.optim` has not got: on rows, in fp64, written from the formulas alone.

Each is a `torch.optim.Optimizer` whose parameters are `[rows, D]` and of which every row is stepped. Where one
coincides with an optimizer of torch's (D = 1, a ratio of 1, no decay), a test ties the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class RowwiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator a row: `sum += mean(g'^2)`, `w = c * w - lr / (sqrt(sum) + eps) * g`.

    `g' = g + weight_decay * w` with mode L2. `c = 1 - lr / (sqrt(sum) + eps) * weight_decay` (L2),
    `1 - lr * weight_decay` (DECOUPLE) or 1. Then, with `max_norm` above 0, rows longer than that become that long.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        eps: float,
        weight_decay: float,
        weight_decay_mode: str,
        max_norm: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "mode": weight_decay_mode, "max_norm": max_norm}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, decay, mode = group["lr"], group["weight_decay"], group["mode"]
            for w in group["params"]:
                state = self.state[w]
                if "sum" not in state:
                    state["sum"] = torch.zeros(w.shape[0], dtype=w.dtype)
                g = w.grad + decay * w if mode == "L2" else w.grad
                state["sum"] += (g * g).mean(dim=1)
                rate = lr / (state["sum"].sqrt() + group["eps"])[:, None]
                kept = {"L2": 1 - rate * decay, "DECOUPLE": 1 - lr * decay, "NONE": 1.0}[mode]
                w.copy_(kept * w - rate * w.grad)
                if group["max_norm"] > 0:
                    norm = torch.linalg.vector_norm(w, dim=1, keepdim=True)
                    w.copy_(torch.where(norm > group["max_norm"], w * group["max_norm"] / norm, w))


class AdamFamily(torch.optim.Optimizer):
    """Adam with decoupled decay; with one `v` a row from `mean(g^2)` (`rowwise`); with every row's step made as long as
    the row (`lamb`): `w -= lr * ratio * (m_hat / (sqrt(v_hat) + eps) + weight_decay * w)`."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        rowwise: bool,
        lamb: bool,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "rowwise": rowwise, "lamb": lamb})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for w in group["params"]:
                state, g = self.state[w], w.grad
                if "step" not in state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(w)
                    state["exp_avg_sq"] = torch.zeros(w.shape[: 1 if group["rowwise"] else 2], dtype=w.dtype)
                state["step"] += 1
                k = float(state["step"])
                square = (g * g).mean(dim=1) if group["rowwise"] else g * g
                state["exp_avg"] = beta1 * state["exp_avg"] + (1 - beta1) * g
                state["exp_avg_sq"] = beta2 * state["exp_avg_sq"] + (1 - beta2) * square
                root = (state["exp_avg_sq"] / (1 - beta2**k)).sqrt() + group["eps"]
                root = root[:, None] if group["rowwise"] else root
                step = state["exp_avg"] / (1 - beta1**k) / root + group["weight_decay"] * w
                if group["lamb"]:
                    length, norm = (torch.linalg.vector_norm(x, dim=1, keepdim=True) for x in (w, step))
                    step = step * torch.where((length == 0) | (norm == 0), 1.0, length / norm)
                w.sub_(group["lr"] * step)


class LarsSgd(torch.optim.Optimizer):
    """`a = lr * eta * ||w|| / (||g|| + weight_decay * ||w||)`, 0 where that divides by 0;
    `m = momentum * m + a * (g + weight_decay * w)`; `w -= m`."""

    def __init__(self, params: Iterable[Tensor], lr: float, eta: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "eta": eta, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            decay = group["weight_decay"]
            for w in group["params"]:
                state = self.state[w]
                before = state.get("momentum_buffer", torch.zeros_like(w))
                length, norm = (torch.linalg.vector_norm(x, dim=1, keepdim=True) for x in (w, w.grad))
                divisor = norm + decay * length
                rate = torch.where(divisor == 0, 0.0, group["lr"] * group["eta"] * length / divisor)
                state["momentum_buffer"] = group["momentum"] * before + rate * (w.grad + decay * w)
                w.sub_(state["momentum_buffer"])


class NoStep(torch.optim.Optimizer):
    """Leaves everything as it is."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass
