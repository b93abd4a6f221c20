"""Libraries and kernels through clang: diagnostics, constants, cache, what is refused."""

import json
import re
import subprocess
import zlib

import pytest

from softmetal import compiler
from softmetal.compiler import building, native_build, stages
from softmetal.compiler.identity import INCLUDE
from softmetal.errors import CompileError, ToolchainError
from softmetal.toolchain import clang, targets
from softmetal.types import CompileOptions, Mode

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
OPTIONS = CompileOptions()


def library(source, **options):
    return compiler.compile_library(HEAD + source, CompileOptions(**options))


def kernel(source, name="k", constants=None):
    return compiler.compile_kernel(library(source), name, constants or {})


@pytest.fixture
def count_runs(monkeypatch):
    runs = []
    real = subprocess.Popen

    def counting(*arguments, **keywords):
        runs.append(arguments[0])
        return real(*arguments, **keywords)

    monkeypatch.setattr(subprocess, "Popen", counting)
    return runs


@pytest.mark.parametrize(
    ("source", "place", "message"),
    [
        ("kernel void k(device float* x) {\n  x[0] =   nope(1.0);\n}", "4:12", "undeclared identifier 'nope'"),
        ("kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = y; }",
         "3:91", "undeclared identifier 'y'"),
        ("kernel void k(device float* x) { /* comment */ x[0] = 1 }", "3:56", "expected ';'"),
        ("#define TWICE(v) ((v) * missing)\nkernel void k(device float* x) { x[0] = TWICE(x[1]); }",
         "4:", "undeclared identifier 'missing'"),
        ("kernel void k(device float* x) { int y = x; }", "3:", "cannot initialize a variable of type 'int'"),
        ("kernel void k(device atomic<half>* x) { atomic_fetch_add_explicit(x, 1.0h, memory_order_relaxed); }",
         "3:41: error: atomic<T> exists for bool", "int, uint"),
    ],
)  # fmt: skip
def test_errors_have_the_users_place(source, place, message):
    with pytest.raises(CompileError) as caught:
        library(source)
    first = caught.value.diagnostics.splitlines()[0]
    assert first.startswith(f"program_source:{place}")
    assert message in first


def test_the_caret_is_under_the_users_text():
    with pytest.raises(CompileError) as caught:
        library("kernel void k(device float* x [[buffer(0)]]) { x[0] = nope; }")
    _, line, caret, *_ = caught.value.diagnostics.splitlines()
    assert line[caret.index("^") :].startswith("nope")


def test_errors_in_the_users_headers(tmp_path):
    (tmp_path / "mine.h").write_text(
        "#pragma once\ninline float half_of(float x) { return x / two; }\n"
    )
    with pytest.raises(CompileError, match=r"mine\.h:2:44: error: .*'two'"):
        library(
            '#include "mine.h"\nkernel void k(device float* x) {}', include_dirs=(str(tmp_path),)
        )


def test_a_changed_header_is_seen(tmp_path):
    header = tmp_path / "mine.h"
    header.write_text("constant constexpr int size = 4;\n")
    source = '#include "mine.h"\nkernel void k(device float* x) { threadgroup float s[size]; s[0] = x[0]; x[1] = s[1]; }'
    options = CompileOptions(include_dirs=(str(tmp_path),))
    sizes = []
    for size in (4, 8):
        header.write_text(f"constant constexpr int size = {size};\n")
        program = compiler.compile_library(HEAD + source, options)
        sizes.append(compiler.compile_kernel(program, "k", {}).static_threadgroup_memory)
    assert sizes == [16, 32]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("kernel void k(texture2d<float> t [[texture(0)]]) {}", "textures are not supported"),
        ("struct A { texture2d<float> t; };\nkernel void k(constant A& a [[buffer(0)]]) {}", "textures are not supported"),
        ("kernel void k(device float* x) { constexpr sampler s(filter::linear); }", "samplers are not supported"),
        ("kernel void k(device float* x) { double y = 1; }", "'double' is not supported"),
        ("using namespace raytracing;\nkernel void k(device float* x) {}", "ray tracing is not supported"),
        ("kernel void k(device float* x) { raytracing::ray r; }", "ray tracing is not supported"),
        ("kernel void k(visible_function_table<int(int)> t [[buffer(0)]]) {}", "function tables are not supported"),
        ("kernel void k(device float* x, imageblock<float4> b) {}", "imageblocks are not supported"),
        ("kernel void k(tensor<device float, dextents<int, 2>> t [[buffer(0)]]) {}", "tensor API is not supported"),
        ("vertex float4 v(uint i [[vertex_id]]) { return float4(0); }", "vertex functions are not supported"),
        ("fragment float4 f() { return float4(0); }", "fragment functions are not supported"),
        ("[[mesh]] void m() {}", "mesh functions are not supported"),
    ],
)  # fmt: skip
def test_unsupported_constructs_are_named(source, message):
    with pytest.raises(CompileError) as caught:
        library(source)
    assert message in caught.value.diagnostics
    assert "program_source:" in caught.value.diagnostics


