"""The adapter that puts `tbe_kernels` under the suite: how to run a case. On which routings, says `sweep`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tbe_kernels
from corpus.case import Case
from corpus.tensors import BatchTensors, batch_tensors, table_rows, torch_dtype
from oracles import interpreter
from oracles.adapters import sweep
from oracles.adapters.guards import GuardZones
from oracles.contract import Refusal
from oracles.implementation import Backward, Forward, LeftRowGradients, Routing, Trace


class TbeKernels:
    """The Triton kernels of this project: the package itself, or a copy of it with a fault planted."""

    def __init__(self, package: ModuleType = tbe_kernels) -> None:
        self.package = package
        self.name = package.__name__

    def supports(self, case: Case) -> str | None:
        """Everything that a case can say."""
        return None

    def accumulator(self, case: Case, routing: Routing) -> torch.dtype:
        """fp64 for fp32 rows, unless the routing turns it off."""
        wide = case.weights_dtype == "float32" and routing.get("accumulate_fp64", True)
        return torch.float64 if wide else torch.float32

    def run(self, case: Case, routing: Routing, device: torch.device) -> Trace:
        """Run the case's steps, watched by guard zones and the path observer."""
        if device.type == "cpu":
            interpreter.install()
        trace = Trace()

        def count(path: str, work: int) -> None:
            if work:
                trace.paths[path] += 1

        guard = GuardZones()
        with guard, self.package.observe.observing(count), _silent_numpy(), _following(case, device):
            run = Run(self.package, case, routing, device)
            run.go(trace)
        trace.damage += guard.damage()
        return trace

    def routings(self, case: Case, device: torch.device) -> Iterator[Routing]:
        """As `oracles.adapters.sweep` has them."""
        return sweep.routings(case, device)

    def sweep_paths(self, case: Case) -> list[set[str]]:
        """As `oracles.adapters.sweep` has them."""
        return sweep.sweep_paths(case)

    def repeats(self, case: Case, routing: Routing, device: torch.device) -> bool:
        """Whether sums are added up in one order every time: atomics are not, but for the interpreter's."""
        return device.type == "cpu" or routing.get("long_run_merge") == "ordered"

    def describe_run(self, case: Case, routing: Routing, length: int) -> str:
        """Which way a run of `length` lookups goes."""
        config = self.package.KernelConfig.for_target("cuda", routing)
        if length < config.long_run_threshold:
            return "short run"
        return f"long run, {config.long_run_merge} merge, {-(-length // config.chunk_size)} chunks"


def _following(case: Case, device: torch.device) -> AbstractContextManager[Any]:
    """Launches follow the case's schedule, if it has one and they are interpreted."""
    if device.type != "cpu" or not case.schedule:
        return nullcontext()
    from oracles.interpreter.concurrency import schedules

    return schedules.following(case.schedule)


