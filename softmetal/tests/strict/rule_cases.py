"""Sources that break a rule which MSL adds to C++, each with an accepted twin and its place.

A source is a prelude and a kernel's body with `###` between them, or a whole file.
"""

from __future__ import annotations

from typing import NamedTuple

BODY = """kernel void k(device float* x [[buffer(0)]], constant float* c [[buffer(1)]],
              uint i [[thread_position_in_grid]]) {
"""
RESTRICTIONS = "MSL 1.6.4: restrictions of C++"
TYPES = "MSL 2.1: scalar types"
STORAGE = "MSL 4: variables at program scope are in constant memory"
POINTERS = "MSL 4: pointers and references have an address space"
ATTRIBUTES = "MSL 5.2: attributes of kernel arguments"
VERSIONS = "MSL: features of a version"
POSITIONS = "MSL 5.2.3.6: positions in the grid have all scalar types, or all vector types with one number of elements"
ELEMENTS = "clang: 'address of vector element requested'"


class Rule(NamedTuple):
    rule: str
    refused: str
    error: str  # the message, or its beginning
    accepted: str
    version: int = 320


def text(case: str) -> str:
    """The source of a case; a body is at line 6, after a prelude of one line."""
    if "kernel" in case:
        return f"#include <metal_stdlib>\nusing namespace metal;\n{case}\n"
    prelude, _, body = case.rpartition("###")
    return f"#include <metal_stdlib>\nusing namespace metal;\n{prelude}\n{BODY}{body}\n}}\n"


def together(cases: list[str]) -> str:
    """One source of many cases, each in its own namespace."""
    bodies = [text(case).split("\n", 2)[2] for case in cases]
    includes = [line for body in bodies for line in body.split("\n") if line.startswith("#inc")]
    lines = ["#include <metal_stdlib>", *includes, "using namespace metal;"]
    for number, body in enumerate(bodies):
        kept = "\n".join(line for line in body.split("\n") if not line.startswith("#inc"))
        lines.append(f"namespace case{number} {{\n{kept}\n}}")
    return "\n".join(lines) + "\n"


def _parameter(parameter: str) -> str:
    return f"kernel void k(device float* x [[buffer(0)]], {parameter}) {{ x[0] = 1; }}"


