"""What a run did, counted: examples by path, axis and mode, and how sharp the bounds were. Merges across processes."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracles.check import Verdict
from oracles.values.compare import Sharpness

#: Bounds that a summary shows at either end.
ENDS = 5


@dataclass
class Record:
    """Counts of a run. `drawn`: examples whose own routing ran a path; `swept`: runs of a path by the sweep; `pairs`:
    as `drawn`, by path and optimizer."""

    examples: int = 0
    runs: int = 0
    seconds: float = 0.0
    drawn: Counter[str] = field(default_factory=Counter)
    swept: Counter[str] = field(default_factory=Counter)
    exact: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    axes: Counter[str] = field(default_factory=Counter)
    unchanged: int = 0
    sharpness: dict[str, Sharpness] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def add(self, verdict: Verdict, seconds: float) -> None:
        """Count one checked example."""
        case = verdict.case
        self.examples += 1
        self.runs += verdict.runs
        self.seconds += seconds
        self.drawn.update(set(verdict.paths))
        self.swept.update(verdict.sweep_paths)
        self.pairs.update(f"{path} x {case.optimizer.name}" for path in verdict.paths)
        if case.values.mode == "exact":
            self.exact.update(set(verdict.paths))
        self.unchanged += not verdict.changed
        merge = case.routing.get("long_run_merge", "auto")
        self.axes.update(
            [
                f"weights {case.weights_dtype}",
                f"output {case.output_dtype}",
                f"ids {case.indices_dtype} offsets {case.offsets_dtype}",
                f"pooling {case.pooling_mode}",
                f"bounds check {case.bounds_check_mode}",
                f"optimizer {case.optimizer.name}",
                f"weight decay {case.optimizer.weight_decay_mode}",
                f"merge {merge}",
                f"values {case.values.mode}",
                f"rounding {'stochastic' if case.stochastic_rounding else 'to nearest'}",
                *{f"gradient {b.grad_layout}" for b in case.batches},
                *{f"input {layout}" for b in case.batches for _, layout in b.input_layouts},
                *{f"per-sample weights {b.psw}" for b in case.batches},
            ]
        )
        for key, sharpness in verdict.sharpness.items():
            self.sharpness.setdefault(" | ".join(key), Sharpness()).add(sharpness)

    def merge(self, other: Record) -> None:
        """Add another process's counts."""
        self.examples += other.examples
        self.runs += other.runs
        self.seconds += other.seconds
        self.unchanged += other.unchanged
        for name in ("drawn", "swept", "exact", "pairs", "axes"):
            getattr(self, name).update(getattr(other, name))
        for key, sharpness in other.sharpness.items():
            self.sharpness.setdefault(key, Sharpness()).add(sharpness)

    def paths_table(self) -> list[str]:
        """Examples of each kernel path, and how many a second there were: a line each."""
        from tbe_kernels.paths import PATHS

        elapsed = time.monotonic() - self.began
        lines = [f"{'path':28} {'drawn':>7} {'exact':>7} {'general':>8} {'swept':>8}"]
        for path in PATHS:
            drawn, exact = self.drawn[path.name], self.exact[path.name]
            lines.append(f"{path.name:28} {drawn:7} {exact:7} {drawn - exact:8} {self.swept[path.name]:8}")
        lines.append(
            f"{self.examples} examples, {self.runs} runs, {self.examples / elapsed:.1f} cases/s "
            f"({self.runs / max(self.seconds, 1e-9):.1f} runs a CPU second); {self.unchanged} changed no weight"
        )
        return lines

    def pairs_line(self) -> str:
        """How many of the legal pairs of a path and an optimizer occurred, and the rarest of them."""
        from tbe_kernels.paths import PATHS

        legal = [f"{path.name} x {name}" for path in PATHS for name in path.optimizers]
        never = [pair for pair in legal if not self.pairs[pair]]
        rarest = min(legal, key=lambda pair: self.pairs[pair])
        told = f"never {', '.join(never)}" if never else f"{rarest} the rarest, in {self.pairs[rarest]} examples"
        return f"path x optimizer: {len(legal) - len(never)} of {len(legal)} legal pairs drawn, {told}"

    def not_reached(self) -> str:
        """Paths that no example ran by its own routing."""
        from tbe_kernels.paths import PATHS

        never = [path.name for path in PATHS if not self.drawn[path.name]]
        return f"not reached: {', '.join(never) or 'no path'}"

    def table(self, whole: bool = False) -> list[str]:
        """The summary, a line each; of the bounds the sharpest and the loosest, or the `whole` list."""
        lines = [*self.paths_table(), self.not_reached(), self.pairs_line()]
        by_axis: dict[str, list[str]] = {}
        for name, count in sorted(self.axes.items()):
            axis, _, value = name.partition(" ") if not name.startswith(("bounds", "weight ", "per-")) else _axis(name)
            by_axis.setdefault(axis, []).append(f"{value} {count}")
        lines += [f"{axis}: {', '.join(values)}" for axis, values in by_axis.items()]
        heading = "optimizer | weights | route | quantity"
        lines.append(f"{heading:78} {'exact':>9} {'bounded':>9} {'free':>6} {'worst':>6}")
        if whole:
            return lines + [_sharpness_line(*item) for item in sorted(self.sharpness.items())]
        bounded = [item for item in self.sharpness.items() if item[1].bounded]
        bounded.sort(key=lambda item: -item[1].worst)
        shown = bounded if len(bounded) <= 2 * ENDS else [*bounded[:ENDS], *bounded[-ENDS:]]
        lines += [_sharpness_line(*item) for item in shown]
        hidden = len(self.sharpness) - len(shown)
        if hidden:
            lines.append(f"the sharpest and the loosest; {hidden} more bounds by --sharpness, or in build/summary.txt")
        return lines

    def keep(self, path: Path) -> None:
        """Write the whole summary to a file, where files can be written."""
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(self.table(whole=True)) + "\n")

    def to_json(self) -> str:
        """For the way from an xdist worker to its controller."""
        data: dict[str, Any] = {k: v for k, v in vars(self).items() if k not in ("sharpness", "began")}
        return json.dumps({**data, "sharpness": {k: vars(s) for k, s in self.sharpness.items()}})

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record that `to_json` wrote."""
        data = json.loads(text)
        sharpness = {k: Sharpness(**s) for k, s in data.pop("sharpness").items()}
        for name in ("drawn", "swept", "exact", "pairs", "axes"):
            data[name] = Counter(data[name])
        return cls(**data, sharpness=sharpness)


def _sharpness_line(key: str, s: Sharpness) -> str:
    return f"{key:78} {s.exact:9} {s.bounded:9} {s.free:6} {s.worst:6.2f}"


def _axis(name: str) -> tuple[str, str, str]:
    axis, _, value = name.rpartition(" ")
    return axis, " ", value


RECORD = Record()
