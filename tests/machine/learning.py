"""Rules of the machine: lookups in every way that people make them; backwards, whole, in part or not at all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import tbe_kernels
from corpus.case import Case
from oracles.values import interval as iv
from oracles.values.interval import Interval
from tests.machine import made
from tests.machine.core import META, MOST_PENDING, Core, Subject
from tests.machine.lookups import Pending, arguments, lookup_cases, tensors_of
from tests.machine.twin import Twin, Wrong, demand_bits, demand_within

#: How a lookup is made. "hooked": with hooks of the module's and the output's that change nothing.
WAYS = ("plain", "plain", "plain", "no_grad", "inference", "checkpointed", "reentrant", "hooked")
DETERMINISM = st.sampled_from((None, None, "asked for", "warned of"))
Call = Callable[..., Tensor]


class _AsksForNothing(torch.autograd.Function):
    """Passes its input on, and no gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


class Interrupted(Exception):  # noqa: N818  # it is no error
    """Raised in the middle of a backward."""


def _interrupt(gradient: Tensor) -> None:
    raise Interrupted


class Learning(Core):
    """Lookups and backwards."""

    @rule(data=st.data(), way=st.sampled_from(WAYS), meta=META)
    def forward(self, data: st.DataObject, way: str, meta: bool) -> None:
        """A lookup whose backward may come later."""
        subject = self.pick(data)
        case = data.draw(lookup_cases(self.bare), "lookup")
        self.look_up(subject, case, way, bool(data.draw(st.booleans(), "psw is a leaf")), meta)

    def look_up(
        self,
        subject: Subject,
        case: Case,
        way: str = "plain",
        leaf_is_passed: bool = True,
        meta: bool = False,
        twin: Twin | None = None,
        call: Call | None = None,
    ) -> Pending | None:
        """Make a lookup and compare its output; what is left to do for its backward, or None."""
        twin, module = twin or subject.twin, subject.module
        look, tensors = call or module, tensors_of(case)
        leaf = tensors.per_sample_weights if case.batches[0].psw == "trained" else None
        passed = tensors.per_sample_weights if leaf is None or leaf_is_passed else leaf * 1.0
        reference = twin.reference(case)
        if reference.effective.refusal is not None:
            self.is_fatal(lambda: look(**arguments(case, tensors, passed)), reference.effective.refusal)
            return None
        if way == "reentrant" and twin.frozen:
            way = "plain"  # a reentrant checkpoint wants something to train
        graded = way not in ("no_grad", "inference")
        steps = graded and not twin.frozen
        with self.calling(meta):
            output = self._made(module, look, way, case, tensors, passed)
        products = bool(self.paths["forward.small_table"])
        twin.value("bounds_check_warning").add_(reference.effective.warnings)
        expected = reference.forward(twin.by_table("weights"), twin.accumulator(), products)
        want = (reference.output.shape, getattr(torch, case.output_dtype), steps or (graded and leaf is not None))
        have = (tuple(output.shape), output.dtype, output.requires_grad)
        if have != want:
            raise Wrong(f"the output is {have}, expected {want}")
        demand_within("outputs", expected, output.reshape(-1))
        if not output.requires_grad:
            return None
        owner = None if way == "reentrant" else twin
        pending = Pending(case, tensors, output, leaf, passed, owner, steps, way)
        subject.pending = [*subject.pending, pending][-MOST_PENDING:]
        return pending

    def _made(self, module: Any, look: Call, way: str, case: Case, tensors: Any, passed: Tensor | None) -> Tensor:
        """The output of a lookup that is made in some way."""

        def made_with(weights: Tensor | None, anchor: Tensor) -> Tensor:
            return look(**arguments(case, tensors, weights))

        anchor = torch.zeros(1, device="cpu", requires_grad=True)  # what a reentrant checkpoint goes by
        if way in ("checkpointed", "reentrant"):
            return checkpoint(made_with, passed, anchor, use_reentrant=way == "reentrant")
        if way == "no_grad":
            with torch.no_grad():
                return made_with(passed, anchor)
        if way == "inference":
            with torch.inference_mode():
                return made_with(passed, anchor)
        seen: list[Any] = []
        handles = []
        if way == "hooked":
            handles = [
                module.register_forward_pre_hook(lambda m, a, k: seen.append(k), with_kwargs=True),
                module.register_forward_hook(lambda m, a, output: output.clone()),
                module.register_full_backward_hook(lambda m, given, gradient: None),
            ]
        output = made_with(passed, anchor)
        for handle in handles:
            handle.remove()
        if way == "hooked" and output.requires_grad:
            output.register_hook(lambda gradient: None if gradient is None else gradient * 1.0)
        if len(seen) != (way == "hooked"):
            raise Wrong(f"the forward's hook was called {len(seen)} times")
        return output

    def is_fatal(self, call: Callable[[], object], expected: Any) -> None:
        """A bounds check refuses, and says where."""
        error: Any = self.refuses(self.package.BoundsCheckError, "", call)
        have = (error.kind, error.feature, error.bag, error.index, error.rows, error.place)
        want = (expected.kind, expected.feature, expected.bag, expected.index, expected.rows, expected.place)
        if have != want:
            raise Wrong(f"the bounds check refused {have}, expected {want}")

    def pick_pending(self, data: st.DataObject) -> tuple[Subject, Pending] | None:
        """A lookup whose backward is still to come, of any module; where there is none, one is made. None if that asks
        for no backward."""
        some = [(subject, p) for subject in self.subjects for p in subject.pending]
        if not some:
            return self.begun(data)
        return some[data.draw(st.integers(0, len(some) - 1), "which lookup")]

    def begun(self, data: st.DataObject) -> tuple[Subject, Pending] | None:
        """A lookup made now, its per-sample weights trained where there may be any, be they a leaf or not."""
        subject, case = self.pick(data), data.draw(lookup_cases(self.bare, trained=True), "lookup")
        pending = self.look_up(subject, case, leaf_is_passed=data.draw(st.booleans(), "psw is a leaf"))
        return None if pending is None else (subject, pending)

    @rule(
        data=st.data(),
        retain=st.booleans(),
        meta=META,
        determinism=DETERMINISM,
    )
    def backward(self, data: st.DataObject, retain: bool, meta: bool, determinism: str | None) -> None:
        """Of any lookup, in any order; a second one where the graph was retained, refused where it was not."""
        picked = self.pick_pending(data)
        if picked is not None:
            self.step_back(*picked, retain, meta, determinism)

    @rule(data=st.data(), meta=META, way=st.sampled_from(WAYS), determinism=DETERMINISM)
    def train(self, data: st.DataObject, meta: bool, way: str, determinism: str | None) -> None:
        """A lookup and at once its backward; one that asks for no backward first, where that is its way."""
        subject = self.pick(data)
        pending = self.look_up(subject, data.draw(lookup_cases(self.bare), "lookup"), way)
        if pending is None:
            pending = self.look_up(subject, data.draw(lookup_cases(self.bare), "second lookup"))
        if pending is not None:
            self.step_back(subject, pending, False, meta, determinism)
            self.look_closely(subject)

    @contextmanager
    def amid_lookups(self, data: st.DataObject, subject: Subject) -> Iterator[None]:
        """Around something that changes a module: a lookup may be begun before, or inference come first after."""
        when = data.draw(st.sampled_from(("never", "before", "before", "after")), "a lookup")
        case = data.draw(lookup_cases(self.bare), "lookup")
        pending = self.look_up(subject, case) if when == "before" else None
        yield
        if when == "after":
            self.look_up(subject, case, "inference")
            pending = self.look_up(subject, case)
        if pending is not None and any(p is pending for p in subject.pending):
            self.step_back(subject, pending, False)

    @rule(data=st.data())
    def train_in_turn(self, data: st.DataObject) -> None:
        """The same batch in every module: what they share in secret shows where they differ."""
        case = data.draw(lookup_cases(self.bare), "lookup")
        for subject in self.subjects:
            pending = self.look_up(subject, case)
            if pending is not None:
                self.step_back(subject, pending, False)

    @rule(data=st.data(), meta=META, backwards=st.booleans())
    def train_twice(self, data: st.DataObject, meta: bool, backwards: bool) -> None:
        """Two lookups before two backwards, perhaps of two modules; the last one first, or the first one."""
        begun = []
        for _ in range(2):
            subject = self.pick(data)
            pending = self.look_up(subject, data.draw(lookup_cases(self.bare), "lookup"), meta=meta)
            begun += [(subject, pending)] if pending is not None else []
        for subject, pending in reversed(begun) if backwards else begun:
            self.step_back(subject, pending, retain=True, meta=meta)
            self.look_closely(subject)

    def step_back(
        self, subject: Subject, pending: Pending, retain: bool, meta: bool = False, determinism: str | None = None
    ) -> None:
        """The backward of a lookup, and what it has to leave."""
        if pending.way in ("checkpointed", "reentrant") and pending.steps == subject.twin.frozen:
            return  # made again, it would be another lookup
        twin = pending.twin or subject.twin
        gradient = pending.tensors.grad_output * (twin.scale or 1.0)
        if pending.freed:
            if pending.way == "plain":
                self.refuses(RuntimeError, "a second time", lambda: pending.output.backward(gradient))
            return
        before = None if pending.leaf is None or pending.leaf.grad is None else pending.leaf.grad.clone()
        steps = pending.steps and not twin.frozen
        values = {name: held.value.clone() for name, held in twin.held.items()}
        merge = subject.bare.routing.get("long_run_merge", "auto")
        told = steps and determinism is not None and merge in ("atomic", "fused")
        context = _determinism(determinism)
        if told and determinism == "asked for":
            with context:
                self.refuses(
                    RuntimeError, "long_run_merge", lambda: pending.output.backward(gradient, retain_graph=True)
                )
            if pending.leaf is not None:
                pending.leaf.grad = None  # whether it was there before the refusal is nobody's business
            return
        with context, self.calling(meta), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            pending.output.backward(gradient, retain_graph=retain)
        if any("long_run_merge" in str(w.message) for w in heard) != told:
            raise Wrong(f"warnings: {[str(w.message) for w in heard]}")
        pending.freed = not retain
        self.has_stepped(subject, pending, twin, steps, before)
        if steps and self.bare.stochastic_rounding and self.bare.weights_dtype != "float32":
            self.is_rounded_alike(subject, pending, twin, values)

    def has_stepped(
        self, subject: Subject, pending: Pending, twin: Twin, steps: bool, before: Tensor | None, psw: bool = True
    ) -> None:
        """Compare what a backward left: per-sample weights learn from the rows before the step."""
        products = bool(self.paths["backward.from_counts"])
        expected = twin.backward(pending.case, products)
        if psw and pending.leaf is not None:
            self.is_gradient(expected.psw_gradient, pending.leaf.grad, twin, before)
        if steps:
            twin.follow(pending.case, expected, {name: held.tensor for name, held in twin.held.items()})
            demand_bits_of(twin)

    def is_rounded_alike(self, subject: Subject, pending: Pending, twin: Twin, values: dict[str, Tensor]) -> None:
        """Chance is a function of seed, iteration and element: a new module in the same state has the same luck."""
        new = made.make(tbe_kernels, subject.bare)
        new.load_state_dict({**values, "_extra_state": new.get_extra_state()})
        with self.calling():
            output = new(**arguments(pending.case, pending.tensors, pending.tensors.per_sample_weights))
            output.backward(pending.tensors.grad_output)
        demand_bits("weights rounded by chance", new.weights, twin.held["weights"].tensor)

    def is_gradient(
        self, allowed: Interval | None, actual: Tensor | None, twin: Twin, before: Tensor | None = None
    ) -> None:
        """The gradient of per-sample weights: still scaled, and added to what was there."""
        assert allowed is not None
        if actual is None:
            raise Wrong("the per-sample weights have no gradient")
        scaled = Interval(allowed.lo * (twin.scale or 1.0), allowed.hi * (twin.scale or 1.0))
        if before is not None:
            scaled = iv.add(Interval.point(before.to(torch.float64)), scaled)
        demand_within("psw_gradient", scaled, actual)

    @rule(data=st.data(), retain=st.booleans(), meta=META)
    def partial_backward(self, data: st.DataObject, retain: bool, meta: bool) -> None:
        """The gradient of the per-sample weights alone, of a leaf or not: nothing is trained."""
        picked = self.begun(data) if data.draw(st.booleans(), "a new lookup") else self.pick_pending(data)
        if picked is None:
            return
        subject, pending = picked
        if pending.leaf is None or pending.freed or pending.way in ("reentrant", "checkpointed"):
            return
        twin = pending.twin or subject.twin
        wanted = pending.psw if data.draw(st.booleans(), "of what was passed") else pending.leaf
        assert wanted is not None
        gradient = pending.tensors.grad_output * (twin.scale or 1.0)
        with self.calling(meta):
            (found,) = torch.autograd.grad(pending.output, wanted, gradient, retain_graph=retain)
        pending.freed = not retain
        self.is_gradient(twin.backward(pending.case, False).psw_gradient, found, twin)

    @rule(data=st.data())
    def backward_of_nothing(self, data: st.DataObject) -> None:
        """The output gets no gradient: nothing moves."""
        picked = self.pick_pending(data)
        if picked is not None and not picked[1].freed and picked[1].way != "reentrant":  # which cannot do without
            with self.calling():
                _AsksForNothing.apply(picked[1].output).sum().backward(retain_graph=True)

    @rule(data=st.data(), at=st.sampled_from(("output", "passed", "leaf")))
    def interrupted_backward(self, data: st.DataObject, at: str) -> None:
        """It raises before the lookup's part, when nothing may have moved, or behind it, when the step is taken whole
        or not at all."""
        picked = self.pick_pending(data)
        if picked is None:
            return
        subject, pending = picked
        place = {"output": pending.output, "passed": pending.psw, "leaf": pending.leaf}[at]
        if place is None or not place.requires_grad or pending.freed or pending.way in ("reentrant", "checkpointed"):
            return
        twin = pending.twin or subject.twin
        gradient, handle = pending.tensors.grad_output * (twin.scale or 1.0), place.register_hook(_interrupt)
        with self.calling():
            try:
                pending.output.backward(gradient, retain_graph=True)
            except Interrupted:
                pass
            else:
                raise Wrong("the backward was not interrupted")
            finally:
                handle.remove()
        if pending.leaf is not None:
            pending.leaf.grad = None
        if at != "output" and not torch.equal(twin.held["iter"].tensor, twin.value("iter")):
            self.has_stepped(subject, pending, twin, pending.steps and not twin.frozen, None, psw=False)


def demand_bits_of(twin: Twin) -> None:
    """Tensors that no module shows any more are looked at here."""
    twin.check({name: held.tensor for name, held in twin.held.items()})


class _Determinism:
    def __init__(self, asked: str) -> None:
        self.asked = asked

    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True, warn_only=self.asked == "warned of")

    def __exit__(self, *raised: object) -> None:
        torch.use_deterministic_algorithms(False)


def _determinism(asked: str | None) -> Any:
    return nullcontext() if asked is None else _Determinism(asked)
