"""The adapter that puts `tbe_kernels` under the suite: how to run a case, and which routings to run it on."""

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
from corpus.store import case_id
from corpus.tensors import BatchTensors, batch_tensors, ids_and_lengths, table_rows, torch_dtype
from oracles import interpreter
from oracles.contract import Refusal, effective_batch
from oracles.guards import GuardZones
from oracles.implementation import Backward, Forward, Routing, RowGradients, Trace
from tbe_kernels.paths import PATHS

MERGES = tuple(m for m in tbe_kernels.config.MENUS["long_run_merge"] or () if m != "auto")
#: Values that a sweep's routings take in turn; the numbers of values have few common divisors, so pairs mix.
RUN_TIME_TURNS: dict[str, tuple[Any, ...]] = {
    "bags_per_program": (2, 1, 3, 8),
    "short_run_programs": (1, 3),
    "long_run_programs": (3, 1),
    "check_programs": (1, 3),
    "forward_programs": (1024, 1, 3),
    "unpooled_programs": (1, 2),
    "hoist_transpose_to_forward": (False, True, True),
    "fused_bounds_check": (False, True),
}
#: For cases whose table is small: its forward with a backward over runs; the backward from counts comes on its own.
SMALL_TABLE_TURNS: dict[str, tuple[Any, ...]] = {"small_table": ("never", "always"), "backward_from_counts": (False,)}
#: Backwards from counts in a sweep.
COUNTED: tuple[dict[str, Any], ...] = (
    {"from_counts_programs": 3, "small_table_programs": 2},
    {"from_counts_programs": 1, "small_table_programs": 1, "small_table_window": 4, "from_counts_bags": 16},
    {"from_counts_programs": 2, "small_table_window": 16, "small_table_bags": 32, "from_counts_bags": 32},
)
#: The same for knobs that are compile-time constants; on a GPU each new value would cost a compilation.
COMPILE_TIME_TURNS: dict[str, tuple[Any, ...]] = {
    "gather_width": (4, 1, 2, 8, 32, 16),
    "backward_gather_width": (2, 1, 4, 32, 8),
    "max_block_d": (2048, 16, 64),
    "min_block_d": (1, 16, 128),
    "block": (1024, 16),
    "accumulate_fp64": (True, True, True, False),
}
#: A forward does not know how the backward is split: of these knobs a sweep takes so many settings, from a place in
#: their turns that differs from case to case.
FORWARD_KNOBS = frozenset(
    {"bags_per_program", "forward_programs", "unpooled_programs", "check_programs", "fused_bounds_check", "block"}
    | {"gather_width", "max_block_d", "min_block_d", "accumulate_fp64"}
)
FORWARDS = 4
#: Run lengths at which a sweep puts the threshold, at the most, and at most so many with every merge at each.
MOST_LENGTHS = 4
FEW_LENGTHS = 3
#: Gathers that a batch, and chunks that a run, are cut into at the most: beyond, widths of 1 and 2 grow with the case.
MOST_PIECES = 32
#: Column tiles that a row is cut into at the most.
MOST_TILES = 16


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
        """The case's own; all runs short; all long, in chunks of 1, 2, the longest run, one less and more, by every
        merge; a threshold at each run length and one above, by every merge. No split comes twice. Gather widths, bags a
        program and tiles take turns along the way. Large cases get larger pieces."""
        lengths = sorted({n for k in sorted(set(case.order)) for n in run_lengths(case, k)})
        longest = lengths[-1] if lengths else 1
        changes: list[dict[str, Any]] = [{"long_run_threshold": longest + 1}]
        small = -(-longest // MOST_PIECES)
        chunks = sorted({small, 2 * small, max(1, longest - 1), longest})
        if chunks[-1] == longest:  # none that no run fills: then the case's own, or the default
            changes += [{"long_run_threshold": 1, "long_run_merge": merge} for merge in MERGES]
        for chunk in chunks:
            changes += [{"long_run_threshold": 1, "chunk_size": chunk, "long_run_merge": m} for m in MERGES]
        spread = lengths[:: -(-len(lengths) // MOST_LENGTHS)] if lengths else []
        # From 1 on all runs are long, and beyond the longest all are short: both are there.
        for place, threshold in enumerate(sorted({t for n in spread for t in (n, n + 1)} - {1, longest + 1})):
            merges = MERGES if len(spread) <= FEW_LENGTHS else MERGES[place % len(MERGES) :][:1]
            changes += [{"long_run_threshold": threshold, "long_run_merge": m} for m in merges]
        has_small_table = any(self.may_count(case, k) for k in set(case.order))
        if has_small_table:
            counted = COUNTED if device.type == "cpu" else COUNTED[:1]
            changes[2:2] = [{"small_table": "always", "backward_from_counts": True, **knobs} for knobs in counted]
        lookups = max(len(ids_and_lengths(case, k)[0]) for k in set(case.order))
        others = dict(case.routing)  # what the other routings start from
        if others.get("chunk_size", small) < small:
            others["chunk_size"] = small
        widest = max(case.tables[t].dim for t in case.feature_table_map)
        power = self.package.spec.next_power_of_two
        gather = min(32, power(max(1, lookups // MOST_PIECES)))
        tile = power(-(-widest // MOST_TILES))
        least = {"gather_width": gather, "backward_gather_width": gather, "max_block_d": tile}
        turns = {**RUN_TIME_TURNS, **(COMPILE_TIME_TURNS if device.type == "cpu" else {})}
        turns |= SMALL_TABLE_TURNS if has_small_table else {}
        seen, first = [], int(case_id(case), 16)
        for number, change in enumerate([{}, *changes]):
            forward = first + number % FORWARDS
            places = {knob: forward if knob in FORWARD_KNOBS else number for knob in turns}
            turn = {knob: values[places[knob] % len(values)] for knob, values in turns.items()} if number else {}
            for knob in turn.keys() & least.keys():
                turn[knob] = max(turn[knob], least[knob])
            routing = {**others, **turn, **change} if number else case.routing
            if routing not in seen:
                seen.append(routing)
                yield routing

    def sweep_paths(self, case: Case) -> list[set[str]]:
        """Of each set, a sweep must have run at least one path."""
        longest, counts = 0, False
        for kind, number in case.steps():
            if effective_batch(case, number).refusal is not None:
                break
            counts |= self.may_count(case, number) and case.bag_starts(number)[-1] > 0
            if kind == "backward":
                longest = max([longest, *run_lengths(case, number)])
        paths = [{"forward.small_table"}] if counts else []
        if longest >= 2:
            paths += [{"backward.short_run"}, {f"backward.long_run.{merge}" for merge in MERGES}]
        return paths

    def may_count(self, case: Case, batch: int) -> bool:
        """Whether a batch fits the small-table route, as its row in the registry and the case's own knobs say."""
        needs = next(p.needs for p in PATHS if p.name == "forward.small_table")
        assert needs.one_table is not None
        most_rows, most_columns = needs.one_table
        rows = case.routing.get("small_table_rows", most_rows)
        columns = case.routing.get("small_table_columns", most_columns)
        table = case.tables[case.feature_table_map[0]]
        return (
            case.num_features == 1
            and all(getattr(case, axis) in values for axis, values in needs.case.items())
            and (table.rows <= rows and table.dim <= columns)
            and (case.batches[batch].psw == "none" and not case.batches[batch].is_variable)
        )

    def repeats(self, case: Case, routing: Routing, device: torch.device) -> bool:
        """Whether sums are added up in one order every time: atomics are not, but for the interpreter's."""
        return device.type == "cpu" or routing.get("long_run_merge") == "ordered"

    def describe_run(self, case: Case, routing: Routing, length: int) -> str:
        """Which way a run of `length` lookups goes."""
        config = self.package.KernelConfig.for_target("cuda", routing)
        if length < config.long_run_threshold:
            return "short run"
        return f"long run, {config.long_run_merge} merge, {-(-length // config.chunk_size)} chunks"


def run_lengths(case: Case, batch: int) -> list[int]:
    """How often each touched row of a batch is looked up."""
    effective, starts = effective_batch(case, batch), case.bag_starts(batch)
    lengths: list[int] = []
    for table in set(case.feature_table_map):
        features = [f for f, t in enumerate(case.feature_table_map) if t == table]
        ids = np.concatenate(
            [effective.ids[effective.offsets[starts[f]] : effective.offsets[starts[f + 1]]] for f in features]
        )
        lengths += np.unique(ids[ids >= 0], return_counts=True)[1].tolist()
    return lengths


def _following(case: Case, device: torch.device) -> AbstractContextManager[Any]:
    """Launches follow the case's schedule, if it has one and they are interpreted."""
    if device.type != "cpu" or not case.schedule:
        return nullcontext()
    from oracles.interpreter import schedules

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
        wanted = given.feature_requires_grad
        return {
            "indices": tensors.indices,
            "offsets": tensors.offsets,
            "per_sample_weights": tensors.per_sample_weights,
            "batch_size_per_feature_per_rank": given.batch_size_per_feature_per_rank or None,
            "feature_requires_grad": torch.tensor(wanted, dtype=torch.int32, device=self.device) if wanted else None,
        }

    def look(self, number: int, psw: Tensor | None) -> Backward:
        """What a backward left, on the CPU."""
        weights = self.module.split_embedding_weights()
        states = self.module.split_optimizer_states()
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

    def _row_gradients(self) -> RowGradients | None:
        left = self.module.row_gradients
        if left is None:
            return None
        return RowGradients(left.rows.cpu().clone(), left.gradients.cpu().clone(), int(left.count))


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
