"""Rules of the machine: what is set between steps, and what people call on any module."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.machine import made
from tests.machine.core import META
from tests.machine.learning import Learning
from tests.machine.twin import HYPER

#: Methods of any module that cast it, and to what.
DTYPES = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64"}


class Turning(Learning):
    """Learning rate, hyper-parameters, seed, scale, freezing; and calls that change nothing."""

    @rule(data=st.data(), rate=st.sampled_from(made.RATES), meta=META, by=st.sampled_from(("name", "names")))
    def set_learning_rate(self, data: st.DataObject, rate: float, meta: bool, by: str) -> None:
        """Also to what it is."""
        subject = self.pick(data)
        if data.draw(st.booleans(), "as it is"):
            rate = float(subject.twin.value("hyper")[0])
        with self.calling(meta):
            if by == "name":
                subject.module.set_learning_rate(rate)
            else:
                subject.module.update_hyper_parameters({"lr": rate})
        subject.twin.value("hyper")[0] = rate

    @rule(data=st.data(), meta=META)
    def update_hyper_parameters(self, data: st.DataObject, meta: bool) -> None:
        """Some of those that the optimizer reads."""
        subject, given = self.pick(data), self.bare.optimizer
        names = [n for n in HYPER[given.name] if n != "weight_decay" or "ADAGRAD" not in given.name]
        if not names:
            return
        chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True), "names")
        values = {name: data.draw(st.sampled_from(made.MENU[name]), name) for name in chosen}
        with self.amid_lookups(data, subject):
            with self.calling(meta):
                subject.module.update_hyper_parameters(values)
            for name, value in values.items():
                subject.twin.value("hyper")[1 + HYPER[given.name].index(name)] = value

    @rule(data=st.data(), seed=st.sampled_from((None, *made.SEEDS)), step=st.sampled_from((0, 1, 5, 1000)))
    def set_seed_or_step(self, data: st.DataObject, seed: int | None, step: int) -> None:
        """What the noise of rounding is made from."""
        subject = self.pick(data)
        if seed is None:
            subject.module.set_optimizer_step(step)
            subject.twin.value("iter").fill_(step)
        else:
            subject.module.set_rounding_seed(seed)
            subject.twin.value("rounding_seed").fill_(seed)

    @rule(data=st.data(), scale=st.sampled_from((None, 2.0, 0.5, 1024.0)))
    def set_gradient_scale(self, data: st.DataObject, scale: float | None) -> None:
        """A power of two: unscaled gradients keep every bit."""
        subject = self.pick(data)
        with self.amid_lookups(data, subject):
            subject.module.gradient_scale = None if scale is None else torch.tensor(scale)
            subject.twin.scale = scale

    @rule(data=st.data(), first=st.integers(0, 12))
    def write_weights(self, data: st.DataObject, first: int) -> None:
        """In place, as an initialisation does."""
        self.fill(self.pick(data), first)

    @rule(data=st.data())
    def freeze_or_thaw(self, data: st.DataObject) -> None:
        subject = self.pick(data)
        weights = subject.twin.held["weights"]
        with self.amid_lookups(data, subject):
            weights.frozen = not weights.frozen
            if data.draw(st.booleans(), "the whole module"):
                subject.module.requires_grad_(not weights.frozen)
            else:
                subject.module.weights.requires_grad_(not weights.frozen)

    @rule(data=st.data(), name=st.sampled_from(("train", "zero_grad", *DTYPES, "cpu", "meta")))
    def usual_call(self, data: st.DataObject, name: str) -> None:
        """What is called on any module. It trains nothing; to change type or device is refused."""
        subject = self.pick(data)
        module = subject.module
        if name == "train":
            subject.training = not subject.training
            module.train(subject.training)
        elif name == "zero_grad":  # an outer optimizer passes by, since no parameter has a gradient
            outer = torch.optim.AdamW(module.parameters(), lr=1.0, weight_decay=0.5)
            outer.step()
            outer.zero_grad()
            module.zero_grad(set_to_none=data.draw(st.booleans(), "set to none"))
        elif name == "cpu" or DTYPES.get(name) == self.bare.weights_dtype:
            getattr(module, name)()
        else:
            call = (lambda: module.to("meta")) if name == "meta" else getattr(module, name)
            self.refuses(RuntimeError, "stays as it was made", call)