@contextmanager
def _silent_numpy() -> Iterator[None]:
    """The interpreter computes in numpy, which warns of the infinities and NaNs that a case may hold."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
        yield


class Run:
    """One module at work on one case."""

    def __init__(self, package: ModuleType, case: Case, routing: Routing, device: torch.device) -> None:
        self.package = tbe = package
        self.case, self.device = case, device
        self.tracked = table_rows(case)
        given = case.optimizer
        optimizer = tbe.OptimType[given.name]
        read = tbe.optimizers.OPTIMIZERS[optimizer].hyperparameters
        clips = (
            {"gradient_clipping": True, "max_gradient": given.max_gradient} if given.max_gradient is not None else {}
        )
        self.module = tbe.TableBatchedEmbeddingBags(
            [(t.rows, t.dim) for t in case.tables],
            feature_table_map=case.feature_table_map,
            pooling_mode=tbe.PoolingMode[case.pooling_mode],
            weights_precision=torch_dtype(case.weights_dtype),
            output_dtype=torch_dtype(case.output_dtype),
            bounds_check_mode=tbe.BoundsCheckMode[case.bounds_check_mode],
            optimizer=optimizer,
            learning_rate=given.learning_rate,
            weight_decay_mode=tbe.WeightDecayMode[given.weight_decay_mode],
            stochastic_rounding=case.stochastic_rounding,
            rounding_seed=case.rounding_seed,
            **{name: getattr(given, name) for name in read},
            **clips,
            config=tbe.KernelConfig.for_target(tbe.config.target_of(device), routing),
            device=device,
        )
        for table, rows in zip(self.module.split_embedding_weights(), self.tracked, strict=True):
            rows.write(table)
        self.batches: dict[int, tuple[BatchTensors, Tensor]] = {}

    def go(self, trace: Trace) -> None:
        """Run every step; a FATAL refusal ends the run with a look at what it left."""
        for kind, number in self.case.steps():
            before_step = trace.paths.copy()
            if kind == "forward":
                tensors = batch_tensors(self.case, number, self.device)
                before = _copies(tensors)
                try:
                    output = self.module(**self.arguments(number, tensors))
                except self.package.BoundsCheckError as error:
                    trace.refusal = Refusal(error.kind, error.feature, error.bag, error.index, error.rows, error.place)
                    trace.steps.append(self.look(number, None))
                    trace.damage += _changed(tensors, before)
                    return
                self.batches[number] = tensors, output
                warnings = int(self.module.bounds_check_warning)
                counted = "forward.small_table" in trace.paths - before_step
                trace.steps.append(Forward(number, output.detach().cpu().clone(), warnings, counted))
                trace.damage += _changed(tensors, before)
            else:
                tensors, output = self.batches.pop(number)
                learning_rate = self.case.batches[number].learning_rate
                if learning_rate is not None:
                    self.module.set_learning_rate(learning_rate)
                before = _copies(tensors)
                output.backward(tensors.grad_output)
                left = self.look(number, tensors.per_sample_weights)
                left.tensor_products = "backward.from_counts" in trace.paths - before_step
                trace.steps.append(left)
                trace.damage += _changed(tensors, before)

    def arguments(self, number: int, tensors: BatchTensors) -> dict[str, Any]:
        """What the module is called with."""
        given = self.case.batches[number]
        return {
            "indices": tensors.indices,
            "offsets": tensors.offsets,
            "per_sample_weights": tensors.per_sample_weights,
            "batch_size_per_feature_per_rank": given.batch_size_per_feature_per_rank or None,
            "feature_requires_grad": tensors.feature_requires_grad,
        }

    def look(self, number: int, psw: Tensor | None) -> Backward:
        """What a backward left, on the CPU."""
        weights = self.module.split_embedding_weights()
        states = [dict(zip(("momentum1", "momentum2"), s, strict=False)) for s in self.module.split_optimizer_states()]
        return Backward(
            batch=number,
            weights=[rows.read(w) for rows, w in zip(self.tracked, weights, strict=True)],
            state=[
                {name: rows.read(value) for name, value in state.items()}
                for rows, state in zip(self.tracked, states, strict=True)
            ],
            psw_gradient=None if psw is None or psw.grad is None else psw.grad.cpu().clone(),
            weights_grad_is_none=self.module.weights.grad is None,
            iterations=int(self.module.iter),
            row_gradients=self._row_gradients(),
        )

    def _row_gradients(self) -> LeftRowGradients | None:
        left = self.module.row_gradients
        if left is None:
            return None
        return LeftRowGradients(left.rows.cpu().clone(), left.gradients.cpu().clone(), int(left.count))


def _copies(tensors: BatchTensors) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in vars(tensors).items() if value is not None}


def _changed(tensors: BatchTensors, before: dict[str, Tensor]) -> list[str]:
    """A line for each input that a step changed."""
    return [
        f"the input {name} was changed"
        for name, copy in before.items()
        if not torch.equal(getattr(tensors, name).detach().nan_to_num(1.5), copy.nan_to_num(1.5))
    ]


IMPLEMENTATION = TbeKernels()
