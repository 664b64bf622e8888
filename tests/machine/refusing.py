"""Rules of the machine: what is refused, after which everything is as it was."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from corpus.case import Case, Table
from tests.machine import made
from tests.machine.core import META
from tests.machine.learning import Learning
from tests.machine.lookups import arguments, lookup_cases, tensors_of
from tests.machine.storing import nested

#: Arguments of a lookup that are refused, and the name in the words of the refusal.
WRONG_INPUTS: dict[str, Any] = {
    "indices": lambda given: {"indices": given["indices"].to(torch.float32)},
    "offsets": lambda given: {"offsets": given["offsets"].to(torch.int16)},
    "per_sample_weights": lambda given: {"per_sample_weights": torch.ones(given["indices"].numel() + 1)},
    "batch_size_per_feature_per_rank": lambda given: {"batch_size_per_feature_per_rank": [[-1]] * 9},
    "feature_requires_grad": lambda given: {"feature_requires_grad": torch.ones(9, dtype=torch.int32)},
}
#: Settings that are refused.
WRONG_VALUES: tuple[dict[str, Any], ...] = (
    {"lr": -1.0},
    {"lr": 0.125, "eps": float("nan")},
    {"lr": 0.125, "gamma": 1.0},
)


def of_others(bare: Case) -> dict[str, Case]:
    """Modules whose checkpoints are refused, by the name that the refusal tells."""
    first, *rest = bare.tables
    longer = (Table(first.rows + 1, first.dim), *rest)
    optimizer = "EXACT_SGD" if bare.optimizer.name != "EXACT_SGD" else "NONE"
    plain = dataclasses.replace(bare.optimizer, name=optimizer, weight_decay_mode="NONE")
    found = {
        "embedding_specs": dataclasses.replace(bare, tables=longer),
        "optimizer": dataclasses.replace(bare, optimizer=plain),
        "pooling_mode": dataclasses.replace(bare, pooling_mode="MEAN" if bare.pooling_mode != "MEAN" else "SUM"),
    }
    swapped = tuple(Table(table.dim, table.rows) for table in bare.tables)
    if swapped != bare.tables and bare.pooling_mode != "NONE":  # of the same length
        found["embedding_specs["] = dataclasses.replace(bare, tables=swapped)
    return found


class Refusing(Learning):
    """Wrong input, wrong settings, wrong checkpoints."""

    @rule(data=st.data(), name=st.sampled_from(("bad id", "values", *sorted(WRONG_INPUTS))))
    def wrong_call(self, data: st.DataObject, name: str) -> None:
        """A lookup or a setting that is refused; a bad id is where the mode is FATAL, and repaired elsewhere."""
        subject = self.pick(data)
        case = data.draw(lookup_cases(self.bare, refused=name == "bad id"), "lookup")
        if name == "bad id":
            self.look_up(subject, case)
        elif name == "values":
            for values in WRONG_VALUES:
                self.refuses(ValueError, "", partial(subject.module.update_hyper_parameters, values))
            self.refuses(ValueError, "rounding_seed", lambda: subject.module.set_rounding_seed(2**63))
            self.refuses(ValueError, "step", lambda: subject.module.set_optimizer_step(-1))
        else:
            tensors = tensors_of(case)
            given = arguments(case, tensors, tensors.per_sample_weights)
            self.refuses(ValueError, name, lambda: subject.module(**{**given, **WRONG_INPUTS[name](given)}))

    @rule(data=st.data(), assign=st.booleans(), as_part=st.booleans(), meta=META)
    def wrong_checkpoint(self, data: st.DataObject, assign: bool, as_part: bool, meta: bool) -> None:
        """Of a module with other tables, pooling or optimizer."""
        subject, others = self.pick(data), of_others(self.bare)
        name = data.draw(st.sampled_from(sorted(others)), "what differs")
        with self.calling():
            given = made.make(self.package, others[name])
            state = nested(given).state_dict() if as_part else given.state_dict()
        target = nested(subject.module) if as_part else subject.module
        self.refuses(RuntimeError, name, lambda: target.load_state_dict(state, assign=assign), meta)

    def is_learning(self) -> bool:
        return self.bare.pooling_mode != "NONE"

    @precondition(is_learning)
    @rule(data=st.data(), overflow=st.sampled_from((float("inf"), float("nan"))))
    def overflown_gradient(self, data: st.DataObject, overflow: float) -> None:
        """Under a scale, a step whose gradient overflows is left out whole and not counted."""
        subject = self.pick(data)
        pending = self.look_up(subject, data.draw(lookup_cases(self.bare), "lookup"))
        if pending is None or subject.twin.scale is None or pending.output.numel() == 0:
            return
        gradient = pending.tensors.grad_output.clone()
        gradient.view(-1)[-1] = overflow
        with self.calling():
            pending.output.backward(gradient)
        pending.freed = True
        if self.bare.optimizer.name == "NONE":
            subject.twin.left = None
