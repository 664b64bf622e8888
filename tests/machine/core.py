"""The machine's body: the modules under test, each beside its twin, and the comparison after every rule."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from torch import Tensor

import tbe_kernels
from corpus.case import Case
from oracles import interpreter
from tests.machine import made
from tests.machine.lookups import Pending
from tests.machine.twin import Twin, Wrong, demand_bits

#: Modules at once, and lookups of each whose backward is still to come.
MOST_MODULES, MOST_PENDING = 3, 3
META = st.sampled_from((False, False, True))


@dataclass
class Subject:
    """A module, its twin, and what is a module's own rather than its tensors'."""

    module: Any
    twin: Twin
    bare: Case
    training: bool = True
    pending: list[Pending] = field(default_factory=list)


@dataclass
class Saved:
    """A state dict, and the values that it has to hold."""

    state: dict[str, Tensor]
    values: dict[str, Tensor]


class Core(RuleBasedStateMachine):
    """What all rules work on. `package`: the kernels, or a copy of them with a fault planted."""

    package: ClassVar[ModuleType] = tbe_kernels
    #: How many rules have been run by machines of this class.
    steps: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        interpreter.install()
        self.subjects: list[Subject] = []
        self.saved: list[Saved] = []
        self.paths: Counter[str] = Counter()

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """A module, and now and then a second one that differs in one knob."""
        self.bare = data.draw(made.bare_cases(), "module")
        self.begin_with(self.bare)
        if data.draw(st.booleans(), "second"):
            self.begin_with(data.draw(made.with_another_knob(self.bare), "second module"))

    def begin_with(self, bare: Case) -> Subject:
        """One more module, made as a case says; its rows are then filled with 1, 2, ..."""
        with self.calling():
            module = made.make(self.package, bare)
        subject = Subject(module, made.twin_of(module, bare), bare)
        self.fill(subject, 1)
        self.add(subject)
        return subject

    def add(self, subject: Subject) -> None:
        """Keep a module; the oldest goes where there are too many."""
        self.subjects = [*self.subjects, subject][-MOST_MODULES:]

    def fill(self, subject: Subject, first: int) -> None:
        """Write small integers into the weights in place: steps are exact again."""
        numbers = (torch.arange(first, first + subject.twin.value("weights").numel()) % 13 - 4).to(
            subject.twin.value("weights").dtype
        )
        subject.module.weights.detach().copy_(numbers)
        subject.twin.held["weights"].value = numbers

    def pick(self, data: st.DataObject) -> Subject:
        """One of the modules."""
        return self.subjects[data.draw(st.integers(0, len(self.subjects) - 1), "which module")]

    @contextmanager
    def calling(self, meta: bool = False) -> Iterator[None]:
        """Around every call of the package: paths are noted, and the default device may be "meta"."""
        self.paths = Counter()

        def note(path: str, work: int) -> None:
            self.paths[path] += work

        with (
            torch.device("meta" if meta else "cpu"),
            self.package.observe.observing(note),
            np.errstate(all="ignore"),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            yield

    def refuses(self, error: type[Exception], words: str, call: Callable[[], object], meta: bool = False) -> Exception:
        """`call()` raises `error` with these words in it. What it left is compared after the rule, as always."""
        with self.calling(meta):
            try:
                call()
            except error as raised:
                if words in str(raised):
                    return raised
                raise Wrong(f"expected {words!r} in what is refused, got {raised}") from raised
        raise Wrong(f"expected {error.__name__} with {words!r}, but nothing was refused")

    @invariant()
    def everything_is_as_the_twins_have_it(self) -> None:
        """Weights, state, counters and hyper-parameters, bit for bit, where the state dict shows them."""
        self.steps["all"] += 1
        for subject in self.subjects:
            module, twin = subject.module, subject.twin
            state = module.state_dict()
            identity = json.loads(bytes(state.pop("_extra_state").tolist()))
            if identity != identity_of(self.bare):
                raise Wrong(f"the state dict is of {identity}, expected {identity_of(self.bare)}")
            if state.keys() != twin.held.keys():
                raise Wrong(f"the state dict holds {sorted(state)}, expected {sorted(twin.held)}")
            twin.check(state)
            if module.weights.grad is not None:
                raise Wrong("weights.grad is not None")
            have = (module.weights.requires_grad, module.training)
            if have != (not twin.frozen, subject.training):
                raise Wrong(f"requires_grad and training are {have}")

    def look_closely(self, subject: Subject) -> None:
        """What the module shows beside its state dict: views by table, knobs, what a backward left."""
        module, twin = subject.module, subject.twin
        for shown, value in zip(module.split_embedding_weights(), twin.by_table("weights"), strict=True):
            demand_bits("split_embedding_weights()", value, shown)
        states = [name for name in ("momentum1", "momentum2") if name in twin.held]
        for number, name in enumerate(states):
            for shown, value in zip(module.split_optimizer_states(), twin.by_table(name), strict=True):
                demand_bits(f"split_optimizer_states() {name}", value, shown[number])
        twin.check_left(module.row_gradients)
        if module.get_learning_rate() != float(twin.value("hyper")[0]):
            raise Wrong(f"get_learning_rate() = {module.get_learning_rate()}")
        scale = module.gradient_scale
        if (None if scale is None else float(scale)) != twin.scale:
            raise Wrong(f"gradient_scale = {scale}, expected {twin.scale}")
        config = self.package.KernelConfig.for_target("interpreter", subject.bare.routing)
        tables = module.tables
        if tables.config != config:
            raise Wrong(f"the knobs are {tables.config}, expected {config}")
        have = (tables.stochastic_rounding, tables.max_gradient)
        if have != (self.bare.stochastic_rounding, self.bare.optimizer.max_gradient):
            raise Wrong(f"rounding and clipping are {have}")

    def teardown(self) -> None:
        torch.use_deterministic_algorithms(False)


def identity_of(bare: Case) -> dict[str, Any]:
    """What a state dict has to say that it is of."""
    return {
        "embedding_specs": [[table.rows, table.dim] for table in bare.tables],
        "pooling_mode": bare.pooling_mode,
        "optimizer": bare.optimizer.name,
        "weight_decay_mode": bare.optimizer.weight_decay_mode,
    }