def test_recursion_is_refused():
    source = """
int down(int n, device int* x) { x[n] = n; return n == 0 ? x[0] : down(n - 1, x) * x[n] + down(n / 2, x); }
kernel void k(device int* x) { x[0] = down(x[1], x); }"""
    with pytest.raises(CompileError, match="recursion is not supported in Metal: down"):
        kernel(source)


def test_function_constants_decide_code_and_arguments():
    source = """
constant bool has_bias [[function_constant(0)]];
constant float scale [[function_constant(3)]];
constant float factor = is_function_constant_defined(scale) ? scale : 2.0;
kernel void k(device float* x [[buffer(0)]], device const float* bias [[buffer(1), function_constant(has_bias)]],
              uint i [[thread_position_in_grid]]) {
  x[i] *= factor; if (has_bias) x[i] += bias[i]; }"""
    without = kernel(source, constants={0: b"\0"})
    with_bias = kernel(source, constants={0: b"\1", 3: b"\0\0\x80?"})
    assert [a.name for a in without.arguments] == ["x"]
    assert [a.name for a in with_bias.arguments] == ["x", "bias"]
    with pytest.raises(CompileError, match=r"function constant 'has_bias' \(index 0, bool\)"):
        kernel(source, constants={})


def test_kernels_may_be_named_like_metals_functions():
    source = "kernel void move(device float* x) {} kernel void select(device float* x) {}"
    assert kernel(source, "move").name == "move"
    assert kernel(source, "select").name == "select"


def test_instantiations_mean_what_they_mean_in_their_namespace():
    source = """
namespace outer {
struct Twice { template <typename T> static T of(T v) { return v + v; } };
constant bool wide [[function_constant(0)]];
template <typename T, typename Op> kernel void k(device T* x, device T* y [[buffer(1), function_constant(wide)]]) {
  x[0] = Op::of(x[0]); }
template [[host_name("k")]] kernel void k<float, Twice>(device float*, device float*);
}"""
    assert [a.name for a in kernel(source, constants={0: b"\1"}).arguments] == ["x", "y"]


def test_arguments_carry_sizes():
    source = """
struct Params { uint n; float4 v; };
kernel void k(device half4* a, const device packed_float3* b, constant Params& p, threadgroup float* s,
              device void* raw, uint i [[thread_position_in_grid]]) {}"""
    rows = [(a.name, a.kind, a.index, a.size, a.alignment, a.writable, a.reference)
            for a in kernel(source).arguments]  # fmt: skip
    assert rows == [
        ("a", "buffer", 0, 8, 8, True, False),
        ("b", "buffer", 1, 12, 4, False, False),
        ("p", "buffer", 2, 32, 16, False, True),
        ("s", "threadgroup", 0, 4, 4, True, False),
        ("raw", "buffer", 3, 1, 1, True, False),
    ]


def test_macros_versions_and_fast_math_reach_the_source():
    source = """
#if __METAL_VERSION__ != 310 || WIDTH != 7
#error wrong
#endif
kernel void k(device float* x) {}"""
    library(source, macros=(("WIDTH", "7"),), language_version=310)
    with pytest.raises(CompileError, match="wrong"):
        library(source)


def test_narrowing_in_braces_is_accepted():
    source = (
        "kernel void k(device float4* x, constant int& i) { float4 v = {i, 0, 0, 1}; x[0] = v; }"
    )
    assert kernel(source).name == "k"


def test_a_warm_cache_starts_no_process(count_runs):
    source = "kernel void k(device float* x, uint i [[thread_position_in_grid]]) { x[i] = i + 17; }"
    first = kernel(source)
    count_runs.clear()
    assert kernel(source) == first
    assert count_runs == []


