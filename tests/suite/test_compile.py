"""The ahead-of-time gate, in processes of its own: the kernels pass it, and each fault planted in a copy does not.

Triton either interprets or compiles in one process, and tests interpret. `TBE_OTHER_TRITON`, a list of directories like
PATH with one installation of Triton in each, adds the checks under further versions.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tbe_kernels.aot.compile import TARGETS
from tbe_kernels.aot.reach import kernels
from tbe_kernels.optimizers import OPTIMIZERS
from tests.mutants.plant import SOURCE, Edit, copy_with
from tests.programs.killed import NARROW

OTHERS = [path for path in os.environ.get("TBE_OTHER_TRITON", "").split(os.pathsep) if path]


def gate(package: str, temporary: Path, *options: str, path: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the gate of a package that `temporary` or this checkout holds."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment["TMPDIR"] = str(temporary)
    environment["PYTHONPATH"] = os.pathsep.join([*path, str(temporary), str(SOURCE.parent)])
    command = [sys.executable, "-m", package, "compile", *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@dataclass(frozen=True)
class Planted:
    """An edit, the kernel that must fail because of it, and what the gate must say."""

    kernel: str
    complaint: str
    edit: Edit


NO_BARRIER = Planted(
    "fused_long_runs_kernel",
    "PTX: no bar.sync between the last add and the countdown",
    Edit("backward/long_run_fused.py", 'sem="relaxed")\n        tl.debug_barrier()\n', 'sem="relaxed")\n'),
)
BREAK = Planted(
    "check_indices_kernel",
    "unsupported AST node type: Break",
    Edit(
        "forward/bounds_check.py",
        "        report_bad(check, bad, at, last)",
        "        report_bad(check, bad, at, last)\n        if start > 5:\n            break",
    ),
)
TYPE_CHANGE = Planted(
    "sort_keys_kernel",
    "but the then block redefines it as fp32",
    Edit(
        "backward/plan.py",
        "    key = tl.where(index >= 0, key, total_rows)",
        "    key = tl.where(index >= 0, key, total_rows)\n    if N > 5:\n        key = key.to(tl.float32)",
    ),
)
#: Faults of different kernels, planted together.
GROUPS = {
    "code": (
        Planted(
            "fused_long_runs_kernel",
            "IR: no barrier of our own between the adds and the countdown",
            NO_BARRIER.edit,
        ),
        Planted("pooled_forward_kernel", "32-bit product of run-time numbers", NARROW),
        Planted(
            "psw_gradient_kernel",
            "unaligned pointers, and a vector access",
            Edit(
                "batch.py",
                "weights + tl.multiple_of(tl.load(weights_offsets + feature), ALIGN)",
                "tl.multiple_of(weights + tl.load(weights_offsets + feature), 16)",
            ),
        ),
        Planted(
            "unpooled_forward_kernel",
            "aligned rows, but no load of 16 bytes",
            Edit("forward/unpooled.py", "D // ALIGN * ALIGN", "tl.multiple_of(D, ALIGN)"),
        ),
        Planted(
            "sum_chunks_kernel",
            "expected no atomics, found",
            Edit(
                "backward/long_run.py",
                "tl.store(workspace + chunk * stride + columns, total",
                "tl.atomic_add(workspace + chunk * stride + columns, total",
            ),
        ),
        Planted(
            "check_offsets_kernel",
            "32-bit product of run-time numbers",
            Edit(
                "forward/bounds_check.py",
                "at = tl.program_id(0).to(tl.int64) * BLOCK",
                "at = tl.program_id(0) * BLOCK",
            ),
        ),
    ),
    "countdown": (
        Planted(
            "fused_long_runs_kernel",
            "PTX: expected one acq_rel atomic at gpu scope",
            Edit("backward/long_run_fused.py", 'sem="acq_rel"', 'sem="relaxed"'),
        ),
        Planted(
            "short_run_kernel",
            "expected no atomics, found",
            Edit("backward/rows.py", "tl.store(rows.weights + elements,", "tl.atomic_xchg(rows.weights + elements,"),
        ),
    ),
    "registry": (
        Planted(
            "psw_gradient_kernel",
            "reachable from no row of the registry",
            Edit("paths.py", "(psw_gradient.psw_gradient_kernel,),", "(plan.sort_keys_kernel,),"),
        ),
        Planted(
            "sort_keys_kernel",
            "no variants; expected them in VARIANTS of",
            Edit("backward/plan.py", '"sort_keys_kernel": Variants', '"sort_keys": Variants'),
        ),
        Planted(
            "check_indices_kernel",
            "depends on indices=int32, which its variants leave out",
            Edit("forward/bounds_check.py", 'axes=("indices", "offsets",', 'axes=("offsets",'),
        ),
        Planted(
            "check_offsets_kernel",
            "missing 1 required positional argument: 'BLOCK'",
            Edit(
                "forward/bounds_check.py", "first_bad, n, N, BLOCK=block)\n    repair", "first_bad, n, N)\n    repair"
            ),
        ),
        Planted(
            "repair_offsets_kernel",
            "n is a run-time integer outside do_not_specialize",
            Edit(
                "forward/bounds_check.py",
                '@triton.jit(do_not_specialize=["n", "N"])\ndef repair',
                '@triton.jit(do_not_specialize=["N"])\ndef repair',
            ),
        ),
    ),
}


def test_every_kernel_compiles_for_every_target(tmp_path: Path) -> None:
    ran = gate("tbe_kernels", tmp_path)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    table = {tuple(line.split()[:2]) for line in ran.stdout.splitlines()}
    assert {(kernel, target) for kernel in kernels() for target in TARGETS} <= table
    assert " 0 failures, " in ran.stdout


@pytest.mark.parametrize("planted", [BREAK, TYPE_CHANGE], ids=["break", "type-change"])
def test_what_only_the_interpreter_takes_fails(planted: Planted, tmp_path: Path) -> None:
    copy_with((planted.edit,), tmp_path, "planted")
    ran = gate("planted", tmp_path, "--kernel", planted.kernel, "--target", "sm_90", "--jobs", "1")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"FAILED {planted.kernel}, sm_90, " in ran.stdout
    assert planted.complaint in ran.stdout


@pytest.mark.parametrize("group", GROUPS)
def test_planted_faults_fail(group: str, tmp_path: Path) -> None:
    copy_with(tuple(planted.edit for planted in GROUPS[group]), tmp_path, "planted")
    names = [planted.kernel for planted in GROUPS[group] if "no row" not in planted.complaint]
    options = [option for name in names for option in ("--kernel", name)]
    ran = gate("planted", tmp_path, *options, "--target", "sm_90", "--jobs", "1")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    failures = ran.stdout.split("\nFAILED ")[1:]
    for planted in GROUPS[group]:
        assert any(f.startswith(planted.kernel) and planted.complaint in f for f in failures), (planted, ran.stdout)


@dataclass(frozen=True)
class PlainRounding:
    """Every division and square root of a file as fast as it may be."""

    file: str

    def apply(self, text: str) -> str:
        return text.replace("tl.div_rn(", "tl.math.fdiv(").replace("tl.sqrt_rn(", "tl.sqrt(")


def test_whatever_is_not_correctly_rounded_fails(tmp_path: Path) -> None:
    """A CPU rounds correctly whichever way it is written, and so no other check can see it."""
    kernels_of = {
        "rules.py": ("short_run_kernel",),
        "backward/rows.py": ("sum_chunks_kernel",),
        "backward/from_counts.py": ("multiply_counts_kernel",),
        "forward/pooled.py": ("pooled_forward_kernel",),
        "forward/small_table.py": ("small_table_kernel",),
    }
    holding = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"tl\.(div|sqrt)_rn\(", path.read_text())
    }
    assert holding == set(kernels_of)
    copy_with(tuple(map(PlainRounding, kernels_of)), tmp_path, "planted")
    names = [name for names in kernels_of.values() for name in names]
    ran = gate("planted", tmp_path, *[o for name in names for o in ("--kernel", name)], "--target", "sm_90")
    failures = [f for f in ran.stdout.split("\nFAILED ")[1:] if "IR: not correctly rounded" in f]
    assert {f.split(",")[0] for f in failures} == set(names)
    rules = {kind.name for kind in OPTIMIZERS for f in failures if f"optimizer={kind.name}+" in f}
    assert rules == {kind.name for kind in OPTIMIZERS} - {"EXACT_SGD", "NONE"}  # those neither divide nor take roots
    assert "PTX: not correctly rounded: div.full.f32" in ran.stdout


def test_a_load_that_is_no_vector_on_amd_fails(tmp_path: Path) -> None:
    copy_with((Edit("backward/rows.py", "total_D = total_D // ALIGN * ALIGN", "total_D += 0"),), tmp_path, "planted")
    ran = gate("planted", tmp_path, "--kernel", "sum_chunks_kernel", "--target", "gfx942", "--jobs", "1")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "aligned rows, but no load of 16 bytes" in ran.stdout


@pytest.mark.parametrize("other", OTHERS)
def test_another_triton_takes_the_countdown_and_refuses_one_without_barrier(other: str, tmp_path: Path) -> None:
    options = ("--kernel", NO_BARRIER.kernel, "--target", "sm_90", "--jobs", "1")
    right = gate("tbe_kernels", tmp_path, *options, path=(other,))
    assert right.returncode == 0, right.stdout + right.stderr
    copy_with((NO_BARRIER.edit,), tmp_path, "planted")
    wrong = gate("planted", tmp_path, *options, path=(other,))
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert NO_BARRIER.complaint in wrong.stdout


def test_calls_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    unknown = gate("tbe_kernels", tmp_path, "--kernel", "nothing")
    assert unknown.returncode == 2
    assert "--kernel: expected some of" in unknown.stderr
    command = [sys.executable, "-m", "tbe_kernels", "compile"]
    interpreting = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=SOURCE.parent,
        check=False,
    )
    assert interpreting.returncode == 2
    assert "unset TRITON_INTERPRET" in interpreting.stderr


def test_the_list_names_every_setting(tmp_path: Path) -> None:
    ran = gate("tbe_kernels", tmp_path, "--list", "--kernel", "check_offsets_kernel", "--kernel", "short_run_kernel")
    assert ran.returncode == 0, ran.stderr
    assert "check_offsets_kernel: 16 of 16 settings\n" in ran.stdout
    assert "settings, pairwise" in ran.stdout
    assert "offsets=int32, bags=many, bounds_check=WARNING, block=16, pointers=unaligned: every target\n" in ran.stdout
