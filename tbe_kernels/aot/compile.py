"""The ahead-of-time gate: `python -m tbe_kernels compile` compiles every kernel for GPUs that need not be there.

The registry names the kernels; each has `Variants` beside it, from which `tbe_kernels.aot.variants` draws settings and
`tbe_kernels.aot.launches` the forms to compile; `tbe_kernels.aot.assembly` looks at what comes out. One task is one
kernel for one target; tasks run in processes of their own. Interpreted tests cannot replace this: the interpreter takes
a `break`, a variable that changes its type over an `if`, and any address that happens to fit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from tbe_kernels.aot.assembly import Resources, findings, most, resources
from tbe_kernels.aot.launches import Form, forms, undeclared
from tbe_kernels.aot.reach import jit_functions, kernels, rows, unreachable
from tbe_kernels.aot.variants import POINTERS, Setting, Variants

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}
TRITON = tuple(map(int, triton.__version__.split(".")[:2]))
HEADER = f"{'kernel':<26} {'target':<8} {'forms':>5} {'registers':>9} {'shared':>7} {'spilled':>7} {'seconds':>8}"


@dataclass
class Result:
    """What became of one kernel for one target. `used`: the most of each resource over its forms."""

    kernel: str
    target: str
    compiled: int = 0
    seconds: float = 0.0
    used: Resources = field(default_factory=Resources)
    failures: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Its row of the table."""
        used = ("-" if n is None else str(n) for n in (self.used.registers, self.used.shared, self.used.spilled))
        registers, shared, spilled = used
        return (
            f"{self.kernel:<26} {self.target:<8} {self.compiled:>5} {registers:>9} {shared:>7} {spilled:>7} "
            f"{self.seconds:>8.1f}{'  FAILED' if self.failures else ''}"
        )


def variants_of(kernel: Any) -> Variants:
    """The `Variants` beside a kernel. Raises ValueError if its file has none for it."""
    declared = getattr(sys.modules[kernel.__module__], "VARIANTS", {})
    if kernel.__name__ not in declared:
        raise ValueError(f"{kernel.__name__}: no variants; expected them in VARIANTS of {kernel.__module__}")
    return declared[kernel.__name__]


def registry_failures(names: list[str]) -> list[str]:
    """Kernels that no row reaches, that have no variants, or whose variants leave out what changes their form."""
    wrong = [f"{name}: reachable from no row of the registry" for name in unreachable(rows(), jit_functions())]
    for name in names:
        kernel = kernels()[name]
        try:
            missing = undeclared(kernel, variants_of(kernel), TARGETS["sm_90"])
        except Exception as error:
            wrong.append(f"{name}: {_message(error)}")
        else:
            wrong += [f"{name}: its form depends on {axis}, which its variants leave out" for axis in missing]
    return wrong


def forms_of(name: str, target: str) -> list[tuple[Setting, Form]]:
    """The forms of a kernel for one target, each with a setting that leads to it."""
    kernel = kernels()[name]
    return list(forms(kernel, variants_of(kernel).settings(target), TARGETS[target]).values())


def check_kernel(name: str, target_name: str) -> Result:
    """Compile every form of a kernel for one target and look at each."""
    begin, target, result = time.perf_counter(), TARGETS[target_name], Result(name, target_name)
    used: list[Resources] = []
    # Before 3.8, AMD's buffer loads forget what is divisible.
    vectors = target.backend == "cuda" or TRITON >= (3, 8)
    try:
        variants, found = variants_of(kernels()[name]), forms_of(name, target_name)
    except Exception as error:
        found = []
        result.failures.append(f"{name}, {target_name}: {_message(error)}")
    for setting, form in found:
        try:
            compiled = triton.compile(form.source(), target=target, options=form.options)
            warps, aligned = compiled.metadata.num_warps, setting[POINTERS] == "aligned"
            wrong = findings(variants, form.arguments, aligned, warps, target.warp_size, compiled.asm, vectors)
            used.append(resources(compiled.asm, compiled.metadata, triton.knobs.nvidia.cuobjdump.path))
        except Exception as error:
            wrong = [_message(error)]
        result.compiled += 1
        result.failures += [f"{name}, {target_name}, {variants.describe(setting)}: {text}" for text in wrong]
    result.used = most(used)
    result.seconds = time.perf_counter() - begin
    return result


def _message(error: Exception) -> str:
    """An error and what led to it: the compiler wraps the reason in where it was met."""
    told: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        told.append(f"{type(seen).__name__}: {str(seen).strip()}")
        seen = seen.__cause__ or seen.__context__
    return "\n".join(told)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tbe_kernels compile`."""
    parser.add_argument("--target", action="append", choices=TARGETS, help="compile for this GPU only; repeatable")
    parser.add_argument("--kernel", action="append", metavar="NAME", help="compile this kernel only; repeatable")
    parser.add_argument("--list", action="store_true", help="print the settings of each kernel and compile nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one a core)")


def main(arguments: argparse.Namespace) -> int:
    """Exit code 0 if every kernel compiles for every target, and the code is as it should be; 1 if one is not; 2 for a
    call that makes no sense."""
    if triton.knobs.runtime.interpret:
        print("compile: a process that interprets kernels cannot compile them; unset TRITON_INTERPRET", file=sys.stderr)
        return 2
    names = arguments.kernel or list(kernels())
    if unknown := [name for name in names if name not in kernels()]:
        print(f"--kernel: expected some of {', '.join(kernels())}, got {', '.join(unknown)}", file=sys.stderr)
        return 2
    if arguments.list:
        for name in names:
            _list(name)
        return 0
    targets = arguments.target or list(TARGETS)
    begin = time.perf_counter()
    print(f"Triton {triton.__version__}, {len(names)} kernels, {len(targets)} targets, {arguments.jobs} processes")
    failures = registry_failures(names)
    print(HEADER, flush=True)
    compiled = 0
    for result in _results(names, targets, arguments.jobs):
        print(result.line(), flush=True)
        failures += result.failures
        compiled += result.compiled
    for failure in failures:
        print(f"\nFAILED {failure}")
    cpu = sum(os.times()[:4])
    seconds = time.perf_counter() - begin
    print(f"\n{compiled} compilations, {len(failures)} failures, {seconds:.0f} s, {cpu:.0f} s of processor time")
    return 1 if failures else 0


def _results(names: list[str], targets: list[str], jobs: int) -> Any:
    """A `Result` for each kernel and target as it comes; in fresh processes, with a compilation cache of their own."""
    with tempfile.TemporaryDirectory(prefix="tbe-compile-") as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            tasks = [pool.submit(check_kernel, name, target) for name in names for target in targets]
            for task in as_completed(tasks):
                yield task.result()


def _list(name: str) -> None:
    variants = variants_of(kernels()[name])
    space = variants.space()
    targets_of: dict[str, list[str]] = {}
    for target in TARGETS:
        for setting in variants.settings(target):
            targets_of.setdefault(variants.describe(setting), []).append(target)
    print(f"{name}: {len(targets_of)} of {space} settings{'' if len(targets_of) == space else ', pairwise'}")
    for described, targets in targets_of.items():
        print(f"  {described}: {'every target' if len(targets) == len(TARGETS) else ', '.join(targets)}")
