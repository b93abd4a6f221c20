"""Metal's own rules, which C++ does not have: refused with the user's place, and no false alarms."""

import pytest

from softmetal.compiler import compile_kernel, compile_library
from softmetal.errors import CompileError
from softmetal.types import CompileOptions

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def kernel(body, prelude="", parameters=""):
    return (
        f"{HEAD}{prelude}\nkernel void k(device float* o [[buffer(0)]]{parameters},\n"
        f"    uint i [[thread_position_in_grid]]) {{\n{body}\n}}\n"
    )


def with_parameter(parameter):
    return f"{HEAD}kernel void k(device float* o [[buffer(0)]],\n  {parameter}) {{ o[0] = 1; }}\n"


def refusal(source):
    with pytest.raises(CompileError) as caught:
        compile_library(source, CompileOptions())
    return caught.value.diagnostics.splitlines()[0]


@pytest.mark.parametrize(
    ("body", "column", "message"),
    [
        ("a: o[i] = 1; goto a;", 14, "'goto' is not supported in Metal"),
        ("o[i] = typeid(float) == typeid(int);", 8, "'typeid' is not supported in Metal"),
        ("thread_local int n = 0; o[i] = n;", 1, "'thread_local' is not supported in Metal"),
        ("device int* p = new int;", 17, "'new' is not supported in Metal"),
        ("static int n = 0; o[i] = n++;", 1, "static local variable must reside in constant"),
        ("threadgroup int n = 1; o[i] = n;", 19, "initializers of threadgroup variables"),
        ("threadgroup int n = 0 + i; o[i] = n;", 19, "initializers of threadgroup variables"),
        ("threadgroup float s[2] = {1, 2}; o[i] = s[i];", 24, "initializers of threadgroup"),
        ("float* p = o; *p = 1;", 6, "pointer type must have explicit address space qualifier"),
        ("const float& x = o[0]; o[1] = x;", 12, "reference type must have explicit address space"),
    ],
)
def test_statements(body, column, message):
    assert refusal(kernel(body)).startswith(f"program_source:6:{column}: error: {message}")


@pytest.mark.parametrize(
    ("prelude", "column", "message"),
    [
        ("int n = 3;", 5, "program scope variable must reside in constant address space"),
        ("static float table[4];", 14, "program scope variable must reside in constant"),
        ("device int n = 3;", 12, "program scope variable must reside in constant"),
        ("[[maybe_unused]] int n = 3;", 22, "program scope variable must reside in constant"),
        ("uint n [[thread_position_in_grid]];", 6, "a program scope variable with attribute 'thread"),
        ("device int* n [[buffer(1)]];", 13, "a program scope variable with attribute 'buffer'"),
        ("threadgroup float s[4];", 19, "program scope variable must reside in constant"),
        ("namespace a { int n; }", 19, "program scope variable must reside in constant"),
        ("struct B { virtual int f() { return 1; } };", 12, "virtual functions are not supported"),
        ("void f(float* p) { *p = 1; }", 13, "pointer type must have explicit address space"),
        ("float f(const int &n) { return n; }", 19, "reference type must have explicit address"),
        ("int f(int n) { return n < 2 ? 1 : f(n - 1) * n; }", 5, "recursion is not supported"),
        ("int g(int); int f(int n) { return g(n); } int g(int n) { return n ? f(n - 1) : 0; }",
         17, "recursion is not supported in Metal"),
    ],
)  # fmt: skip
def test_declarations(prelude, column, message):
    call = "o[i] = f(3);" if " f(int n)" in prelude else "o[i] = 1;"
    assert refusal(kernel(call, prelude)).startswith(f"program_source:3:{column}: error: {message}")


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("device float* p [[buffer(0)]]", "cannot reserve 'buffer' resource location at index 0"),
        (
            "device float* p [[buffer(31)]]",
            "'buffer' attribute parameter is out of bounds: must be between 0 and 30",
        ),
        ("float x [[buffer(1)]]", "invalid type 'float' for buffer declaration 'x'"),
        ("float* p [[buffer(1)]]", "pointer type must have explicit address space qualifier"),
        ("thread float* p [[buffer(1)]]", "buffer 'p' must be in device or constant memory"),
        ("int i [[thread_position_in_grid]]", "invalid type 'int' for attribute"),
        ("uint4 i [[thread_position_in_grid]]", "invalid type 'uint4' for attribute"),
        ("float i [[thread_index_in_simdgroup]]", "invalid type 'float' for attribute"),
    ],
)
def test_kernel_parameters(parameter, message):
    found = refusal(with_parameter(parameter))
    assert found.startswith("program_source:4:")
    assert f": error: {message}" in found


def test_a_kernel_returns_nothing():
    source = f"{HEAD}kernel int k(device float* o [[buffer(0)]]) {{ return 1; }}"
    assert refusal(source) == (
        "program_source:3:12: error: invalid return type 'int' for kernel function: it must be void"
    )


