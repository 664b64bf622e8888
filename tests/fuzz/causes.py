"""The cause of a failure: what one has to know to say whether two failures are the same one.

A cause is *what* is wrong and the kernel *paths* that may have done it:

* a wrong result: the quantity that differs (outputs, weights, psw gradients, ...), without the numbers, and the paths
  that the failing routing took, by itself. For what a forward leaves, the backward's paths are left out: a forward is
  judged from what the implementation itself had before it, so a backward is not to blame;
* a guard's finding: the guard and the kernel that it stopped, whatever the paths;
* an exception: its type and the place that raised it;
* a process that is gone: the signal that killed it.

A large case takes many paths, most of them by the way. So what counts is the cause of the *small* case: it takes the
paths that the failure cannot do without, and failures whose small cases agree in both are one cause. A failure that has
not been made small is put down to a cause that explains it: the same quantity, on some of its paths, or on others that
run the same kernels.

Where this is wrong: two faults that spoil the same quantity on the same paths are one cause, until one of them is
repaired; a case that runs into two faults counts for one of them; and one fault is several causes if it shows in
several quantities, or on paths that no case can do without in the same way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from oracles.check import Verdict
from oracles.values.compare import Finding
from tbe_kernels.paths import PATHS

#: Beginnings of what can be wrong before any backward.
FORWARD = ("output", "bounds_check_warning", "the bounds check")
#: What a headline says beyond the quantity: what was there instead, how many, where, of which shape.
_DETAILS = (
    r"( = |, expected |, without |, found |, only |, was ).*",
    r"^\d+ (of \d+ )?",
    r",? (of table|after the backward of batch|of batch|batch) \d+",
    r", \d+ rows?$",
    r"(?<= buffer) \w+",
    r"\[[^\]']*\]",
    r"\(.*\)",
    r" torch\.\w+",
    r" of \d+$",
)
_KERNEL = re.compile(r"\bin (\w+)(?:, program.*)?$")
_FRAME = re.compile(r'File "(?:[^"]*/)?([^"/]+)", line \d+, in (\S+)')
_CONSEQUENCE = re.compile(r"\n\n(?:The above exception|During handling)")


@dataclass(frozen=True, order=True)
class Cause:
    """What is wrong, and the paths that may have done it, sorted."""

    what: str
    paths: tuple[str, ...] = ()

    def explains(self, other: Cause) -> bool:
        """Whether `other` may be this cause, met on a case with more paths."""
        return self.what == other.what and {*map(_kernels, self.paths)} <= {*map(_kernels, other.paths)}

    def __str__(self) -> str:
        return f"{self.what} ({', '.join(self.paths)})" if self.paths else self.what


def _kernels(path: str) -> tuple[str, ...]:
    """The kernels of a path; of one that is not in the registry, as another implementation may have, its name."""
    known = next((known for known in PATHS if known.name == path), None)
    return tuple(kernel.__name__ for kernel in known.kernels) if known else (path,)


def cause_of(verdict: Verdict) -> Cause:
    """The cause of a failed verdict, whose paths should be those of the failing routing alone."""
    what = what_differs(verdict.findings[0])
    if verdict.findings[0].raised or verdict.findings[0].guard:
        return Cause(what)
    paths = set(verdict.paths)
    if verdict.findings[0].across:
        paths |= set(verdict.sweep_paths)
    if what.startswith(FORWARD):
        paths = {path for path in paths if not path.startswith("backward.")}
    return Cause(what, tuple(sorted(paths)))


def what_differs(finding: Finding) -> str:
    """A finding without what is special to its case."""
    if finding.raised:
        # The first of a chain of exceptions is the one that began it.
        frames = _FRAME.findall(_CONSEQUENCE.split(finding.headline)[0])
        return finding.raised + ("" if not frames else " in {}:{}".format(*frames[-1]))
    line = finding.headline.splitlines()[0]
    if finding.guard:
        kernel = _KERNEL.search(line)
        return f"guard {finding.guard}" + (f" in {kernel[1]}" if kernel else "")
    for detail in _DETAILS:
        line = re.sub(detail, "", line)
    return line.strip(" :")