RULES = [
    Rule(RESTRICTIONS, "int f(int n) { return n < 2 ? 1 : f(n - 1) * n; }###x[i] = f(3);",
         "recursion is not supported in Metal",
         "int f(int n) { int r = 1; while (n > 1) r *= n--; return r; }###x[i] = f(3);"),
    Rule(RESTRICTIONS, "try { x[i] = 1; } catch (...) {}", "cannot use 'try' with exceptions", "x[i] = 1;"),
    Rule(RESTRICTIONS, "throw 1;", "cannot use 'throw' with exceptions", "return;"),
    Rule(RESTRICTIONS, "struct B { virtual float f() { return 1; } };###B b; x[i] = b.f();",
         "virtual functions are not supported", "struct B { float f() { return 1; } };###B b; x[i] = b.f();"),
    Rule(RESTRICTIONS, "x[i] = *new float(1);", "'new' is not supported in Metal", "x[i] = float(1);"),
    Rule(RESTRICTIONS, "thread float* p = nullptr; delete p;", "'delete' is not supported in Metal",
         "thread float* p = nullptr; x[i] = p ? 1 : 0;"),
    Rule(RESTRICTIONS, "struct A {}; struct B : A {};###B b; thread A* a = &b; x[i] = dynamic_cast<thread B*>(a) != nullptr;",
         "'dynamic_cast' is not supported in Metal",
         "struct A {}; struct B : A {};###B b; thread A* a = &b; x[i] = static_cast<thread B*>(a) != nullptr;"),
    Rule(RESTRICTIONS, "x[i] = typeid(float) == typeid(int);", "'typeid' is not supported in Metal",
         "x[i] = is_same_v<float, int>;"),
    Rule(RESTRICTIONS, "again: x[i] += 1; if (x[i] < 3) goto again;", "'goto' is not supported in Metal",
         "while (x[i] < 3) x[i] += 1;"),
    Rule(RESTRICTIONS, "thread_local float s = 0; x[i] = s;", "'thread_local' is not supported in Metal",
         "float s = 0; x[i] = s;"),
    Rule(RESTRICTIONS, "register float s = 0; x[i] = s;", "Metal does not support the 'register' storage class",
         "float s = 0; x[i] = s;"),
    Rule(RESTRICTIONS, 'asm volatile("nop");', "inline assembly is not supported in Metal", "x[i] = 1;"),
    Rule(RESTRICTIONS, "float f(float a) { return a; }###float (*g)(float) = f; x[i] = g(1);",
         "pointers to functions are not allowed",
         "float f(float a) { return a; } template <float (*g)(float)> float h() { return g(1); }###x[i] = h<f>();"),
    Rule(RESTRICTIONS, "float f(float a) { return a; }###float (*g)(float); g = f; x[i] = g(1);",
         "pointers to functions are not allowed",
         "float f(float a) { return a; } template <typename T> T h(T a, T (*g)(T)) { return g(a); }###x[i] = h(x[i], f);"),
    Rule(RESTRICTIONS, "struct T { float (*g)(float); };###x[i] = 1;", "pointers to functions are not allowed",
         "struct T { float g; };###x[i] = 1;"),
    Rule(RESTRICTIONS, "float f(int n, ...) { return n; }###x[i] = f(1, 2);", "variadic functions are not supported",
         "float g(int n) { return n; } template <typename... T> float f(int n, T... t) { (g(t), ...); return (n + ... + t); }###x[i] = f(1, 2);"),
    Rule(RESTRICTIONS, "float f(...) { return 1; }###x[i] = f(1, 2);", "variadic functions are not supported",
         "template <typename... T> float f(T...) { return sizeof...(T); }###x[i] = f(1, 2);"),
    Rule(RESTRICTIONS, "#include <vector>\n###x[i] = 1;", "'vector' file not found", "#include <metal_math>\n###x[i] = 1;"),
    Rule(RESTRICTIONS, "#include <math.h>\n###x[i] = 1;", "'math.h' file not found", "#include <simd/simd.h>\n###x[i] = 1;"),
    Rule(TYPES, "double d = x[0]; x[0] = d;", "'double' is not supported in Metal", "float d = x[0]; x[0] = d;"),
    Rule(TYPES, "long double d = x[0]; x[0] = d;", "'double' is not supported in Metal", "half d = half(x[0]); x[0] = d;"),
    Rule(TYPES, "long long n = i; x[i] = n;", "'long long' is not supported in Metal", "long n = i; x[i] = n;"),
    Rule("MSL 2.2: vectors have 2, 3 or 4 elements",
         "typedef float float8 __attribute__((ext_vector_type(8)));###float8 v = 1; x[i] = v[0];",
         "vectors of other than 2, 3 or 4 elements", "typedef float4 v4;###v4 v = 1; x[i] = v[0];"),
    Rule("MSL 2.2: vectors have 2, 3 or 4 elements", "vec<float, 8> v; x[i] = 1;",
         "implicit instantiation of undefined template", "vec<float, 4> v; x[i] = 1;"),
    Rule("MSL 2.2: sizes and alignments of vectors", 'static_assert(sizeof(float3) == 12, "");###x[i] = 1;',
         "static assertion failed", 'static_assert(sizeof(float3) == 16 && alignof(float3) == 16, "");###x[i] = 1;'),
    Rule("MSL 2.2: sizes and alignments of vectors", 'static_assert(alignof(half4) == 2, "");###x[i] = 1;',
         "static assertion failed", 'static_assert(alignof(half4) == 8 && alignof(packed_half4) == 2, "");###x[i] = 1;'),
    Rule("MSL 2.2: sizes and alignments of vectors", 'static_assert(sizeof(packed_float3) == 16, "");###x[i] = 1;',
         "static assertion failed", 'static_assert(sizeof(packed_float3) == 12, "");###x[i] = 1;'),
    Rule(STORAGE, "int n = 3;###x[i] = n;", "program scope variable must reside in constant address space",
         "constant int n = 3;###x[i] = n;"),
    Rule(STORAGE, "const float n = 3;###x[i] = n;", "program scope variable must reside in constant",
         "constant float n = 3;###x[i] = n;"),
    Rule(STORAGE, "constexpr float n = 3;###x[i] = n;", "program scope variable must reside in constant",
         "constexpr constant float n = 3;###x[i] = n;"),
    Rule(STORAGE, "struct T { static constexpr int n = 3; };###x[i] = T::n;", "program scope variable must reside",
         "struct T { static constant constexpr int n = 3; };###x[i] = T::n;"),
    Rule(STORAGE, "extern const float n;###x[i] = 1;", "extern variable must reside in constant address space",
         "extern constant float n;###x[i] = 1;"),
    Rule(STORAGE, "constant float n;###x[i] = n;", "variable in constant address space must be initialized",
         "constant float n [[function_constant(0)]];###x[i] = n;"),
    Rule(STORAGE, "threadgroup float n;###x[i] = n;", "program scope variable must reside in constant",
         "threadgroup float n; n = 1; x[i] = n;"),
    Rule(STORAGE, "static float s = 0; x[0] = s;", "static local variable must reside in constant",
         "constexpr float s = 0; x[0] = s;"),
    Rule(STORAGE, "static const float s[2] = {1, 2}; x[0] = s[i];", "static local variable must reside in constant",
         "const float s[2] = {1, 2}; x[0] = s[i];"),
    Rule(STORAGE, "threadgroup float s = 1; x[i] = s;", "initializers of threadgroup variables are not supported",
         "threadgroup float s; s = 1; x[i] = s;"),
    Rule("MSL 4.4: threadgroup variables belong to kernels", "float f() { threadgroup float s; s = 1; return s; }###x[i] = f();",
         "variables in the threadgroup address space cannot be declared",
         "float f(threadgroup float* s) { *s = 1; return *s; }###threadgroup float s; x[i] = f(&s);"),
    Rule(POINTERS, "float* q = x; q[0] = 1;", "pointer type must have explicit address space qualifier",
         "device float* q = x; q[0] = 1;"),
    Rule(POINTERS, "float& q = x[0]; q = 1;", "reference type must have explicit address space qualifier",
         "device float& q = x[0]; q = 1;"),
    Rule(POINTERS, "struct S { float a; };###S s; S* q = &s; x[i] = q->a;", "pointer type must have explicit",
         "struct S { float a; };###S s; thread S* q = &s; x[i] = q->a;"),
    Rule(POINTERS, "struct S { float a; }; float f(const S& s) { return s.a; }###S s = {1}; x[i] = f(s);",
         "reference type must have explicit", "struct S { float a; }; float f(const thread S& s) { return s.a; }###S s = {1}; x[i] = f(s);"),
    Rule(POINTERS, "struct S { float* p; };###x[i] = 1;", "pointer type must have explicit",
         "struct S { device float* p; };###x[i] = 1;"),
    Rule(POINTERS, "typedef float* P;###x[i] = 1;", "pointer type must have explicit", "typedef device float* P;###P p = x; *p = 1;"),
    Rule(POINTERS, "using P = float*;###x[i] = 1;", "pointer type must have explicit", "using P = device float*;###P p = x; *p = 1;"),
    Rule(POINTERS, "float* f(uint n);###x[i] = 1;", "pointer type must have explicit", "device float* f(uint n);###x[i] = 1;"),
    Rule(POINTERS, "struct S { int n; }; void f(S* s, int n) { s->n = n; }###x[i] = 1;", "pointer type must have explicit",
         "struct S { int n; }; void f(device S* s, int n) { s->n = n; }###x[i] = 1;"),
    Rule(POINTERS, "x[i] = *(float*)x;", "pointer type must have explicit", "x[i] = *(device float*)x;"),
    Rule(POINTERS, "void f(float4* v) { v->x = 1; }###x[i] = 1;", "pointer type must have explicit",
         "void f(thread float4* v) { v->x = 1; }###float4 v; f(&v); x[i] = v.x;"),
    Rule(POINTERS, "struct S { int n; S& add(int m) { n += m; return *this; } };###x[i] = 1;", "reference type must have explicit",
         "struct S { int n; thread S& add(int m) { n += m; return *this; } };###S s = {1}; x[i] = s.add(2).n;"),
    Rule(ATTRIBUTES, _parameter("device float* p [[buffer(31)]]"), "'buffer' attribute parameter is out of bounds: must be between 0 and 30",
         _parameter("device float* p [[buffer(30)]]")),
    Rule(ATTRIBUTES, _parameter("device float* p [[buffer(-1)]]"), "'buffer' attribute parameter is out of bounds",
         _parameter("device float* p [[buffer(2)]]")),
    Rule(ATTRIBUTES, _parameter("threadgroup float* p [[threadgroup(31)]]"), "'threadgroup' attribute parameter is out of bounds",
         _parameter("threadgroup float* p [[threadgroup(30)]]")),
    Rule(ATTRIBUTES, _parameter("device float* p [[buffer(0)]]"), "cannot reserve 'buffer' resource location at index 0",
         _parameter("device float* p [[buffer(1)]]")),
    Rule(ATTRIBUTES, _parameter("thread float* p [[buffer(1)]]"), "buffer 'p' must be in device or constant memory",
         _parameter("constant float* p [[buffer(1)]]")),
    Rule(ATTRIBUTES, _parameter("threadgroup float* p [[buffer(1)]]"), "invalid address space qualification for buffer pointee type 'float'",
         _parameter("threadgroup float* p [[threadgroup(1)]]")),
    Rule(ATTRIBUTES, _parameter("device float* p [[threadgroup(0)]]"), "invalid address space qualification for threadgroup pointee type",
         _parameter("threadgroup float* p [[threadgroup(0)]]")),
    Rule(ATTRIBUTES, _parameter("float p [[buffer(1)]]"), "invalid type 'float' for buffer declaration 'p'",
         _parameter("constant float& p [[buffer(1)]]")),
    Rule(ATTRIBUTES, _parameter("float p"), "parameter 'p' of kernel 'k' is neither a buffer nor a builtin",
         _parameter("constant float& p")),
    Rule(ATTRIBUTES, _parameter("int i [[thread_position_in_grid]]"), "invalid type 'int' for attribute 'thread_position_in_grid'",
         _parameter("ushort i [[thread_position_in_grid]]")),
    Rule(ATTRIBUTES, _parameter("uint4 i [[thread_position_in_grid]]"), "invalid type 'uint4' for attribute",
         _parameter("uint3 i [[thread_position_in_grid]]")),
    Rule(ATTRIBUTES, _parameter("float i [[thread_index_in_simdgroup]]"), "invalid type 'float' for attribute",
         _parameter("uint i [[thread_index_in_simdgroup]]")),
    Rule(ATTRIBUTES, _parameter("uint2 i [[thread_index_in_simdgroup]]"), "type 'uint2' is not valid for attribute 'thread_index_in_simdgroup'",
         _parameter("ushort i [[thread_index_in_simdgroup]]")),
    Rule(ATTRIBUTES, _parameter("uint3 i [[thread_index_in_threadgroup]]"), "type 'uint3' is not valid for attribute",
         _parameter("uint i [[thread_index_in_threadgroup]]")),
    Rule(ATTRIBUTES, _parameter("thread uint& i [[thread_position_in_grid]]"), "type 'thread uint &' is not valid for attribute",
         _parameter("uint i [[thread_position_in_grid]]")),
    Rule(ATTRIBUTES, "kernel int k(device float* x [[buffer(0)]]) { return 1; }", "invalid return type 'int' for kernel function",
         "kernel void k(device float* x [[buffer(0)]]) { x[0] = 1; }"),
    Rule("clang: an attribute behind a declarator is one of its type", "kernel void k(device float* x [[buffer(0)]]) [[max_total_threads_per_threadgroup(64)]] { x[0] = 1; }",
         "'max_total_threads_per_threadgroup' attribute cannot be applied to types",
         "[[max_total_threads_per_threadgroup(64)]] kernel void k(device float* x [[buffer(0)]]) { x[0] = 1; }"),
    Rule(POSITIONS, _parameter("uint i [[thread_position_in_grid]], uint3 n [[threads_per_threadgroup]]"),
         "'n' has the type 'uint3' and 'i' 'uint'", _parameter("uint i [[thread_position_in_grid]], ushort n [[threads_per_threadgroup]]")),
    Rule(POSITIONS, _parameter("uint3 g [[threadgroup_position_in_grid]], uint i [[thread_position_in_grid]]"),
         "'i' has the type 'uint' and 'g' 'uint3'",
         _parameter("uint3 g [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]]")),
    Rule(POSITIONS, _parameter("ushort2 g [[threadgroup_position_in_grid]], const uint3 i [[thread_position_in_grid]]"),
         "'i' has the type", _parameter("ushort2 g [[threadgroup_position_in_grid]], const uint2 i [[thread_position_in_grid]]")),
    Rule("MSL 5.1.3: kernels are not called", "kernel void k(device float* x [[buffer(0)]]) { x[0] = 1; }\nkernel void c(device float* x [[buffer(0)]]) { k(x); }",
         "a kernel function cannot be called",
         "void k(device float* x) { x[0] = 1; }\nkernel void c(device float* x [[buffer(0)]]) { k(x); }"),
    Rule("MSL 5.1.3: kernels are not called", "kernel void k(device float* x [[buffer(0)]]) { x[0] = 1; }\nkernel void c(device float* x [[buffer(0)]]) { if (x[0] > 1) k(x); }",
         "a kernel function cannot be called",
         "kernel void k(device float* x [[buffer(0)]]) { for (int k = 0; k < 3; k++) x[k] = 1; auto f = [](int k) { return k; }; x[0] = f(2); }"),
    Rule("MSL 5.1.3: kernels are not called", "kernel void k(device float* x [[buffer(0)]]) { x[0] = 1; }\nkernel void c(device float* x [[buffer(0)]]) { ::k(x); }",
         "a kernel function cannot be called",
         "kernel void k(device float* x [[buffer(0)]]) { x[0] = 1; }\nkernel void c(device float* x [[buffer(0)]]) { auto k = [](float y) { return y; }; k(1.0f); }"),
    Rule("MSL 2.1: half is a type", "uint half = i / 2; x[i] = half;", "'half' cannot be a name", "uint halved = i / 2; x[i] = half(halved);"),
    Rule("MSL 2.1: bfloat is a type", "float f(float bfloat) { return 1; }###x[i] = f(2);", "'bfloat' cannot be a name",
         "float f(bfloat) { return 1; }###x[i] = f(bfloat(2.0f));"),
    Rule("MSL 5.1: vertex and fragment are keywords", "int a = 0, b = 0; int vertex = a + b; x[i] = vertex;", "'vertex' cannot be a name",
         "int a = 0, b = 0; int vertexes = a + b; x[i] = vertexes;"),
    Rule(ELEMENTS, "float4 v = c[0]; thread float* p = &v.y; x[i] = *p;", "address of vector element requested",
         "struct P { float y; };###P v = {c[0]}; thread float* p = &v.y; x[i] = *p;"),
    Rule(ELEMENTS, "float f(thread float* p) { return *p; }###thread float4* q = 0; float4 v = c[0]; x[i] = f(&v.x) + q->x;", "address of vector element requested",
         "float f(thread float* p) { return *p; }###float4 v = c[0]; float y = v.x; x[i] = f(&y) + float(1 & int(v.x));"),
    Rule("MSL 5.1.3: threads of a threadgroup",
         "[[max_total_threads_per_threadgroup(2048)]] kernel void k(device float* x [[buffer(0)]]) { x[0] = 1; }",
         "'max_total_threads_per_threadgroup' attribute parameter is out of bounds: must be between 1 and 1024",
         "[[max_total_threads_per_threadgroup(1024)]] kernel void k(device float* x [[buffer(0)]]) { x[0] = 1; }"),
    Rule("Metal feature set tables: 32 KiB of threadgroup memory", "threadgroup float s[8193]; s[i] = 1; x[i] = s[0];",
         "threadgroup memory size exceeds the maximum threadgroup memory allowed (32768)",
         "threadgroup float s[8192]; s[i] = 1; x[i] = s[0];"),
    Rule("Metal feature set tables: 32 KiB of threadgroup memory",
         "threadgroup float4 s[1024]; threadgroup float4 t[1024], u; s[i] = t[i] = u; x[i] = s[0].x;",
         "threadgroup memory size exceeds the maximum threadgroup memory allowed (32768)",
         "threadgroup float4 s[1024]; threadgroup float4 t[1023], u; s[i] = t[i] = u; x[i] = s[0].x;"),
    Rule(VERSIONS, "bfloat b = bfloat(x[i]); x[i] = b;", "'bfloat' requires Metal language standard metal3.1 or higher",
         "half b = half(x[i]); x[i] = b;", 300),
    Rule(VERSIONS, "x[i] = simd_sum(x[i]);", "'simd_sum' requires Metal language standard macos-metal2.1 or higher",
         "x[i] = simd_shuffle(x[i], 0);", 200),
    Rule(VERSIONS, "simdgroup_float8x8 m;", "'simdgroup_float8x8' requires Metal language standard macos-metal2.3 or higher",
         "x[i] = simd_max(x[i]);", 220),
    Rule(VERSIONS, "x[i] = simd_shuffle_and_fill_up(x[i], 0.0f, 1);", "'simd_shuffle_and_fill_up' requires Metal language standard macos-metal2.4",
         "x[i] = simd_shuffle_up(x[i], 1);", 230),
    Rule(VERSIONS, "auto f = [&](float a) { return a * 2; }; x[i] = f(1);", "a lambda expression requires Metal language standard metal3.2",
         "float a[2] = {1, 2}; x[i] = a[i & 1];", 310),
    Rule(VERSIONS, "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);", "'atomic_thread_fence' requires Metal language standard metal3.2",
         "threadgroup_barrier(mem_flags::mem_device);", 310),
    Rule(VERSIONS, "long n = i; x[i] = n;", "'long' requires Metal language standard macos-metal2.2 or higher",
         "int n = i; x[i] = n;", 210),
    Rule(VERSIONS, _parameter("device atomic_float* a [[buffer(1)]]"), "'atomic_float' requires Metal language standard metal3.0",
         _parameter("device atomic_uint* a [[buffer(1)]]"), 240),
    Rule(VERSIONS, '[[host_name("k")]] kernel void f(device float* x [[buffer(0)]]) { x[0] = 1; }',
         "'host_name' attribute requires Metal language standard macos-metal2.2 or higher",
         "kernel void k(device float* x [[buffer(0)]]) { x[0] = 1; }", 210),
    Rule(VERSIONS, "os_log_default.log(\"a\"); x[i] = 1;", "'os_log_default' requires Metal language standard metal3.2", "x[i] = 1;", 310),
]  # fmt: skip
