"""Rules of the machine: saved, loaded, copied, and tensors put in the place of others."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule
from torch import Tensor, nn

from tests.machine import made
from tests.machine.core import META, Saved, Subject
from tests.machine.learning import Learning
from tests.machine.lookups import lookup_cases
from tests.machine.twin import Held, Twin

#: Saved states at once.
MOST_SAVED = 2
COPIES = ("deepcopy", "pickle", "torch.save", "deepcopy of a model")


def nested(module: nn.Module) -> nn.Module:
    """The module as a part of a model."""
    return nn.ModuleDict({"part": nn.ModuleDict({"bags": module})})


def by_torch_save(what: Any, weights_only: bool) -> Any:
    """Saved to a file and read again."""
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


def tensors_in(module: Any) -> dict[str, Tensor]:
    """The tensors that a module shows by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class Storing(Learning):
    """Checkpoints, copies, replacements."""

    @rule(data=st.data(), filed=st.booleans(), as_part=st.booleans(), meta=META)
    def save(self, data: st.DataObject, filed: bool, as_part: bool, meta: bool) -> None:
        """A state dict, kept; of the module, or of a model that it is a part of."""
        self.keep(self.pick(data), filed, as_part, meta)

    def keep(self, subject: Subject, filed: bool = False, as_part: bool = False, meta: bool = False) -> None:
        """One more saved state; the oldest goes where there are too many."""
        with self.calling(meta):
            whole = nested(subject.module).state_dict() if as_part else subject.module.state_dict()
        state = {name.removeprefix("part.bags."): tensor.clone() for name, tensor in whole.items()}
        state = by_torch_save(state, weights_only=True) if filed else state
        values = {name: held.value.clone() for name, held in subject.twin.held.items()}
        self.saved = [*self.saved, Saved(state, values)][-MOST_SAVED:]

    @rule(
        data=st.data(),
        into=st.sampled_from(("itself", "another")),
        assign=st.booleans(),
        as_part=st.booleans(),
        meta=META,
    )
    def load(self, data: st.DataObject, into: str, assign: bool, as_part: bool, meta: bool) -> None:
        """Into a module at work, or into one made with other values, which then goes on as the one that was saved."""
        if not self.saved:  # that of a module made with other values
            self.keep(self.begin_with(data.draw(made.others(self.bare), "saved of")))
        saved = self.saved[data.draw(st.integers(0, len(self.saved) - 1), "which")]
        if into == "another":
            other = data.draw(made.others(self.bare), "made with")
            knobs = self.pick(data).bare.routing
            subject = self.begin_with(dataclasses.replace(other, routing=knobs))
        else:
            subject = self.pick(data)
        self.leave_gradients(data, subject)
        with self.amid_lookups(data, subject):
            self.take(subject, saved, assign, as_part, meta)
            self.look_closely(subject)

    def take(self, subject: Subject, saved: Saved, assign: bool, as_part: bool, meta: bool) -> None:
        """Load a saved state."""
        given = {name: tensor.clone() for name, tensor in saved.state.items()}
        with self.calling(meta):
            if as_part:
                whole = {f"part.bags.{name}": tensor for name, tensor in given.items()}
                nested(subject.module).load_state_dict(whole, assign=assign)
            else:
                subject.module.load_state_dict(given, assign=assign)
        if assign:  # lookups made before go on with the tensors that were there
            frozen = subject.twin.frozen
            held = {
                name: Held(given[name], value.clone(), frozen and name == "weights")
                for name, value in saved.values.items()
            }
            subject.twin = dataclasses.replace(subject.twin, held=held)
        else:
            for name, value in saved.values.items():
                subject.twin.held[name].value = value.clone()

    @rule(data=st.data(), way=st.sampled_from(COPIES), go_on=st.booleans(), meta=META)
    def copy(self, data: st.DataObject, way: str, go_on: bool, meta: bool) -> None:
        """A copy, to go on with beside the original or in its place."""
        subject = self.pick(data)
        with self.calling(meta):
            if way == "deepcopy":
                module = copy.deepcopy(subject.module)
            elif way == "pickle":
                module = pickle.loads(pickle.dumps(subject.module))
            elif way == "torch.save":
                module = by_torch_save(subject.module, weights_only=False)
            else:
                model: Any = copy.deepcopy(nested(subject.module))
                module = model["part"]["bags"]
        twin = subject.twin.copied(tensors_in(module))
        twin.left = None
        if go_on:
            self.subjects = [s for s in self.subjects if s is not subject]
        made_anew = Subject(module, twin, subject.bare, subject.training)
        self.add(made_anew)
        self.look_closely(made_anew)

    def replacement(self, data: st.DataObject, twin: Twin, name: str) -> Tensor:
        """Another tensor for a name: small numbers that it may hold."""
        value = twin.value(name)
        if name == "hyper":
            return torch.cat((torch.tensor([data.draw(st.sampled_from(made.RATES), "rate")]), value[1:]))
        first = data.draw(st.integers(0, 9), "first")
        return ((torch.arange(value.numel()) + first) % 5).to(value.dtype)

    @rule(data=st.data())
    def replace_tensor(self, data: st.DataObject) -> None:
        """`module.weights = Parameter(...)`, or a buffer: used, trained and saved from now on. Lookups made before go
        on with the one that was there."""
        subject = self.pick(data)
        self.leave_gradients(data, subject)
        with self.amid_lookups(data, subject):
            self.put_in_place(data, subject)
            self.look_closely(subject)

    def leave_gradients(self, data: st.DataObject, subject: Subject) -> None:
        """A backward of an optimizer that leaves row gradients, which then outlive what is done to the module."""
        if self.bare.optimizer.name == "NONE" and not subject.twin.frozen:
            pending = self.look_up(subject, data.draw(lookup_cases(self.bare), "lookup that leaves gradients"))
            if pending is not None:
                self.step_back(subject, pending, False)

    def put_in_place(self, data: st.DataObject, subject: Subject) -> None:
        """Another tensor, in the module and in its twin."""
        name = data.draw(st.sampled_from((*sorted(subject.twin.held), "rounding_seed")), "which tensor")
        held, frozen = subject.twin.held, subject.twin.frozen
        tensor = self.replacement(data, subject.twin, name)
        value = tensor.clone()
        if name == "weights":
            subject.module.weights = nn.Parameter(tensor, requires_grad=not frozen)
        else:
            setattr(subject.module, name, tensor)
        subject.twin = dataclasses.replace(
            subject.twin, held={**held, name: Held(tensor, value, frozen and name == "weights")}
        )
        if self.bare.optimizer.name == "NONE":
            subject.pending = []  # which of them leaves its gradients where is nobody's business

    @rule(data=st.data(), meta=META)
    def functional_call(self, data: st.DataObject, meta: bool) -> None:
        """With tensors that stand in for the module's for one lookup: they are used and trained, the others too."""
        subject = self.pick(data)
        names = [name for name in sorted(subject.twin.held) if name != "hyper"]
        chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True), "which")
        given = {name: self.replacement(data, subject.twin, name) for name in chosen}
        values = {name: tensor.clone() for name, tensor in given.items()}
        if "weights" in given:
            given["weights"].requires_grad_(not subject.twin.frozen)
        stand_ins = {
            name: Held(given[name], values[name], subject.twin.frozen and name == "weights") for name in chosen
        }
        held = {**subject.twin.held, **stand_ins}
        twin = dataclasses.replace(subject.twin, held=held)

        def call(**inputs: Any) -> Tensor:
            return torch.func.functional_call(subject.module, given, kwargs=inputs)

        case = data.draw(lookup_cases(self.bare), "lookup")
        pending = self.look_up(subject, case, meta=meta, twin=twin, call=call)
        if pending is not None and (self.bare.optimizer.name == "NONE" or data.draw(st.booleans(), "at once")):
            self.step_back(subject, pending, False)
            subject.twin.left = twin.left
            self.look_closely(subject)
