"""Facts read from IR texts, on texts small enough to count by hand."""

from __future__ import annotations

import struct

from tilewright.harness.worker import facts, resources

TTIR = """\
#loc = loc("k.py":4:1)
#loc1 = loc("k.py":9:13)
#loc2 = loc("v"(#loc1))
#loc3 = loc("k.py":20:5)
#loc4 = loc(callsite(#loc1 at #loc3))
#loc5 = loc("k.py":13:5)
module {
  tt.func public @k(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc))) attributes {noinline = false} {
    %cst = arith.constant dense<0> : tensor<64xi64> loc(#loc)
    %n = tt.load %x : !tt.ptr<i32> loc(#loc5)
    %a = scf.for %i = %c0 to %n step %c1 iter_args(%b = %cst) -> (tensor<64xf32>)  : i32 {
      %p = arith.addi %q, %r : tensor<64xi64> loc(#loc2)
      %v = tt.load %p, %m, %z : tensor<64x!tt.ptr<f32>> loc(#loc2)
      %w:2 = scf.while (%c = %d) : (i32) -> (i32, i32) {
        %u = tt.load %p : tensor<8x16x!tt.ptr<f32>> loc(#loc4)
        scf.condition(%t) %c : i32
      } do {
      ^bb0(%c: i32):
        %s = "tt.reduce"(%v) <{axis = 0 : i32}> ({
        ^bb0(%m_5: f32, %m_6: f32):
          %m_7 = arith.addf %m_5, %m_6 : f32 loc(#loc1)
          tt.reduce.return %m_7 : f32 loc(#loc1)
        }) : (tensor<64xf32>) -> f32 loc(#loc1)
        scf.yield %c : i32
      } loc(#loc1)
      %f = tt.dot %v1, %v2, %b, inputPrecision = tf32x3 : tensor<64x32xf32> * tensor<32x64xf32> -> tensor<64x64xf32>
      tt.store %p, %v : tensor<64x!tt.ptr<f32>> loc(#loc2)
      scf.yield %v : tensor<64xf32> loc(#loc)
    } {tt.num_stages = 3 : i32} loc(#loc)
    %g = tt.dot %h1, %h2, %b, inputPrecision = tf32 : tensor<64x32xbf16> * tensor<32x64xbf16> -> tensor<64x64xf32>
    %old = tt.atomic_rmw fadd, acq_rel, gpu, %x, %s, %true : (!tt.ptr<f32>, f32, i1) -> f32 loc(#loc)
    tt.store %x, %s : !tt.ptr<f32> loc(#loc5)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
"""

PTX = """\
	.loc	1 13 5                           // k.py:13:5
	@%p1 ld.global.b32 { %r1 }, [ %rd1 + 0 ];
$L__BB0_2:
	.loc	1 9 13
	@%p2 ld.global.L1::evict_last.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd4 + 0 ];
	ld.global.nc.v2.f32 {%f1, %f2}, [%rd5];
	cp.async.cg.shared.global [ %r9 + 0 ], [ %rd6 + 0 ], 0x10, 0x10;
	cp.async.ca.shared.global [ %r9 + 0 ], [ %rd6 + 0 ], 0x4, %r3;
	ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r8];
	ld.param.b64 	%rd2, [row_param_1];
	st.shared.b16 [%r1], %rs1;
	bar.sync 	0;
	mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %f1 }, { %r1 }, { %r2 }, { %f3 };
	barrier.cta.sync 1;
	.loc	1 13 5
	@%p3 st.global.b32 [ %rd1 + 0 ], { %r1 };
	.loc	1 9 13
	@%p3 st.global.v8.b32 [ %rd1 + 0 ], { %r1 };
	atom.global.gpu.acq_rel.add.f32 %f9, [ %rd2 + 0 ], %f8;
"""


def test_operations_are_counted_with_the_loops_they_stand_in() -> None:
    found = facts.ttir_facts(TTIR)
    assert found == {
        "loads": 3,
        "loads_in_loop": 2,
        "stores": 2,
        "stores_in_loop": 1,
        "atomics": 1,
        "dots": 2,
        "dots_in_loop": 1,
        "reduces": 1,
        "reduces_in_loop": 1,
        "loops": 2,
        "index64_ops": 1,
        "tile_elements": 128,
        "tile_rank": 2,
        "dot_precision": "bf16+tf32x3",
    }