def test_library_data_round_trip():
    program = library("kernel void k(device float* x) { x[0] = 1; }")
    data = compiler.program_to_bytes(program)
    assert data.startswith(b"MTLB")
    assert compiler.program_from_bytes(data) == program


@pytest.mark.parametrize("text", ["{}", "[", "7", '{"parameters": 7}', None])
def test_a_damaged_kernel_in_library_data(text):
    """Kernels are read one by one, when they are asked for."""
    program = library("kernel void k(device float* x) {} kernel void other(device float* x) {}")
    data = compiler.program_to_bytes(program)
    head = data.index(b"\n") + 1
    fields = json.loads(zlib.decompress(data[head:]))
    fields["functions"]["k"] = text
    damaged = data[:head] + zlib.compress(json.dumps(fields).encode())
    functions = compiler.program_from_bytes(damaged).functions
    assert sorted(functions) == ["k", "other"]
    assert functions["other"] == program.functions["other"]
    with pytest.raises(CompileError, match="kernel 'k' is damaged"):
        functions["k"]


def test_artifacts_as_bytes():
    artifact = kernel(
        "kernel void k(device float4* x, uint i [[thread_position_in_grid]]) { x[i] = 3; }"
    )
    again = compiler.artifact_from_bytes(compiler.artifact_to_bytes(artifact))
    assert again.arguments == artifact.arguments
    assert again.path.read_bytes() == artifact.path.read_bytes()


@pytest.mark.parametrize(
    "data", [b"", b"MTLB", b"MTLB\x01\x00\x02\x80", b"MTLBsoftmetal-1\nxx", b"PK\3\4"]
)
def test_foreign_library_data_is_refused(data):
    with pytest.raises(CompileError, match="library"):
        compiler.program_from_bytes(data)


def test_linked_library_data():
    programs = tuple(library(f"kernel void {n}(device float* x) {{}}") for n in ("a", "b"))
    data = compiler.library_to_bytes(programs)
    assert compiler.library_from_bytes(data) == programs
    for end in range(len(data) - 200, len(data)):  # within the second program
        with pytest.raises(CompileError, match="damaged"):
            compiler.library_from_bytes(data[:end])
    assert compiler.library_from_bytes(compiler.library_to_bytes(programs[:1])) == programs[:1]
    nested = compiler.link([data, data])
    with pytest.raises(CompileError, match="library"):
        compiler.library_from_bytes(nested)


def test_an_indirect_barrier_is_found_by_the_linker():
    """The pass does not see through a pointer to member; the object's symbols tell."""
    program = library(
        "kernel void k(device float* x, uint i [[thread_position_in_grid]]) { x[i] = simd_sum(x[i]); }"
    )
    function = program.functions["k"]
    blind = type(function)(
        **{f: getattr(function, f) for f in function.__slots__} | {"mode": Mode.FLAT}
    )
    program = type(program)(program.text, program.options, {"k": blind}, program.constants)
    assert compiler.compile_kernel(program, "k", {}).mode == Mode.SIMDGROUPS


V3 = targets.Target("x86_64-linux-gnu", "v3", ("-march=x86-64-v3",), native_bfloat=False)
SAPPHIRE = targets.Target(
    "x86_64-linux-gnu", "spr", ("-march=sapphirerapids",), native_bfloat=False
)
ZEN4 = targets.Target("x86_64-linux-gnu", "zen4", ("-march=znver4",), native_bfloat=False)
DIAMOND = targets.Target("x86_64-linux-gnu", "dmr", ("-march=diamondrapids",), native_bfloat=False)
GRAVITON = targets.Target("aarch64-linux-gnu", "v1", ("-mcpu=neoverse-v1",), native_bfloat=True)


def kernel_unit(program, mode):
    function = program.functions["k"]
    return stages.unit(program, function, {}, native_build.entry(function, mode))


@pytest.fixture
def optimised(tmp_path):
    """The IR of a kernel `k` for a target of any machine, before it is lowered."""

    def build(source, mode, target):
        program, header = library(source), tmp_path / f"{target.cpu}.pch"
        if not header.exists():
            stages.build_header(OPTIONS, stages.NEWEST_STANDARD, target, False, header)
        unit = kernel_unit(program, mode)
        return stages.optimise(unit, OPTIONS, target, header)

    return build


