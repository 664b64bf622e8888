"""The structural checks of compiled code, each on text that it accepts and on text that it has to refuse."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tbe_kernels.aot.assembly import (
    Resources,
    amd_countdown,
    approximations,
    atomics,
    findings,
    gathered_bytes,
    ir_countdown,
    most,
    narrow_products,
    parse_resource_usage,
    ptx_approximations,
    ptx_countdown,
    ptx_narrow_addresses,
    ptx_vectors,
    resources,
)
from tbe_kernels.aot.variants import Variants

IR = """
%5 = tt.atomic_rmw fadd, relaxed, gpu, %sums, %total, %inside : (tensor<128x!tt.ptr<f32>>) loc(#loc1)
ttg.barrier all loc(#loc2)
%before = tt.atomic_rmw add, acq_rel, gpu, %counter, %c1_i32, %true : (!tt.ptr<i32>, i32, i1) -> i32 loc(#loc3)
scf.if %last {
  ttg.barrier all loc(#loc4)
  %grad = tt.load %sums, %inside, %cst : tensor<128x!tt.ptr<f32>> loc(#loc5)
"""
PTX = """
\t@%p20 red.global.gpu.relaxed.add.f32 [ %rd139 + 0 ], %r147;
\t// begin inline asm
\tbar.sync \t0;
\t@%p26 atom.global.gpu.acq_rel.add.u32 %r151, [ %rd143 + 0 ], %r152;
\tbar.sync \t0;
"""
AMD = """
\tbuffer_atomic_add_f32 v7, v12, s[52:55], 0 offen
\ts_waitcnt vmcnt(0)
\ts_barrier
\tbuffer_wbl2 sc1
\ts_waitcnt vmcnt(0)
\tglobal_atomic_add v7, v4, v7, s[6:7] sc0
\ts_waitcnt vmcnt(0)
\tbuffer_inv sc1
\tglobal_load_dword v7, v[8:9], off
"""


def without(text: str, line: str, count: int = 1) -> str:
    """A text without the first line that holds something."""
    assert line in text
    kept = text.splitlines()
    for _ in range(count):
        del kept[next(k for k, found in enumerate(kept) if line in found)]
    return "\n".join(kept)


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        ("arith.divf %a, %b : f32", True),
        ("arith.divf %a, %b : tensor<4x128xf32>", True),
        ("math.sqrt %a : tensor<128xf32>", True),
        ("math.rsqrt %a : f32", True),
        ("tt.precise_divf %a, %b : tensor<128xf32>", False),
        ("tt.precise_sqrt %a : f32", False),
        ("arith.divf %a, %b : tensor<128xf64>", False),
        ("arith.divsi %a, %b : i32", False),
    ],
)
def test_what_may_be_rounded_otherwise_is_refused(operation: str, plain: bool) -> None:
    assert approximations(f"  %7 = {operation} loc(#loc3)") == [operation] * plain


@pytest.mark.parametrize(
    ("instruction", "approximate"),
    [
        ("div.full.f32 %r5, %r4, %r3;", True),
        ("div.approx.ftz.f32 %r5, %r4, %r3;", True),
        ("sqrt.approx.f32 %r5, %r4;", True),
        ("rsqrt.approx.f32 %r5, %r4;", True),
        ("rcp.approx.ftz.f32 %r5, %r4;", True),
        ("div.rn.f32 %r5, %r4, %r3;", False),
        ("sqrt.rn.f32 %r5, %r4;", False),
        ("div.s32 %r5, %r4, %r3;", False),
    ],
)
def test_approximate_instructions_are_refused(instruction: str, approximate: bool) -> None:
    assert ptx_approximations(f"\t{instruction}\n") == [instruction] * approximate


def test_a_right_countdown_is_accepted() -> None:
    assert ir_countdown(IR) == []
    assert ir_countdown(IR.replace("ttg.barrier all", "gpu.barrier")) == []
    assert ptx_countdown(PTX, 4) == []
    assert ptx_countdown(PTX.replace("red.", "atom."), 4) == []
    assert ptx_countdown(PTX.replace("bar.sync \t0", "bar.warp.sync \t-1"), 1) == []
    assert amd_countdown(AMD, 4) == []
    assert amd_countdown(without(AMD, "s_barrier"), 1) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (without(IR, "barrier"), "between the adds and the countdown"),
        (without(IR, "#loc4"), "between the countdown and the reading"),
        (IR.replace("acq_rel", "relaxed"), "expected one acq_rel"),
        (IR.replace("acq_rel, gpu", "acq_rel, cta"), "expected one acq_rel"),
        (IR + IR, "expected one acq_rel"),
        (IR.replace("%before =", "%x = tt.load %y : !tt.ptr<f32>\n%before ="), "between the adds and the countdown"),
    ],
)
def test_a_wrong_countdown_in_the_ir_is_refused(text: str, complaint: str) -> None:
    assert any(complaint in wrong for wrong in ir_countdown(text))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (without(PTX, "bar.sync"), "no bar.sync"),
        (PTX.replace("bar.sync \t0", "bar.warp.sync \t-1"), "no bar.sync"),
        (PTX.replace("acq_rel", "relaxed"), "expected one acq_rel"),
        (PTX.replace("gpu.acq_rel", "cta.acq_rel"), "expected one acq_rel"),
        (without(PTX, "red."), "no add"),
    ],
)
def test_a_wrong_countdown_in_ptx_is_refused(text: str, complaint: str) -> None:
    assert any(complaint in wrong for wrong in ptx_countdown(text, 4))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (without(AMD, "s_barrier"), "no s_barrier"),
        (without(AMD, "buffer_wbl2"), "nothing releases"),
        (without(AMD, "buffer_inv"), "nothing is acquired"),
        (without(AMD, "global_atomic_add"), "expected one integer atomic"),
        (without(AMD, "buffer_atomic_add_f32"), "no add"),
    ],
)
def test_a_wrong_countdown_in_amd_assembly_is_refused(text: str, complaint: str) -> None:
    assert any(complaint in wrong for wrong in amd_countdown(text, 4))


def test_atomics_of_global_memory_are_found_and_no_others() -> None:
    for line in (
        "@%p1 red.global.gpu.relaxed.add.f32 [ %rd1 + 0 ], %r1;",
        "atom.global.gpu.acq_rel.min.s64 %rd2, [ %rd1 + 0 ], %rd3;",
        "atom.add.f32 %f1, [%rd1], %f2;",
        "buffer_atomic_add_f32 v7, v12, s[52:55], 0 offen",
        "global_atomic_add v7, v4, v7, s[6:7] sc0",
        "flat_atomic_smin_x2 v[0:1], v[2:3]",
    ):
        assert atomics(line) == [line]
    for line in (
        "atom.shared.add.u32 %r1, [%r2], 1;",
        "atom.relaxed.sys.shared.add.u32 %r3, [%r76+16384], 1;",
        "redux.sync.add.s32 %r1, %r2, %r3;",
        "ds_add_u32 v0, v1",
    ):
        assert atomics(line) == []
    assert atomics("// atom.global.add\n; global_atomic_add v1\nst.global.b32 [ %rd1 + 0 ], { %r1 };") == []


def product(operands: str, type_: str = "tensor<8x1xi32>", scalar: str = "i32", before: str = "") -> str:
    """IR with one product."""
    return f"""
  tt.func public @kernel(%weights: !tt.ptr<f32> loc("weights"), %D: i32 loc("D"), %N: {scalar} loc("N")) {{
    %c128_i32 = arith.constant 128 : i32 loc(#loc1)
    %index = tt.load %3, %4, %5 : tensor<8x!tt.ptr<i32>> loc(#loc)
    %wide = tt.expand_dims %index {{axis = 1 : i32}} : tensor<8xi32> -> tensor<8x1xi32> loc(#loc)
    %splat = tt.splat %D : i32 -> tensor<8x1xi32> loc(#loc)
    %feature = arith.divsi %wide, %splat : tensor<8x1xi32> loc(#loc)
    %pid = tt.get_program_id x : i32 loc(#loc6)
    {before}
    %at = arith.muli {operands} {{tt.divisibility = dense<4> : tensor<1xi32>}} : {type_} loc(#loc)
"""


def test_a_row_times_its_width_in_32_bits_is_refused() -> None:
    assert len(narrow_products(product("%wide, %splat"))) == 1
    assert len(narrow_products(product("%D, %N", "i32"))) == 1
    narrowed = "%narrow = arith.trunci %long : tensor<8x1xi64> to tensor<8x1xi32> loc(#loc)"
    assert len(narrow_products(product("%narrow, %splat", before=narrowed))) == 1
    # A remainder needs the divisor itself.
    assert len(narrow_products(product("%feature, %wide"))) == 1


def test_products_that_cannot_overflow_are_accepted() -> None:
    assert narrow_products(product("%wide, %splat", "tensor<8x1xi64>")) == []
    assert narrow_products(product("%feature, %splat")) == []
    assert narrow_products(product("%splat, %feature")) == []
    assert narrow_products(product("%D, %c128_i32", "i32")) == []
    negative = "%c-7_i32 = arith.constant -7 : i32 loc(#loc)"
    assert narrow_products(product("%D, %c-7_i32", "i32", before=negative)) == []
    assert narrow_products(product("%pid, %D", "i32")) == []
    assert narrow_products(product("%pid, %c128_i32", "i32")) == []


def test_a_program_number_times_a_block_is_refused_where_counts_are_64_bit() -> None:
    assert len(narrow_products(product("%pid, %c128_i32", "i32", scalar="i64"))) == 1
    assert narrow_products(product("%pid, %c128_i32", "i64", scalar="i64")) == []
    walks = "%programs = tt.get_num_programs x : i32 loc(#loc)"
    assert narrow_products(product("%pid, %c128_i32", "i32", scalar="i64", before=walks)) == []


def test_addresses_in_32_bit_registers_are_refused() -> None:
    assert ptx_narrow_addresses("@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];") == []
    assert ptx_narrow_addresses("st.shared.b32 [ %r1 ], %r2;") == []
    assert len(ptx_narrow_addresses("ld.global.b32 { %r1 }, [ %r2 + 0 ];")) == 1
    assert len(ptx_narrow_addresses("red.global.gpu.relaxed.add.f32 [ %r2 + 0 ], %r147;")) == 1


def test_vector_accesses_are_measured() -> None:
    text = """
    @%p20 ld.global.v4.b32 { %r30, %r31, %r32, %r33 }, [ %rd39 + 0 ];
    ld.global.b64 { %rd1 }, [ %rd2 + 0 ];
    st.global.v2.b32 [ %rd2 + 0 ], { %r1, %r2 };
    ld.global.L1::evict_last.v2.b64 { %rd5, %rd6 }, [ %rd2 + 0 ];
    ld.shared.v4.b32 { %r30, %r31, %r32, %r33 }, [ %r39 ];
    """
    assert ptx_vectors(text) == [16, 8, 16]


def tile(**changes: Any) -> dict[str, Any]:
    """Arguments of a kernel that gathers a tile of 16 x 128 fp32."""
    return {"ALIGN": 16, "GATHER": 16, "BLOCK_D": 128, "weights": torch.empty(4), **changes}


def test_the_widest_load_follows_from_the_tile() -> None:
    assert gathered_bytes(tile(), "weights", "GATHER", 32) == 16
    assert gathered_bytes(tile(ALIGN=1), "weights", "GATHER", 32) == 4
    assert gathered_bytes(tile(ALIGN=4, weights=torch.empty(4, dtype=torch.float16)), "weights", "GATHER", 32) == 8
    assert gathered_bytes(tile(GATHER=1, BLOCK_D=16), "weights", "GATHER", 32) == 0
    lookups = SimpleNamespace(grad_output=torch.empty(4, dtype=torch.float16))
    assert gathered_bytes(tile(lookups=lookups, GATHER=1), "lookups.grad_output", "GATHER", 32) == 8


VECTOR = "@%p20 ld.global.v4.b32 { %r30, %r31, %r32, %r33 }, [ %rd39 + 0 ];"


@pytest.mark.parametrize(
    ("variants", "aligned", "asm", "complaint"),
    [
        (Variants(axes=()), True, {"ptx": PTX}, "expected no atomics"),
        (Variants(axes=(), atomics=lambda _: True), True, {"ptx": VECTOR}, "expected atomics, found none"),
        (Variants(axes=()), True, {"amdgcn": AMD}, "expected no atomics"),
        (Variants(axes=(), gathers="weights"), True, {"ptx": "ld.global.b32 { %r1 }, [ %rd1 ];"}, "no load of 16"),
        (Variants(axes=(), gathers="weights"), True, {"amdgcn": "buffer_load_dword v1, v2"}, "no load of 16"),
        (Variants(axes=()), False, {"ptx": VECTOR}, "unaligned pointers"),
        (Variants(axes=()), True, {"ptx": VECTOR, "ttir": product("%wide, %splat")}, "32-bit product"),
        (Variants(axes=()), True, {"ptx": VECTOR.replace("%rd39", "%r39")}, "32-bit address"),
        (Variants(axes=(), atomics=lambda _: True, countdown=True), True, {"ptx": PTX}, "IR: expected one acq_rel"),
        (
            Variants(axes=(), atomics=lambda _: True, countdown=True),
            True,
            {"ptx": without(PTX, "bar.sync"), "ttir": IR},
            "PTX: no bar.sync",
        ),
    ],
)
def test_findings_name_what_is_wrong(variants: Variants, aligned: bool, asm: dict[str, str], complaint: str) -> None:
    found = findings(variants, tile(), aligned, 4, 32, {"ttir": "", **asm})
    assert any(complaint in wrong for wrong in found), found


def test_right_code_has_no_findings() -> None:
    assert findings(Variants(axes=(), gathers="weights"), tile(), True, 4, 32, {"ttir": "", "ptx": VECTOR}) == []
    fused = Variants(axes=(), atomics=lambda _: True, countdown=True)
    assert findings(fused, tile(), True, 4, 32, {"ttir": IR, "ptx": PTX}) == []
    assert findings(fused, tile(), True, 4, 64, {"ttir": IR, "amdgcn": AMD}) == []


def test_resources_are_read() -> None:
    printed = " Function short_run_kernel:\n  REG:62 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:672 TEXTURE:0\n"
    assert parse_resource_usage(printed, 512) == Resources(62, 512, 8)
    amdgcn = "    .sgpr_spill_count: 10\n    .vgpr_count:     57\n    .vgpr_spill_count: 3\n"
    assert resources({"amdgcn": amdgcn}, SimpleNamespace(shared=16), None) == Resources(57, 16, 13)
    assert resources({"cubin": b""}, SimpleNamespace(shared=16), None) == Resources(None, 16, None)
    assert most([Resources(1, 5, None), Resources(3, 2, None)]) == Resources(3, 5, None)


def test_an_axis_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"axes: expected some of .* got 'colour'"):
        Variants(axes=("colour",))
    with pytest.raises(ValueError, match=re.escape("only: expected an axis of the kernel")):
        Variants(axes=("weights",), only={"weights": ("float64",)})
