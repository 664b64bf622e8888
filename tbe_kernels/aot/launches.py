"""What the wrappers launch on a setting, and the form in which Triton would compile each launch.

A setting is run through the module itself on torch's meta device, with Triton's launch replaced by a note. That works
since nothing in a step reads a result back, and it needs no memory, so tables and batches beyond 2**31 are settings
like any other. The form comes from Triton's own binder, the one that a real launch goes through.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from tbe_kernels.aot.variants import AXES, POINTERS, Arguments, Setting
from tbe_kernels.config import KernelConfig
from tbe_kernels.module import TableBatchedEmbeddingBags
from tbe_kernels.optimizers import OPTIMIZERS, OptimType
from tbe_kernels.spec import BoundsCheckMode, PoolingMode, WeightDecayMode

#: Rows of a table, samples of a batch: few enough for any route, and more than an int32 holds.
ROWS = {"few": 50, "tiny": 5, "many": 2**31}
SAMPLES = {"plain": 1000, "variable": 1000, "many": 2**31}
BAG_LENGTH = 100
DIVISIBLE = ["tt.divisibility", 16]
#: What launches get from Triton up to 3.9 where nothing is said. Said, since 3.10 will change it.
FP_FUSION = True


@dataclass(frozen=True)
class NotedLaunch:
    """One launch of a kernel: its positional and keyword arguments, launch options among the latter."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Form:
    """What a kernel is compiled as for one kind of target: what `ASTSource` and `triton.compile` take.

    `arguments`: of a launch that takes this form, by name.
    """

    kernel: Any
    signature: dict[str, Any]
    constexprs: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], list[list[Any]]]
    options: dict[str, Any]
    arguments: Arguments

    @property
    def key(self) -> str:
        """The same for forms that compile alike."""
        return repr((self.kernel, self.signature, self.constexprs, sorted(self.attributes.items()), self.options))

    def source(self) -> ASTSource:
        """What `triton.compile` takes."""
        return ASTSource(self.kernel, self.signature, self.constexprs, self.attributes)


def launches(setting: Setting, target_kind: str) -> list[NotedLaunch]:
    """Every launch of a forward and a backward on a setting; `target_kind` ("cuda" or "hip") gives usual knobs.

    Needs a process that does not interpret.
    """
    knobs = {axis: value for axis, value in setting.items() if axis in KernelConfig.__dataclass_fields__}
    optimizer, decay = setting["optimizer"]
    bounds_norm = setting["max_norm"] and "max_norm" in OPTIMIZERS[OptimType[optimizer]].hyperparameters
    lookups = setting["lookups"]
    with recording() as seen:
        module = TableBatchedEmbeddingBags(
            [(ROWS[setting["rows"]], setting["D"])],
            pooling_mode=PoolingMode["SUM" if lookups == "WEIGHTED" else lookups],
            weights_precision=getattr(torch, setting["weights"]),
            output_dtype=getattr(torch, setting["output"]),
            bounds_check_mode=BoundsCheckMode[setting["bounds_check"]],
            optimizer=OptimType[optimizer],
            weight_decay_mode=WeightDecayMode[decay],
            max_norm=float(bounds_norm),
            gradient_clipping=setting["gradient_clipping"],
            stochastic_rounding=setting["stochastic_rounding"],
            config=KernelConfig.for_target(target_kind, knobs),
            device="meta",
        )
        B = SAMPLES[setting["bags"]]
        N = B * BAG_LENGTH
        psw = torch.empty(N, device="meta", requires_grad=True) if lookups == "WEIGHTED" else None
        try:
            output = module(
                torch.empty(N, dtype=getattr(torch, setting["indices"]), device="meta"),
                torch.empty(B + 1, dtype=getattr(torch, setting["offsets"]), device="meta"),
                psw,
                [[B // 2, B - B // 2]] if setting["bags"] == "variable" else None,
                torch.ones(1, dtype=torch.int32, device="meta") if setting["feature_requires_grad"] else None,
            )
        except NotImplementedError:  # the one result that is read back: that of a FATAL bounds check
            if setting["bounds_check"] != "FATAL":
                raise
        else:
            output.backward(torch.empty_like(output))
    return seen


@contextmanager
def recording() -> Iterator[list[NotedLaunch]]:
    """Inside, a launch runs nothing and is noted instead."""
    seen: list[NotedLaunch] = []

    def note(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        seen.append(NotedLaunch(kernel, args, kwargs))

    real = JITFunction.run
    JITFunction.run = note
    try:
        yield seen
    finally:
        JITFunction.run = real


def form_of(launch: NotedLaunch, target: GPUTarget, pointers: str) -> Form:
    """How Triton compiles a launch for a target, with `pointers` "aligned" to 16 bytes or "unaligned".

    Raises TypeError for an argument that is missing (as a constexpr it would silently be None), KeyError for one that
    the kernel does not have, ValueError for a run-time integer that Triton would specialize on.
    """
    kernel, backend = launch.kernel, make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = bind(*launch.args, **launch.kwargs, enable_fp_fusion=FP_FUSION)
    _, signature, constexprs, attributes = kernel._pack_args(backend, dict(options), bound, specialization, options)
    for parameter, value in zip(kernel.params, bound.values(), strict=True):
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and not parameter.is_constexpr
            and not parameter.do_not_specialize
        ):
            raise ValueError(f"{kernel.__name__}: {parameter.name} is a run-time integer outside do_not_specialize")
    if pointers == "unaligned":
        attributes = {place: [a for a in found if a != DIVISIBLE] for place, found in attributes.items()}
    attributes = {place: found for place, found in attributes.items() if found}
    return Form(kernel, signature, constexprs, attributes, options, bound)


def forms(kernel: Any, settings: list[Setting], target: GPUTarget) -> dict[str, tuple[Setting, Form]]:
    """The different forms of a kernel over settings, by key, each with the first setting that leads to it.

    Raises ValueError for a setting that does not launch the kernel.
    """
    found: dict[str, tuple[Setting, Form]] = {}
    for setting in settings:
        own = [launch for launch in launches(setting, target.backend) if launch.kernel is kernel]
        if not own:
            raise ValueError(f"{kernel.__name__} is not launched with {dict(setting)}; exclude that by `only`")
        for launch in own:
            form = form_of(launch, target, setting[POINTERS])
            found.setdefault(form.key, (setting, form))
    return found


def undeclared(kernel: Any, variants: Any, target: GPUTarget) -> list[str]:
    """Values of axes that lead to further forms of a kernel, although its `Variants` leaves them out."""
    usual, menus, missing = variants.usual(), variants.menus(), []
    known = forms(kernel, [{**usual, axis: value} for axis, menu in menus.items() for value in menu], target).keys()
    for axis, menu in AXES.items():
        for value in menu:
            if value == usual[axis] or value in menus.get(axis, ()):
                continue
            for launch in launches({**usual, axis: value}, target.backend):
                if launch.kernel is kernel and form_of(launch, target, usual[POINTERS]).key not in known:
                    missing.append(f"{axis}={value}")
    return missing
