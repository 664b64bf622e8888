"""Runs a case under many schedules; the first that changes a result becomes part of the case."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import ModuleType

import torch

import tbe_kernels
from corpus.case import Case
from oracles import interpreter
from oracles.adapters.kernels import TbeKernels
from oracles.check import Status, Sweep, Verdict, check

CPU = torch.device("cpu")


@dataclasses.dataclass
class Explored:
    """What came of it: the verdict without any schedule, or with the first that changed a result; launches whose
    programs share memory, schedules run, and the seconds they took."""

    verdict: Verdict
    launches: int
    schedules: int
    seconds: float
    what: str


def explore(case: Case, some: Iterable[tuple[int, ...]], package: ModuleType = tbe_kernels) -> Explored:
    """Check a case, whose sums have to be exact, under each of some schedules, on its own routing."""
    interpreter.install()
    from oracles.interpreter.concurrency import schedules

    with schedules.exploring(some) as done:
        verdict = check(case, TbeKernels(package), CPU, Sweep.OWN)
    if verdict.status is Status.PASSED and done.failing is not None:
        verdict = check(dataclasses.replace(case, schedule=done.failing), TbeKernels(package), CPU, Sweep.OWN)
    return Explored(verdict, done.launches, done.schedules, done.seconds, f"{done.kernel}: {done.what}")