def flat_ir(body):
    program = library(
        "kernel void k(device float* x [[buffer(0)]], device const float* y [[buffer(1)]], "
        f"uint i [[thread_position_in_grid]]) {{ {body} }}"
    )
    unit = kernel_unit(program, Mode.FLAT)
    target = targets.host()
    ir = stages.optimise(unit, OPTIONS, target, building.unit_header(OPTIONS))
    return lowered(ir, target)


def lowered(ir, target, mode=Mode.FLAT):
    module = stages.accepted(ir)
    stages.lower(module, target, mode)
    return str(module)


def test_threads_are_independent_unless_locals_stay_in_memory():
    assert "llvm.loop.parallel_accesses" in flat_ir("x[i] = exp(y[i]);")
    local = "float a[8]; for (int j = 0; j < 8; j++) a[j] = y[j + i]; x[i] = a[int(y[i]) & 7];"
    assert "llvm.loop.parallel_accesses" not in flat_ir(local)


def test_values_do_not_live_in_registers_that_a_tls_call_overwrites(optimised):
    """LLVM takes xmm16 to xmm31 to survive __tls_get_addr; its slow path uses them."""
    body = "threadgroup half s[64]; s[i] = x[i]; threadgroup_barrier(mem_flags::mem_threadgroup); x[i] = s[63 - i];"
    source = f"kernel void k(device half* x, uint i [[thread_index_in_threadgroup]]) {{ {body} }}"
    ir = optimised(source, Mode.FIBERS, SAPPHIRE)
    flags = ["-O3", "-w", f"--target={SAPPHIRE.triple}", *SAPPHIRE.flags, "-x", "ir", "-S", "-"]
    assembly, _ = clang.run("clang", [*flags, "-o", "-"], lowered(ir, SAPPHIRE, Mode.FIBERS))
    assert "__tls_get_addr" in assembly
    assert re.search(r"%[xyz]mm(1[6-9]|2\d|3[01])|%k[0-7]", assembly) is None
    assert re.search(r'"target-features"="[^"]*\+avx512', ir)
    assert "+avx512" not in lowered(ir, SAPPHIRE, Mode.FIBERS)


@pytest.mark.parametrize("target", [V3, SAPPHIRE, GRAVITON], ids=lambda target: target.cpu)
def test_bfloat_rounding_is_expanded_where_the_processor_lacks_it(optimised, target):
    source = """kernel void k(device bfloat* x [[buffer(0)]], device const float* y [[buffer(1)]],
                              uint i [[thread_position_in_grid]]) { x[i] = bfloat(y[i]); }"""
    ir = lowered(optimised(source, Mode.FLAT, target), target)
    assert ("fptrunc" in ir) == target.native_bfloat


def test_conditional_accesses_of_bfloat_compile_for_sve(optimised, tmp_path):
    """LLVM 22 fails at masked loads of bfloat vectors, which this loop has where SVE is on."""
    target = targets.Target("aarch64-linux-gnu", "n2", ("-mcpu=neoverse-n2",), native_bfloat=True)
    source = """
kernel void k(device uchar* out [[buffer(0)]], device const uchar* in [[buffer(1)]],
              uint i [[thread_position_in_grid]]) {
  if (i < 8u) ((device int4*)out)[i] = as_type<int4>(((device const uint4*)in)[i]);
  if (i < 8u) ((device bfloat*)(out + 128))[i] = ((device const bfloat*)(in + 128))[i];
}"""
    ir = optimised(source, Mode.FLAT, target)
    with pytest.raises(CompileError, match="Cannot select"):  # if not, turning it off can go
        stages.generate(ir, target, tmp_path / "with_sve.o", Mode.FLAT)
    stages.generate(lowered(ir, target), target, tmp_path / "without.o", Mode.FLAT)
    assert (tmp_path / "without.o").read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize(
    "statement",
    [
        "x[i] = bfloat(y[i]);",
        "x[i] = bfloat(float(x[i]) * float(z[i]));",  # which LLVM narrows to bfloat
        "x[i] = bfloat(2.0f - float(bfloat(float(x[i]) / 3.0f)));",
        "x4[i] = bfloat4(float4(x4[i]) + float4(z4[i]));",
        "x[i] = bfloat(int(y[i]) + (float(x[i]) > float(z[i])));",
        "x[i] = bfloat(uint(float(x[i])) >> 1);",
        "x4[i] = bfloat4(int4(float4(z4[i])) * 3);",
        "x4[i] = bfloat4(float4(x4[i]) * float4(0.5f, 3, 2, -1));",
    ],
)
def test_bfloat_operations_call_no_function(optimised, statement):
    source = f"""
kernel void k(device bfloat* x [[buffer(0)]], device const float* y [[buffer(1)]],
              device const bfloat* z [[buffer(2)]], device bfloat4* x4 [[buffer(3)]],
              device const bfloat4* z4 [[buffer(4)]], uint i [[thread_position_in_grid]]) {{
  {statement}
}}"""
    ir = lowered(optimised(source, Mode.FLAT, V3), V3)
    found = re.search(r"= (fptrunc|fpext|f(add|sub|mul|div|cmp|pto.i)|.itofp) [^\n]*bfloat", ir)
    assert found is None, found
    flags = ["-O3", "-w", f"--target={V3.triple}", *V3.flags, "-x", "ir", "-S", "-", "-o", "-"]
    assert "__truncsfbf2" not in clang.run("clang", flags, ir)[0]


