"""What compiled code has to look like: small predicates over Triton's IR, PTX and AMD assembly, and the resources used.

Each predicate takes text and returns what is wrong with it, or what it found; `tests/suite/test_assembly.py` shows each
one text that it refuses. The IR comes before any backend, so what is checked there holds under every Triton and target:
some versions put a barrier before an acq_rel atomic on their own, and would hide that ours is missing.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tbe_kernels.aot.variants import Arguments, Variants

GLOBAL_ATOMIC = re.compile(r"\b(?:atom|red)\.(?![\w.:]*\bshared)[\w.:]+|\b(?:global|flat|buffer)_atomic_\w+")
IR_BARRIER = re.compile(r"\b(?:gpu\.barrier|ttg\.barrier|ttg\.local_barrier)\b")
PTX_BARRIER = re.compile(r"\b(?:bar|barrier)\.sync\b|\bbarrier\.cta\.sync\b")
#: One warp needs no more than this.
PTX_WARP_BARRIER = re.compile(PTX_BARRIER.pattern + r"|\bbar\.warp\.sync\b")
PTX_VECTOR = re.compile(r"\b(?:ld|st)\.global\.(?:\w+(?:::\w+)?\.)*v(\d)\.[a-z](\d+)\b")
AMD_VECTOR = re.compile(r"\b(?:global|flat|buffer)_load_dwordx4\b")
#: A value in Triton's IR.
VALUE = re.compile(r"%[\w$.#-]+")
#: The widest load of one lane, in bytes.
WIDEST = 16


@dataclass(frozen=True)
class Resources:
    """Registers of a lane, bytes of shared memory of a program, bytes or registers spilled; None where unknown."""

    registers: int | None = None
    shared: int | None = None
    spilled: int | None = None


def lines(text: str) -> list[str]:
    """The instructions of a text, without comments and what describes them to a debugger."""
    return [line.split("//")[0].strip() for line in text.splitlines() if not line.lstrip().startswith((";", "#", "."))]


def atomics(assembly: str) -> list[str]:
    """Every instruction of PTX or AMD assembly that changes global memory atomically."""
    return [line for line in lines(assembly) if GLOBAL_ATOMIC.search(line)]


def ir_countdown(ttir: str) -> list[str]:
    """What is wrong with the countdown in Triton's IR: one acq_rel atomic at gpu scope, with a barrier of our own
    between the relaxed adds and it, and one between it and the first load behind it."""
    steps = [
        line for line in lines(ttir) if re.search(r"\btt\.(atomic_rmw|load|store)\b", line) or _is_ir_barrier(line)
    ]
    counts = [k for k, line in enumerate(steps) if "atomic_rmw" in line and "acq_rel" in line]
    if len(counts) != 1 or ", gpu," not in steps[counts[0]]:
        return [f"IR: expected one acq_rel atomic at gpu scope, found {[steps[k] for k in counts]}"]
    (count,) = counts
    wrong = []
    if count == 0 or not _is_ir_barrier(steps[count - 1]):
        wrong.append("IR: no barrier of our own between the adds and the countdown")
    if count + 1 == len(steps) or not _is_ir_barrier(steps[count + 1]):
        wrong.append("IR: no barrier of our own between the countdown and the reading of the sums")
    return wrong


def ptx_countdown(ptx: str, num_warps: int) -> list[str]:
    """What is wrong with the countdown in PTX: one `atom...gpu...acq_rel`, a barrier between the last add and it."""
    code = lines(ptx)
    counts = [k for k, line in enumerate(code) if re.search(r"\batom\.[\w.:]*acq_rel", line)]
    if len(counts) != 1 or ".gpu." not in code[counts[0]]:
        return [f"PTX: expected one acq_rel atomic at gpu scope, found {[code[k] for k in counts]}"]
    (count,) = counts
    adds = [k for k in range(count) if GLOBAL_ATOMIC.search(code[k])]
    if not adds:
        return ["PTX: no add comes before the countdown"]
    barrier = PTX_BARRIER if num_warps > 1 else PTX_WARP_BARRIER
    if not any(map(barrier.search, code[adds[-1] : count])):
        return ["PTX: no bar.sync between the last add and the countdown"]
    return []


def amd_countdown(assembly: str, num_warps: int) -> list[str]:
    """The same in AMD assembly: behind the last add the waves meet, the L2 cache is written back, the count goes up,
    and what the caches hold is given up."""
    code = lines(assembly)
    counts = [k for k, line in enumerate(code) if re.search(r"\bglobal_atomic_(?:add|inc)(?:_u32)?\s.*\bsc0\b", line)]
    if len(counts) != 1:
        return [f"AMD: expected one integer atomic whose result is used, found {[code[k] for k in counts]}"]
    (count,) = counts
    adds = [k for k in range(count) if GLOBAL_ATOMIC.search(code[k])]
    if not adds:
        return ["AMD: no add comes before the countdown"]
    before, behind = code[adds[-1] : count], code[count:]
    wrong = []
    if num_warps > 1 and not any("s_barrier" in line for line in before):
        wrong.append("AMD: no s_barrier between the last add and the countdown")
    if not any(re.search(r"\bbuffer_wbl2\b.*\bsc1\b", line) for line in before):
        wrong.append("AMD: nothing releases the adds before the countdown (buffer_wbl2 sc1)")
    loads = [k for k, line in enumerate(behind) if re.search(r"\b(?:global|flat|buffer)_load_", line)]
    if not any(re.search(r"\bbuffer_inv\b.*\bsc1\b", line) for line in behind[: loads[0] if loads else None]):
        wrong.append("AMD: nothing is acquired between the countdown and the first load (buffer_inv sc1)")
    return wrong


def narrow_products(ttir: str) -> list[str]:
    """32-bit products of two numbers that are known at run time only, as `row * D` must never be; and where a count is
    a 64-bit argument and each program has one block, that of its number and the block.

    Harmless, and not reported: `(x // y) * y`, and a program's number, or the number of programs, times a knob. A
    kernel that asks for the number of programs walks further blocks itself, so there are as few as a knob says.
    """
    definitions = dict(_definitions(ttir))
    large = re.search(r"\btt\.func\b.*%[\w.]+: i64\b", ttir) is not None and "tt.get_num_programs" not in ttir
    found = []
    for operation in definitions.values():
        if not re.match(r"arith\.muli .*: (?:tensor<[\dx]+x)?i32>?$", operation):
            continue
        factors = [_origin(name, definitions) for name in VALUE.findall(operation)]
        made = [definitions.get(name, "") for name in factors]
        constant = any(text.startswith("arith.constant") for text in made)
        of_grid = any(re.match(r"tt\.get_(?:program_id|num_programs)", text) for text in made)
        remainder = any(
            text.startswith("arith.divsi") and _origin(VALUE.findall(text)[1], definitions) == other
            for text, other in zip(made, reversed(factors), strict=True)
        )
        if of_grid:
            harmless = not (constant and large)
        else:
            harmless = constant or remainder
        if not harmless:
            found.append(operation)
    return found


def approximations(ttir: str) -> list[str]:
    """Divisions and square roots in fp32 that Triton may round otherwise than correctly. Plain ones become `div.full`
    and `sqrt.approx` in PTX; `tl.div_rn` and `tl.sqrt_rn` are `tt.precise_divf` and `tt.precise_sqrt` here. No rule
    promises less, and nobody asks for a reciprocal.
    """
    plain = re.compile(r"(?:arith\.divf|math\.r?sqrt)\b.*: (?:tensor<[\dx]+x)?f32>?$")
    return [operation for _, operation in _definitions(ttir) if plain.match(operation)]


def ptx_approximations(ptx: str) -> list[str]:
    """The same in PTX, whatever it came from."""
    approximate = re.compile(r"\b(?:div\.(?:full|approx)|r?sqrt\.approx|rcp\.approx)\.")
    return [line for line in lines(ptx) if approximate.search(line)]


def _origin(name: str, definitions: Mapping[str, str]) -> str:
    """A value behind its copies to other shapes and widths."""
    copy = re.compile(r"(?:tt\.(?:splat|broadcast|expand_dims|reshape)|arith\.(?:ext|trunc)\w+) (%[\w$.#-]+)")
    while match := copy.match(definitions.get(name, "")):
        name = match[1]
    return name


def _definitions(ttir: str) -> Iterator[tuple[str, str]]:
    for line in lines(ttir):
        match = re.match(r"(%[\w$.#-]+?)(?::\d+)? = (.*?)(?: loc\(.*)?$", line)
        if match:
            yield match[1], match[2]


def _is_ir_barrier(line: str) -> bool:
    return IR_BARRIER.search(line) is not None


def ptx_narrow_addresses(ptx: str) -> list[str]:
    """Accesses of global memory through a 32-bit register."""
    return [line for line in lines(ptx) if re.search(r"\b(?:ld|st|atom|red)\.global\b.*\[\s*%r\d", line)]


def ptx_vectors(ptx: str) -> list[int]:
    """The bytes of each vector load or store of global memory."""
    return [int(count) * int(bits) // 8 for line in lines(ptx) for count, bits in PTX_VECTOR.findall(line)]


def gathered_bytes(arguments: Arguments, pointer: str, height: str, lanes: int) -> int:
    """How many bytes one load of a lane can bring, of a tile `[height, BLOCK_D]` of aligned rows."""
    name, _, field = pointer.partition(".")
    tensor: Any = getattr(arguments[name], field) if field else arguments[name]
    elements = arguments[height] * arguments["BLOCK_D"] // lanes
    return min(WIDEST, min(arguments["ALIGN"], elements) * tensor.element_size())


def findings(
    variants: Variants,
    arguments: Arguments,
    aligned: bool,
    num_warps: int,
    lanes: int,
    asm: Mapping[str, Any],
    vectors: bool = True,
) -> list[str]:
    """All that is wrong with a compiled form. `asm`: what `triton.compile` made, by stage; `lanes`: of a warp;
    `vectors`: whether this Triton can make vector loads of aligned rows."""
    is_ptx = "ptx" in asm
    assembly = asm["ptx"] if is_ptx else asm["amdgcn"]
    wrong = [f"32-bit product of run-time numbers: {line}" for line in narrow_products(asm["ttir"])]
    wrong += [f"32-bit address: {line}" for line in ptx_narrow_addresses(assembly)] if is_ptx else []
    wrong += [f"IR: not correctly rounded: {operation}" for operation in approximations(asm["ttir"])]
    wrong += [f"PTX: not correctly rounded: {line}" for line in ptx_approximations(assembly)] if is_ptx else []
    found = atomics(assembly)
    if variants.atomics(arguments) and not found:
        wrong.append("expected atomics, found none")
    if found and not variants.atomics(arguments):
        wrong.append(f"expected no atomics, found {found[0]}")
    if variants.countdown:
        wrong += ir_countdown(asm["ttir"])
        wrong += ptx_countdown(assembly, num_warps) if is_ptx else amd_countdown(assembly, num_warps)
    if is_ptx and not aligned and ptx_vectors(assembly):
        wrong.append(f"unaligned pointers, and a vector access of {max(ptx_vectors(assembly))} bytes")
    pointer, height = variants.gathers, variants.height
    if vectors and aligned and pointer and gathered_bytes(arguments, pointer, height, lanes * num_warps) == WIDEST:
        widest = max(ptx_vectors(assembly), default=0) if is_ptx else WIDEST * bool(AMD_VECTOR.search(assembly))
        if widest < WIDEST:
            wrong.append(f"aligned rows, but no load of {WIDEST} bytes; the widest vector has {widest}")
    return wrong


def most(used: Sequence[Resources]) -> Resources:
    """The most of each resource over several forms."""
    columns = zip(*((r.registers, r.shared, r.spilled) for r in used), strict=True)
    return Resources(*(max((n for n in column if n is not None), default=None) for column in columns))


def resources(asm: Mapping[str, Any], metadata: Any, cuobjdump: str | None) -> Resources:
    """What a compiled form uses: from the metadata of AMD assembly, or by NVIDIA's `cuobjdump`, where there is one."""
    if "amdgcn" in asm:
        number = {name: int(value) for name, value in re.findall(r"^\s+\.(\w+): +(\d+)$", asm["amdgcn"], re.MULTILINE)}
        spilled = number["vgpr_spill_count"] + number["sgpr_spill_count"]
        return Resources(number["vgpr_count"], metadata.shared, spilled)
    if cuobjdump is None:
        return Resources(None, metadata.shared, None)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        command = [cuobjdump, "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return parse_resource_usage(printed, metadata.shared)


def parse_resource_usage(printed: str, shared: int) -> Resources:
    """What `cuobjdump --dump-resource-usage` says. A kernel has no arrays of its own: its stack holds spills only."""
    number = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", printed)}
    return Resources(number["REG"], shared, number["STACK"] + number["LOCAL"])
