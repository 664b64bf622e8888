"""What a module is made with: a `Case` without batches, drawn small, and the module made from it."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from corpus.case import Case, Optimizer, Table
from corpus.optimizers import KINDS
from tests.machine.twin import HYPER, Twin

#: Values that leave a step sharp: a wrong one shows at once.
MENU = {
    "eps": (0.5, 1.0, 1e-3),
    "weight_decay": (0.0, 0.5, 0.01),
    "beta1": (0.5, 0.9, 0.0),
    "beta2": (0.5, 0.999, 0.0),
    "eta": (1.0, 0.25, 0.001),
    "momentum": (0.5, 0.9, 0.0),
    "max_norm": (0.0, 1.0, 0.0, 2.0),
}
RATES = (1.0, 0.5, 0.25, 0.0, 2.0, 0.01)
SEEDS = (0, 1, 7, -(2**63), 2**63 - 1)
#: Knobs that a copy has to keep: no default among the values, and how bags are laid out among the knobs.
KNOBS: dict[str, tuple[Any, ...]] = {
    "long_run_threshold": (1, 2),
    "chunk_size": (1, 2),
    "long_run_merge": ("atomic", "ordered", "fused"),
    "hoist_transpose_to_forward": (True,),
    "fused_bounds_check": (True,),
    "min_block_d": (1, 2),
    "bags_per_program": (1, 3),
    "accumulate_fp64": (False,),
    "small_table": ("never", "always"),
}


@st.composite
def optimizers(draw: DrawFn, name: str, decay_mode: str) -> Optimizer:
    """Hyper-parameters of an optimizer, and none that it does not read."""
    read = {hyper: draw(st.sampled_from(MENU[hyper])) for hyper in HYPER[name]}
    if name == "EXACT_ROWWISE_ADAGRAD" and decay_mode == "NONE":
        read["weight_decay"] = 0.0
    return Optimizer(name=name, learning_rate=draw(st.sampled_from(RATES)), weight_decay_mode=decay_mode, **read)


@st.composite
def knobs(draw: DrawFn) -> dict[str, Any]:
    """A few knobs away from their defaults."""
    names = draw(st.lists(st.sampled_from(sorted(KNOBS)), max_size=3, unique=True))
    found = {name: draw(st.sampled_from(KNOBS[name])) for name in names}
    merge = draw(st.sampled_from((None, *KNOBS["long_run_merge"])))
    return found if merge is None else {**found, "long_run_merge": merge}


@st.composite
def bare_cases(draw: DrawFn) -> Case:
    """Tables, features, optimizer and modes of a module; one or two tables of a few rows."""
    pooling = draw(st.sampled_from(("SUM", "SUM", "MEAN", "NONE")))
    dims = st.sampled_from((1, 2, 3, 4, 6))
    first = draw(dims)
    tables = tuple(
        Table(draw(st.integers(1, 4)), first if pooling == "NONE" else draw(dims))
        for _ in range(draw(st.sampled_from((1, 2, 2))))
    )
    features = draw(st.lists(st.integers(0, len(tables) - 1), min_size=1, max_size=3))
    name = draw(st.sampled_from((*sorted(KINDS), "ADAM", "EXACT_ROWWISE_ADAGRAD", "EXACT_ROWWISE_ADAGRAD")))
    mode = draw(st.sampled_from(KINDS[name].decay_modes))
    optimizer = draw(optimizers(name, mode))
    bound = draw(st.sampled_from((None, None, 2.0)))
    return Case(
        tables=tables,
        feature_table_map=tuple(features),
        batches=(),
        order=(),
        pooling_mode=pooling,
        optimizer=dataclasses.replace(optimizer, max_gradient=bound),
        weights_dtype=draw(st.sampled_from(("float32", "float32", "float16", "bfloat16"))),
        output_dtype=draw(st.sampled_from(("float32", "float32", "float16"))),
        bounds_check_mode=draw(st.sampled_from(("WARNING", "FATAL", "IGNORE"))),
        stochastic_rounding=draw(st.booleans()),
        rounding_seed=draw(st.sampled_from(SEEDS)),
        routing=draw(knobs()),
    )


def others(bare: Case) -> st.SearchStrategy[Case]:
    """The same tables and optimizer with other values: a module that may take the first one's checkpoint."""
    name, mode, bound = bare.optimizer.name, bare.optimizer.weight_decay_mode, bare.optimizer.max_gradient
    return st.builds(
        lambda optimizer, seed: dataclasses.replace(
            bare, optimizer=dataclasses.replace(optimizer, max_gradient=bound), rounding_seed=seed
        ),
        optimizers(name, mode),
        st.sampled_from(SEEDS),
    )


def with_another_knob(bare: Case) -> st.SearchStrategy[Case]:
    """The same but for one knob."""
    return (
        st.sampled_from((*sorted(KNOBS), *["min_block_d"] * 8))
        .flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(KNOBS[name])))
        .map(lambda knob: dataclasses.replace(bare, routing={**bare.routing, knob[0]: knob[1]}))
    )


def make(package: ModuleType, bare: Case, **changes: Any) -> Any:
    """The module that a case describes, its weights all ones; `changes` of the constructor's arguments."""
    given = bare.optimizer
    arguments: dict[str, Any] = {
        "embedding_specs": [(table.rows, table.dim) for table in bare.tables],
        "feature_table_map": bare.feature_table_map,
        "pooling_mode": package.PoolingMode[bare.pooling_mode],
        "weights_precision": getattr(torch, bare.weights_dtype),
        "output_dtype": getattr(torch, bare.output_dtype),
        "bounds_check_mode": package.BoundsCheckMode[bare.bounds_check_mode],
        "optimizer": package.OptimType[given.name],
        "learning_rate": given.learning_rate,
        "weight_decay_mode": package.WeightDecayMode[given.weight_decay_mode],
        "stochastic_rounding": bare.stochastic_rounding,
        "rounding_seed": bare.rounding_seed,
        "config": dict(bare.routing),
        "device": "cpu",
        **{name: getattr(given, name) for name in HYPER[given.name]},
    }
    if given.max_gradient is not None:
        arguments |= {"gradient_clipping": True, "max_gradient": given.max_gradient}
    arguments |= changes
    specs = arguments.pop("embedding_specs")
    module = package.TableBatchedEmbeddingBags(specs, **arguments)
    module.weights.detach().fill_(1.0)
    return module


def twin_of(module: Any, bare: Case) -> Twin:
    """What a module made from a case has to be, before anything is done with it."""
    return Twin.first(bare, {**dict(module.named_parameters()), **dict(module.named_buffers())})