def test_a_location_is_followed_through_names_and_calls_to_the_callees_line() -> None:
    places = [op.place for op in facts.ops(TTIR) if op.name == "tt.load"]
    assert places == [(13, 5), (9, 13), (9, 13)]
    assert facts.scalar_places(TTIR) == {(13, 5)}


def test_widths_are_those_of_tensor_accesses_alone() -> None:
    found = facts.ptx_facts(PTX, facts.scalar_places(TTIR))
    assert (found["load_bits_min"], found["load_bits_max"], found["narrow_loads"]) == (32, 128, 2)
    assert (found["store_bits_min"], found["store_bits_max"], found["narrow_stores"]) == (256, 256, 0)
    assert found["barriers"] == 2
    assert found["mma"] == "mma.v2"


def test_without_any_tensor_access_there_is_no_width() -> None:
    found = facts.ptx_facts("ret;")
    assert (found["load_bits_min"], found["store_bits_max"], found["barriers"], found["mma"]) == (0, 0, 0, "none")


def test_a_line_moves_what_its_instructions_move_together() -> None:
    lines = facts.line_bits(PTX, TTIR)
    # 128, 64, 128 and 32 bits by four instructions, each moving its share: the harmonic mean.
    assert lines == {"load": {9: round(4 / (2 / 128 + 1 / 64 + 1 / 32))}, "store": {9: 256}}


def test_conversions_count_inside_loops_and_copies_everywhere() -> None:
    text = """\
    %1 = ttg.convert_layout %0 : tensor<8xf32, #a> -> tensor<8xf32, #b> loc(#loc1)
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<8x!tt.ptr<f32>, #a> -> <8xf32, #s, #smem> loc(#loc1)
    %3 = scf.for %i = %c0 to %n step %c1 : i32 {
      %4 = ttg.convert_layout %0 : tensor<8xf32, #a> -> tensor<8xf32, #b> loc(#loc1)
      %5 = ttng.async_tma_copy_global_to_local %d[%i] %m, %b, %t : !tt.tensordesc<8xf32> loc(#loc1)
    } loc(#loc1)
    %6 = ttg.convert_layout %0 : tensor<8xf32, #a> -> tensor<8xf32, #b> loc(#loc1)
"""
    assert facts.ttgir_facts(text) == {"converts_in_loop": 1, "async_copies": 2}


def test_the_assemblers_log_gives_registers_and_spills_of_all_functions() -> None:
    log = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    40 bytes stack frame, 100 bytes spill stores, 60 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 40 bytes cumulative stack size
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas-blackwell info : Used 38 registers"""
    assert resources.log_resources(log) == {"registers": 255, "spill_bytes": 168}
    assert resources.log_resources("") == {}


def elf(sections: list[tuple[bytes, bytes]]) -> bytes:
    """A minimal 64-bit little-endian ELF file with these named sections."""
    names = b"\0" + b"".join(name + b"\0" for name, _ in sections) + b".shstrtab\0"
    parts = [*sections, (b".shstrtab", names)]
    body, headers = b"", [struct.pack("<IIQQQQIIQQ", *([0] * 10))]
    for name, content in parts:
        at = 64 + len(body)
        headers.append(struct.pack("<IIQQQQIIQQ", names.index(name + b"\0"), 1, 0, 0, at, len(content), 0, 0, 1, 0))
        body += content
    kind = struct.pack("<6s10xHHIQQQI", b"\x7fELF\x02\x01", 2, 190, 1, 0, 0, 64 + len(body), 0)
    start = kind + struct.pack("<HHHHHH", 64, 0, 0, 64, len(headers), len(headers) - 1)
    return start + body + b"".join(headers)


def test_the_digest_is_of_code_and_constants_and_the_shape_of_the_launch() -> None:
    code = (b".text.k", b"machine code")
    plain = resources.code_digest(elf([code, (b".debug_line", b"one")]), 64, 4)
    assert resources.code_digest(elf([code, (b".debug_line", b"another")]), 64, 4) == plain
    assert resources.code_digest(elf([(b".text.renamed", code[1])]), 64, 4) == plain
    assert resources.code_digest(elf([(b".text.k", b"other code")]), 64, 4) != plain
    assert resources.code_digest(elf([code, (b".nv.constant0.k", b"1")]), 64, 4) != plain
    assert resources.code_digest(elf([code]), 128, 4) != plain
    assert resources.code_digest(elf([code]), 64, 8) != plain
    assert resources.code_digest(b"no ELF", 64, 4) != resources.code_digest(b"no elf", 64, 4)