def test_a_kernel_after_an_unknown_macro():
    source = f"{HEAD}NOT_A_MACRO(text)\nkernel void k(device float* o [[buffer(0)]]) {{}}"
    assert "no return type for kernel function: it must be void" in refusal(source)


def test_a_function_is_defined_once():
    text = "kernel void k(device float* o [[buffer(0)]]) { o[0] = 1; }\n"
    assert refusal(HEAD + text + text) == "program_source:4:13: error: redefinition of 'k'"


def test_threadgroup_variables_belong_to_kernels():
    found = refusal(f"{HEAD}float f(uint i) {{\n  threadgroup float s[4]; return s[i];\n}}\n")
    assert found.startswith("program_source:4:3: error: variables in the threadgroup address space")


def test_threadgroup_variables_of_kernels_in_namespaces():
    source = f"{HEAD}namespace a {{ kernel void k(device float* o [[buffer(0)]]) {{\n"
    source += "  threadgroup float s[4]; s[0] = 1; o[0] = s[0]; } }\n"
    assert "a::k" in compile_library(source, CompileOptions()).functions


def test_an_instantiation_names_arguments_that_its_parameters_do_not_say():
    template = "template <int N> kernel void k(device int* o [[buffer(0)]]) { o[0] = N; }\n"
    found = refusal(f'{HEAD}{template}template [[host_name("x")]] kernel void k(device int*);')
    assert found.startswith("program_source:4:1: error: no kernel template has these parameters")


ACCEPTED = """
typedef struct { float a; } Params;
typedef struct { int n; } Pair, *PairPointer;
typedef enum Kind : int Kind; enum Kind : int { KindA = 2, KindB };
struct Once { Once() = default; Once(const thread Once&) = delete; int n; };
union Bits { float f; uint u; };
constant float table[2] = {1, 2};
constexpr constant int count = 2;
namespace inner { constant int depth = 1; constexpr int twice(int n) { return 2 * n; } }
float f(float x) { return x + 1; }
float4 f(float4 v) { return float4(f(v.x), f(v.y), f(v.z), f(v.w)); }
template <int N> float power(float x) {
  if constexpr (N > 0) return x * power<N - 1>(x); else return 1;
}
template <typename T> void assign(thread T* to, T value) { *to = value; }
void bump(device float* device* rows, thread float& x) { x += rows[0][0] * 0; }
constant bool wide [[function_constant(0)]];
"""


@pytest.mark.parametrize(
    "parameters",
    [
        ", device float* a [[buffer(1), function_constant(wide)]],"
        " device half* b [[buffer(1), function_constant(narrow)]]",
        ", constant Params& a [[buffer(KindA)]], const device Pair* b [[buffer(KindB)]]",
        ", threadgroup float* s [[threadgroup(0)]], ushort3 t [[thread_position_in_threadgroup]]",
    ],
)
def test_no_false_alarms(parameters):
    body = """
  const device float* p = o; thread float x = p[0]; thread float* q = &x; device float& r = o[i];
  static constant int scale = 3; float y = x * count * scale; threadgroup float s2[4], t2;
  threadgroup float* sp = s2; threadgroup auto& sr = s2[0]; sp[0] = y; sr += t2 * 0;
  assign(q, f(y) + power<3>(2.0) + inner::twice(inner::depth) + table[0]);
  r = f(float4(x)).x;"""
    prelude = f"{ACCEPTED}constant bool narrow = !wide;"
    program = compile_library(kernel(body, prelude, parameters), CompileOptions())
    assert list(program.functions) == ["k"]


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("  o[0] = 1; o[1] = BAD(3);", 20),  # at the macro
        ("  o[0] = half(2) + 1.0 * missing;", 26),
        ("\t\to[0] = 1.5 + missing;", 16),
        ("  /* größe π */ o[0] = 1.5 + missing;", 30),
        ("  V v(1); v.x(o[0]) = missing;", 23),
    ],
)
def test_columns_are_the_users(line, column):
    prelude = "#define BAD(x) missing(x)\nstruct V { V(int n) {} thread float& x(float f); };"
    assert refusal(kernel(line, prelude)).startswith(f"program_source:7:{column}: error: ")
    assert refusal(kernel(line, prelude).replace("\n", "\r\n")).startswith(
        f"program_source:7:{column}: error: "
    )


def test_a_missing_brace_is_reported_at_the_end():
    source = f"{HEAD}kernel void k(device float* o [[buffer(0)]]) {{\n  o[0] = 1;\n"
    assert refusal(source) == "program_source:4:1: error: expected '}'"


def test_an_undefined_function_is_named():
    program = compile_library(
        kernel("o[i] = elsewhere(1);", "float elsewhere(float);"), CompileOptions()
    )
    with pytest.raises(CompileError, match="undefined symbol: elsewhere has no definition"):
        compile_kernel(program, "k", {})


def test_metal_performance_primitives_are_named():
    source = "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n"
    assert "the tensor API is not supported by softmetal" in refusal(source)