@pytest.mark.parametrize("target", [ZEN4, DIAMOND], ids=lambda target: target.cpu)
def test_bfloat_compiles_where_the_processor_has_instructions_for_it(optimised, target, tmp_path):
    """LLVM 22 cannot select vectors of some bfloat operations for AVX-512 and AVX10."""
    for result in ("short", "ushort", "half", "bfloat", "uchar"):
        for value in ("float(y[i]) > float(z)", "float(y[i])"):
            source = f"""
kernel void k(device {result}* x [[buffer(0)]], device const bfloat* y [[buffer(1)]],
              constant bfloat& z [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
  x[i] = {result}({value});
}}"""
            ir = lowered(optimised(source, Mode.FLAT, target), target)
            stages.generate(ir, target, tmp_path / "kernel.o", Mode.FLAT)
            assert (tmp_path / "kernel.o").read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize(("feature", "exact"), [("avx512_bf16", False), ("bf16", True)])
def test_bfloat_instructions_that_flush_subnormals_are_not_used(monkeypatch, feature, exact):
    monkeypatch.setattr(targets, "_processor", lambda: ("some processor", frozenset({feature})))
    assert targets.host.__wrapped__().native_bfloat == exact


@pytest.mark.parametrize(
    ("statement", "warned"),
    [
        ("threadgroup float* p = x;", True),
        ("device float* p = s;", True),
        ("float v = take(s);", True),
        ("device float* p = x + 1; threadgroup float* q = s; *p = *q;", False),
        ("float4 v = float4(x[0]) + s[1]; x[0] = dot(v, v);", False),
        ("x[0] = either(x) + either(s);", False),
    ],
)
def test_address_spaces(statement, warned):
    source = f"""
float take(device float* p) {{ return *p; }}
float either(device float* p) {{ return *p; }}
float either(threadgroup float* p) {{ return *p; }}
kernel void k(device float* x, threadgroup float* s) {{
  {statement} }}"""
    warnings = compiler.check_address_spaces(HEAD + source, OPTIONS)
    assert ("program_source:8:" in warnings) == warned, warnings


def test_an_error_in_our_own_headers_is_not_silence(tmp_path, monkeypatch):
    (tmp_path / "softmetal").mkdir()
    (tmp_path / "softmetal" / "strict_unit.h").write_text("mistake;\n")
    monkeypatch.setattr("softmetal.compiler.strict.check._HEADERS", tmp_path)
    monkeypatch.setattr("softmetal.compiler.strict.check.fingerprint", lambda: str(tmp_path))
    with pytest.raises(ToolchainError, match="headers cannot be read for strict checks"):
        compiler.check_address_spaces(HEAD + "kernel void k(device float* x) { *x = 1; }", OPTIONS)


def test_the_preprocessor_finds_all_macros_of_our_headers():
    """It is told to leave out what is expanded from them, since only macros are kept."""
    headers = sorted(path.name for path in INCLUDE.glob("metal_*"))
    text = "".join(f"#include <{name}>\n" for name in headers)

    def macros(*flags):
        given = [*stages.language_flags(CompileOptions()), *flags, "-E", "-dM", "-x", "c++", "-"]
        return set(clang.run("clang", given, text)[0].splitlines())

    changed = macros() ^ macros("-DSM_MACROS_ONLY")
    names = {line.split()[1].partition("(")[0] for line in changed}
    assert names == {"SM_MACROS_ONLY", "SM_SWIZZLES"}
