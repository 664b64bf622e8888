"""The kernels behind a CUDA graph: one whole step captured once, then replayed for every batch of a case."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from corpus.case import Case
from corpus.tensors import BatchTensors, batch_tensors
from oracles.adapters.kernels import Run, TbeKernels
from oracles.implementation import Forward, Routing, Trace
from tbe_kernels.observe import observing


class GraphedKernels(TbeKernels):
    """Captures forward and backward on the first batch and replays them on the others: same shapes, other ids."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "tbe_kernels, captured"

    def supports(self, case: Case) -> str | None:
        """Cases of several batches of one shape, each forward followed by its backward."""
        shapes = {tuple(map(tuple, _shapes(batch_tensors(case, k, torch.device("cpu"))))) for k in set(case.order)}
        if len(shapes) > 1 or case.order != tuple(sorted((*range(len(case.batches)),) * 2)):
            return "a captured step is replayed on batches of one shape, one after the other"
        return None

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """Capture, then replay for each batch; the learning rate changes between replays."""
        run, trace = Run(self.package, case, routing, device), Trace()
        static = batch_tensors(case, 0, device)
        step = capture(run.module, run.arguments(0, static), static.grad_output)
        for number in range(len(case.batches)):
            batch = batch_tensors(case, number, device)
            for name, value in vars(batch).items():
                if value is not None:
                    getattr(static, name).detach().copy_(value.detach())
            rate = case.batches[number].learning_rate
            if rate is not None:
                run.module.set_learning_rate(rate)
            step.graph.replay()
            warnings, counted = int(run.module.bounds_check_warning), "forward.small_table" in step.paths
            trace.steps.append(Forward(number, step.output.detach().cpu(), warnings, counted))
            trace.steps.append(run.look(number, static.per_sample_weights))
            trace.steps[-1].tensor_products = "backward.from_counts" in step.paths
        return trace


def _shapes(batch: BatchTensors) -> list[torch.Size]:
    return [value.shape for value in vars(batch).values() if value is not None]


def capture(module: Any, arguments: dict[str, Any], grad_output: Tensor) -> SimpleNamespace:
    """A graph of one forward and backward, after a warm-up whose effects are undone, and its `paths`."""
    paths: set[str] = set()
    state: list[Tensor] = [module.weights.detach(), module.iter, module.bounds_check_warning]
    state += [value for table in module.split_optimizer_states() for value in table]
    before = [value.clone() for value in state]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), observing(lambda path, work: paths.add(path)):
        module(**arguments).backward(grad_output)
    torch.cuda.current_stream().wait_stream(stream)
    for value, old in zip(state, before, strict=True):
        value.copy_(old)
    if arguments["per_sample_weights"] is not None:
        arguments["per_sample_weights"].grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = module(**arguments)
        output.backward(grad_output)
    return SimpleNamespace(graph=graph, output=output, paths=paths)
