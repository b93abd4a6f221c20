"""The kernels of test_programs.py."""

from __future__ import annotations

import math
from collections.abc import Callable

Case = tuple[str, str, str, Callable[[int], int]]

# name, declarations, statements that set out[i] for 16 threads, the value that is expected
LANGUAGE: list[Case] = [
    ("lambda", "", "auto f = [&](int x) { return x * int(i) + 1; }; out[i] = f(3);",
     lambda i: 3 * i + 1),
    ("generic lambda", "", "auto f = [](auto a, auto b) { return a + b; }; out[i] = f(3, int(i));",
     lambda i: 3 + i),
    ("fold", "template <typename... A> int sum(A... a) { return (a + ...); }",
     "out[i] = sum(int(i), 1, 2, 3);", lambda i: 6 + i),
    ("comma fold", "template <typename F, typename... A> void each(F f, A... a) { (f(a), ...); }",
     "int t = 0; each([&](int v) { t += v; }, int(i), 2, 3); out[i] = t;", lambda i: 5 + i),
    ("if constexpr", "template <int N> int f(int x) {"
     " if constexpr (N > 1) return x * N + f<N - 1>(x); else return x; }",
     "out[i] = f<3>(i) + f<0>(i);", lambda i: 7 * i),
    ("enum class", "enum class Op : uint { Add = 1, Sub, Mul = 7 };\nOp g(uint i) {"
     " switch (i % 3) { case 0: return Op::Add; case 1: return Op::Sub; default: return Op::Mul; } }",
     "out[i] = int(g(i));", lambda i: [1, 2, 7][i % 3]),
    ("constexpr function", "constexpr int fib(int n) { int a = 0, b = 1;"
     " for (int k = 0; k < n; k++) { int t = a + b; a = b; b = t; } return a; }",
     "constexpr int a = fib(10); out[i] = a + i;", lambda i: 55 + i),
    ("static tables", "constant int T[2][3] = {{1, 2, 3}, {4, 5, 6}};\n"
     "struct S { static constexpr constant int t[3] = {10, 20, 30}; };",
     "out[i] = T[i % 2][i % 3] + S::t[i % 3];",
     lambda i: [[1, 2, 3], [4, 5, 6]][i % 2][i % 3] + 10 * (i % 3 + 1)),
    ("operators", "struct C { float re, im; C operator+(C o) const { return C{re + o.re, im + o.im}; }"
     " };\nC operator*(C a, C b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }",
     "C a{1, 2}, b{float(i), 1}; C c = a * b + a; out[i] = int(c.re * 10 + c.im);",
     lambda i: (i - 1) * 10 + 2 * i + 3),
    ("union", "union U { float f; uint u; uchar b[4]; };", "U x; x.f = 1.0; out[i] = x.b[3] + i;",
     lambda i: 0x3F + i),
    ("bit fields", "struct B { uint a : 3; uint b : 5; uint c : 24; };",
     "B b; b.a = i; b.b = 5; b.c = i * 3; out[i] = int(b.a) + 100 * int(b.b) + 1000 * int(b.c);",
     lambda i: i % 8 + 500 + 3000 * i),
    ("reference to pointer", "void advance(device int*& p, int n) { p += n; }",
     "device int* p = out; advance(p, int(i)); *p = int(i) * 2;", lambda i: 2 * i),
    ("pointers to pointers", "", "int a = i, b = 7; thread int* ps[2] = {&a, &b};"
     " thread int* thread* q = ps; *q[0] += 1; out[i] = *q[i & 1] + a;",
     lambda i: (7 if i % 2 else i + 1) + i + 1),
    ("structured binding", "struct P { int a; int b; }; P make(int i) { return {i, i + 1}; }",
     "auto [a, b] = make(i); out[i] = a * b;", lambda i: i * (i + 1)),
    ("constructors", "struct V { int a; int b; V(int x) : a(x), b{x * 2} {}"
     " int get() const thread { return a; } int get() const device { return a; } };",
     "V v(i + 0); out[i] = v.get() + v.b;", lambda i: 3 * i),
    ("defaulted constructors", "struct S { S() thread = default; S() threadgroup = default;"
     " int get() const thread; int get() const device; int a; };\n"
     "inline int S::get() const { return a; }\n"
     "template <typename T> struct P { T a; P() thread = default; P() threadgroup = default; };\n"
     "template <> struct P<int> { int a; P() thread = default; P() threadgroup = default; };",
     "S t; P<int> p; P<uint> q; t.a = i; p.a = 2; q.a = 3u;"
     " out[i] = t.get() * p.a + int(q.a);", lambda i: 2 * i + 3),
    ("bases", "struct B { int a; int f() const { return a; } };\n"
     "struct D : B { int b; int g() { return a * b; } };",
     "D d; d.a = i; d.b = 2; out[i] = d.f() + d.g();", lambda i: 3 * i),
    ("crtp", "template <typename T> struct B { int call(int x) {"
     " return static_cast<thread T*>(this)->impl(x); } };\n"
     "struct D : B<D> { int impl(int x) { return x * 5; } };",
     "D d; out[i] = d.call(i);", lambda i: 5 * i),
    ("enable_if", "template <typename T, typename = enable_if_t<is_integral_v<T>>>"
     " int f(T x) { return 1; }\n"
     "template <typename T, enable_if_t<is_floating_point_v<T>, int> = 0> int f(T x) { return 2; }",
     "out[i] = f(int(i)) + f(1.5f);", lambda i: 3),
    ("trailing result", "template <typename T> auto f(T x) -> decltype(x + 1) { return x + 1; }",
     "out[i] = f(int(i));", lambda i: i + 1),
    ("address space overloads", "constant int C[1] = {7};\nint f(thread int* p) { return *p; }\n"
     "int f(device int* p) { return *p; }\nint f(constant int* p) { return *p; }",
     "int a = i; out[i] = 0; out[i] = f(&a) + f(C) * 10 + f(out + i);", lambda i: i + 70),
    ("forward declarations", "static int f(int x);\nstatic int g(int x) { return f(x) * 2; }\n"
     "static int f(int x) { return x + 1; }", "out[i] = g(i);", lambda i: 2 * i + 2),
    ("fall through", "", "int s = 0; switch (i % 4) { case 0: s += 1; [[fallthrough]];"
     " case 1: s += 10; break; case 2: case 3: s += 100; } out[i] = s;",
     lambda i: [11, 10, 100, 100][i % 4]),
    ("range for", "", "int a[4] = {1, 2, 3, 4}; int s = 0; for (int v : a) s += v;"
     " for (thread int& v : a) v = 0; out[i] = s + a[i % 4];", lambda i: 10),
    ("arrays", "", "array<int, 4> a = {1, 2, 3, 4}; a[i % 4] += i; int s = 0;"
     " for (uint j = 0; j < a.size(); j++) s += a[j]; out[i] = s;", lambda i: 10 + i),
    ("dynamic indexing", "", "float a[32]; for (int j = 0; j < 32; j++) a[j] = j * j; float s = 0;"
     " for (int j = 0; j < 8; j++) s += a[(i * 7 + j * 5) % 32]; out[i] = int(s);",
     lambda i: sum(((i * 7 + j * 5) % 32) ** 2 for j in range(8))),
    ("swizzles", "", "float4 v(1, 2, 3, 4); v.xz = v.zx; v.wy += float2(i); float3 r = v.bgr;"
     " out[i] = int(r.x * 100 + r.y * 10 + r.z + v.w);", lambda i: 127 + 11 * i),
    ("vector elements", "", "float4 v(1, 2, 3, 4); v[i % 4] = float(i);"
     " out[i] = int(v[(i + 1) % 4] + v.x);",
     lambda i: [1, 2, 3, 4][(i + 1) % 4] + (i if i % 4 == 0 else 1)),
    ("integer division", "", "int a = int(i) - 8; out[i] = a / 3 * 100 + a % 3;",
     lambda i: int((i - 8) / 3) * 100 + int(math.fmod(i - 8, 3))),
    ("wide integers", "", "ulong a = 10000000000ull + i; out[i] = int((a * 5ul) >> 8);",
     lambda i: ((10000000000 + i) * 5 >> 8) & 0xFFFFFFFF),
    ("high products", "", "out[i] = int(mulhi(0x80000001u + i, 0xfffffff0u));",
     lambda i: (0x80000001 + i) * 0xFFFFFFF0 >> 32),
    ("literals", "", "out[i] = int(0x1.8p3 + 1e2 + .5 + 1. + 2.5h) + 1'000 + 0b1010;",
     lambda i: 116 + 1010),
    ("layout", "struct S { float3 a; float b; packed_float3 c; half d; char e; ulong f; };",
     "out[i] = sizeof(S) + 100 * sizeof(packed_float3) + 10000 * alignof(float4);",
     lambda i: 48 + 1200 + 160000),
    (
        "a shift by counts of another type, as Halide writes it",
        "",
        "int4 a = int4(i, -5, 3, 1); uint4 n = uint4(1, 2, 33, i); short2 s = short2(-8, i);"
        " int4 b = a << n; b >>= n.yyyy; s = s >> ushort2(2, 1);"
        " out[i] = b.x + 10 * b.y + 100 * b.z + 1000 * s.x + 7 * s.y;",
        lambda i: (i << 1 >> 2) + 10 * (-20 >> 2) + 100 * (6 >> 2) - 2000 + 7 * (i >> 1),
    ),
    (
        "volatile vectors, as SPIRV-Cross writes coherent memory",
        "struct Block { float4 v; int3 w; };",
        "volatile Block b; b.v = float4(i, 2, 3, 4); b.w = int3(i); b.v += float4(1);"
        " float4 v = b.v; volatile int2 q = int2(i, 5); int2 r = q; b.v.x = v.y;"
        " out[i] = int(v.x + v.w + b.v.x) + b.w.z * r.y;",
        lambda i: i + 1 + 5 + 3 + i * 5,
    ),
    (
        "attribute packed on structures of vectors",
        "struct __attribute__((packed)) P { uchar a; float3 b; packed_short3 c; half2x2 m; };",
        "P p; p.b = float3(i, 2, 3); p.b.y += 5; p.c = short3(i); p.m = half2x2(4);"
        " out[i] = 100 * sizeof(P) + int(p.b.x + p.b.y) + p.c.z + int(p.m[1].y);",
        lambda i: 100 * (1 + 16 + 6 + 8) + i + 7 + i + 4,
    ),
    (
        "matrices of columns in braces",
        "constant float2x3 first = {{1, 2, 3}, {4, 5, 6}};"
        " float trace(float3x3 m) { return m[0].x + m[1].y + m[2].z; }",
        "float2x2 a{{1, 2}, {3, 4}}; float4x2 b = {float2(i), {5, 6}, {7, 8}, 9 * float2(1)};"
        " out[i] = int(first[1].z + a[1].x + b[0].y + b[2].y + b[3].x +"
        " trace({{1, 0, 0}, {0, float(i), 0}, {0, 0, 2}}));",
        lambda i: 6 + 3 + i + 8 + 9 + 3 + i,
    ),
    (
        "vectors of values that no integer holds",
        "",
        "float4 v = float4(1e20, -1e20, 300, int(i) - 8); half2 h = half2(-300, 300);"
        " uchar4 u = uchar4(v); char3 c = char3(v.yzw); int2 n = int2(v.xy); ushort2 s ="
        " ushort2(h); out[i] = (u.x == 255) + 2 * (u.y == 0) + 4 * (u.z == 255) + 8 * (c.x =="
        " -128) + 16 * (n.x == INT_MAX) + 32 * (n.y == INT_MIN) + 64 * (s.x == 0) + 1000 * u.w;",
        lambda i: 127 + 1000 * max(i - 8, 0),
    ),
    (
        "lists in braces",
        "int sum(initializer_list<int> l) { int s = l.size(); for (int v : l) s += v; return s; }"
        " struct Columns { int2 c[2]; thread Columns& operator=(initializer_list<int2> l) thread {"
        " int k = 0; for (auto v = l.begin(); v != l.end(); ++v) c[k++] = *v; return *this; }"
        " device Columns& operator=(initializer_list<int2> l) device {"
        " int k = 0; for (auto v = l.begin(); v != l.end(); ++v) c[k++] = *v; return *this; } };",
        "Columns c; c = {int2(i, 1), int2(2, 3)}; int t = 0; for (auto v : {4, 5}) t += v;"
        " out[i] = sum({1, int(i), 3}) + c.c[0].x + 10 * c.c[1].y + t;",
        lambda i: 3 + 1 + i + 3 + i + 30 + 9,
    ),
    (
        "constants made of constants made of constants",
        "struct Pair { int2 a; int b; }; constant int3 first = int3(1, 2, 3);"
        " constant int3 second = int3(first.z, first.x, 0); constant int3 third = second.yxz + first;"
        " constant Pair pair = {third.xy, second.x}; constant int last = pair.a.y * pair.b;",
        "out[i] = last + third.x * int(i);",
        lambda i: 15 + 2 * i,
    ),
    (
        "assignments for each address space",
        "struct Value { int v; void operator=(const thread Value& o) thread { v = o.v; }"
        " void operator=(const device Value& o) thread { v = o.v; }"
        " void operator=(const constant Value& o) thread { v = o.v; }"
        " void operator=(const thread Value& o) device { v = o.v; } }; constant Value five = {5};",
        "device Value* d = (device Value*)out + i; Value a, b; a.v = i; d[0] = a; b = d[0];"
        " a = five; out[i] = a.v + 3 * b.v;",
        lambda i: 5 + 3 * i,
    ),
    (
        "geometric and common functions of fast and precise",
        "",
        "float3 v = fast::normalize(float3(0, i + 1, 0)); out[i] = int(v.y + precise::length("
        "float2(3, 4)) + fast::distance(float2(i), float2(i, i + 2)) + fast::clamp(float(i), 0.0,"
        " 3.0) + precise::mix(0.0, 8.0, 0.5) + precise::saturate(7.0) + 0.5);",
        lambda i: 1 + 5 + 2 + min(i, 3) + 4 + 1 + i - i,
    ),
]  # fmt: skip

COOPERATION_PRELUDE = """
struct S { int n; float v[4]; };
void fill(threadgroup int (&a)[16], uint i) {
  a[i] = i; threadgroup_barrier(mem_flags::mem_threadgroup);
}
void store(threadgroup int a[16], uint i) {
  a[i] = i; threadgroup_barrier(mem_flags::mem_threadgroup);
}
#define MEET threadgroup_barrier(mem_flags::mem_threadgroup)
"""
# statements, the value that is expected of each of 16 threads
COOPERATION: list[tuple[str, Callable[[int], int]]] = [
    ("threadgroup float a[16], b[16]; a[i] = i; b[i] = 2; MEET; out[i] = int(a[15 - i] * b[i]);",
     lambda i: 2 * (15 - i)),
    ("threadgroup float a[4][4]; a[i / 4][i % 4] = i; MEET; out[i] = int(a[i % 4][i / 4]);",
     lambda i: i % 4 * 4 + i // 4),
    ("threadgroup S s; if (i == 0) { s.n = 3; s.v[2] = 4; } MEET; out[i] = int(s.n + s.v[2]);",
     lambda i: 7),
    ("threadgroup float s[32]; threadgroup half* h = (threadgroup half*)s; h[i] = half(i); MEET;"
     " out[i] = int(h[15 - i]);", lambda i: 15 - i),
    ("threadgroup atomic_uint c[4]; if (i < 4) atomic_store_explicit(&c[i], 0, memory_order_relaxed);"
     " MEET; atomic_fetch_add_explicit(&c[i % 4], i, memory_order_relaxed); MEET;"
     " out[i] = atomic_load_explicit(&c[i % 4], memory_order_relaxed);",
     lambda i: sum(range(i % 4, 16, 4))),
    ("threadgroup array<float, 16> a; a[i] = i; MEET; out[i] = int(a[15 - i]);", lambda i: 15 - i),
    ("if (true) { threadgroup int a[16]; a[i] = i; MEET; out[i] = a[i ^ 1]; }", lambda i: i ^ 1),
    ("threadgroup int a[16]; auto put = [&](uint j, int v) { a[j] = v; }; put(i, i); MEET;"
     " out[i] = a[i ^ 3];", lambda i: i ^ 3),
    ("threadgroup int a[16]; fill(a, i); out[i] = a[i ^ 3];", lambda i: i ^ 3),
    ("threadgroup int a[16]; store(a, i); out[i] = a[i ^ 3];", lambda i: i ^ 3),
    ("int v = 0; if (i < 8) v = simd_sum(int(i)); else v = simd_max(int(i)); out[i] = v;",
     lambda i: 28 if i < 8 else 15),
    ("int v = 0; for (uint j = 0; j < i % 3; j++) v += simd_sum(1); out[i] = v;",
     lambda i: (0, 10, 15)[i % 3]),
]  # fmt: skip

NAMES = """
namespace inside { kernel void k(device float* o [[buffer(0)]]) { o[0] = 1; } }
[[host_name("renamed")]] kernel void first(device float* o [[buffer(0)]]) { o[0] = 2; }
kernel [[host_name("after")]] void second(device float* o [[buffer(0)]]) { o[0] = 3; }
[[kernel]] void attribute(device float* o [[buffer(0)]]) { o[0] = 4; }
[[kernel, max_total_threads_per_threadgroup(64)]]
void limited(device float* o [[buffer(0)]]) { o[0] = 5; }
#define MAKE(N, V) kernel void made_##N(device float* o [[buffer(0)]]) { o[0] = V; }
MAKE(a, 6) MAKE(b, 7)
extern "C" kernel void plain_c(device float* o [[buffer(0)]]) { o[0] = 8; }
kernel void empty() {}
kernel void none(void) {}
"""

SHARED_HEADER = """
#include <simd/simd.h>
#ifdef __METAL_VERSION__
#define NS_ENUM(_type, _name) enum _name : _type _name; enum _name : _type
typedef metal::int32_t EnumBackingType;
#endif
typedef NS_ENUM(EnumBackingType, BufferIndex) { IndexOut = 1, IndexRecord };
typedef struct { vector_float4 c; simd_float3 p; matrix_float4x4 m; vector_uint2 s; } Record;
kernel void k(device float* o [[buffer(IndexOut)]], constant Record& u [[buffer(IndexRecord)]],
              uint i [[thread_position_in_grid]]) {
  o[i] = u.c[i] + u.p.x + u.m[i][i] + u.s.y;
}
"""

UNALIGNED = """
kernel void vectors(device char* from [[buffer(0)]], device char* to [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
  device float4* p = (device float4*)(from + 4);
  device float4* q = (device float4*)(to + 8 + 20 * i);
  *q = *p + float4(i);
  threadgroup_barrier(mem_flags::mem_none);
}
kernel void matrices(device char* from [[buffer(0)]], device char* to [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
  float4x4 m = *(device float4x4*)(from + 4);
  for (int c = 0; c < 4; c++) m[c] += float(i);
  *(device float4x4*)(to + 8 + 68 * i) = m;
}
"""

RADIX = """
kernel void digit(device uint* keys, constant uint& shift, uint t [[thread_position_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint group [[simdgroup_index_in_threadgroup]],
                  uint groups [[simdgroups_per_threadgroup]]) {
  threadgroup uint totals[16][32], starts[16], sorted[1024];
  uint key = keys[t], mine = (key >> shift) & 15u, rank = 0;
  for (uint d = 0; d < 16; d++) {
    uint before = simd_prefix_exclusive_sum(mine == d ? 1u : 0u);
    simd_vote vote = simd_ballot(mine == d);
    if (mine == d) rank = before;
    if (lane == 0) totals[d][group] = popcount(uint(static_cast<simd_vote::vote_t>(vote)));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < 16) {
    uint sum = 0;
    for (uint k = 0; k < groups; k++) { uint n = totals[t][k]; totals[t][k] = sum; sum += n; }
    starts[t] = simd_prefix_exclusive_sum(sum);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sorted[starts[mine] + totals[mine][group] + rank] = key;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  keys[t] = sorted[t];
}
"""

BITONIC = """
template <typename T> void exchange(threadgroup T& a, threadgroup T& b, bool up) {
  if ((a > b) == up) { T t = a; a = b; b = t; }
}
template <typename T>
kernel void bitonic(device T* d [[buffer(0)]], uint t [[thread_index_in_threadgroup]],
                    uint n [[threads_per_threadgroup]], uint g [[threadgroup_position_in_grid]]) {
  threadgroup T s[256];
  s[t] = d[g * n + t];
  for (uint k = 2; k <= n; k <<= 1)
    for (uint j = k >> 1; j > 0; j >>= 1) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      uint partner = t ^ j;
      if (partner > t) exchange(s[t], s[partner], (t & k) == 0);
    }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  d[g * n + t] = s[t];
}
template [[host_name("bitonic_float")]] kernel void bitonic<float>(device float*, uint, uint, uint);
#define MAKE(T) template [[host_name("bitonic_" #T)]] [[kernel]] decltype(bitonic<T>) bitonic<T>;
MAKE(half) MAKE(uint) MAKE(short)
"""

SCAN = """
kernel void scan(device float* d, threadgroup float* s [[threadgroup(0)]],
                 ushort t [[thread_index_in_threadgroup]], ushort n [[threads_per_threadgroup]]) {
  int m = 2 * n, offset = 1;
  s[2 * t] = d[2 * t];
  s[2 * t + 1] = d[2 * t + 1];
  for (int k = m >> 1; k > 0; k >>= 1, offset <<= 1) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t < k) s[offset * (2 * t + 2) - 1] += s[offset * (2 * t + 1) - 1];
  }
  if (t == 0) s[m - 1] = 0;
  for (int k = 1; k < m; k <<= 1) {
    offset >>= 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t < k) {
      int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1;
      float x = s[a];
      s[a] = s[b];
      s[b] += x;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  d[2 * t] = s[2 * t];
  d[2 * t + 1] = s[2 * t + 1];
}
"""

FFT = """
struct number {
  float2 v;
  number() = default;
  number(float2 a) : v(a) {}
  friend number operator*(number a, number b) {
    return number(float2(a.v.x * b.v.x - a.v.y * b.v.y, a.v.x * b.v.y + a.v.y * b.v.x));
  }
};
template <uint N> kernel void fft(device float2* d [[buffer(0)]],
                                  uint t [[thread_position_in_threadgroup]]) {
  threadgroup float2 s[N];
  constexpr uint bits = 31 - clz(N);
  s[reverse_bits(2 * t) >> (32 - bits)] = d[2 * t];
  s[reverse_bits(2 * t + 1) >> (32 - bits)] = d[2 * t + 1];
  for (uint length = 1; length < N; length <<= 1) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint k = t & (length - 1), i = ((t - k) << 1) + k;
    float c, angle = -M_PI_F * float(k) / float(length);
    float sine = sincos(angle, c);
    float2 a = s[i], b = (number(float2(c, sine)) * number(s[i + length])).v;
    s[i] = a + b;
    s[i + length] = a - b;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  d[2 * t] = s[2 * t];
  d[2 * t + 1] = s[2 * t + 1];
}
template [[host_name("fft_256")]] kernel void fft<256>(device float2*, uint);
template [[host_name("fft_64")]] kernel void fft<64>(device float2*, uint);
"""

TRANSPOSE = """
template <typename T, int TILE = 32, int PAD = 1>
[[kernel]] void transpose(const device T* in [[buffer(0)]], device T* out [[buffer(1)]],
    constant uint2& d [[buffer(2)]], threadgroup T* s [[threadgroup(0)]],
    uint2 t [[thread_position_in_threadgroup]], uint2 g [[threadgroup_position_in_grid]]) {
  uint x = g.x * TILE + t.x;
  for (uint j = t.y; j < TILE; j += 8) {
    uint y = g.y * TILE + j;
    if (x < d.x && y < d.y) s[j * (TILE + PAD) + t.x] = in[y * d.x + x];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x = g.y * TILE + t.x;
  for (uint j = t.y; j < TILE; j += 8) {
    uint y = g.x * TILE + j;
    if (x < d.y && y < d.x) out[y * d.y + x] = s[t.x * (TILE + PAD) + j];
  }
}
template [[host_name("t")]] [[kernel]] void transpose<ulong, 16>(const device ulong*, device ulong*,
    constant uint2&, threadgroup ulong*, uint2, uint2);
"""

HISTOGRAM = """
kernel void histogram(const device uchar* in [[buffer(0)]], device atomic_uint* out [[buffer(1)]],
    constant uint& n [[buffer(2)]], uint g [[thread_position_in_grid]],
    uint t [[thread_index_in_threadgroup]], uint all [[threads_per_grid]],
    uint width [[threads_per_threadgroup]]) {
  threadgroup atomic_uint h[256];
  for (uint i = t; i < 256; i += width) atomic_store_explicit(&h[i], 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = g; i < n; i += all) atomic_fetch_add_explicit(&h[in[i]], 1, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = t; i < 256; i += width) {
    uint c = atomic_load_explicit(&h[i], memory_order_relaxed);
    atomic_fetch_add_explicit(&out[i], c, memory_order_relaxed);
  }
}
"""

LIFE = """
#define TILE 16
kernel void life(const device uchar* in, device uchar* out, constant int2& dim,
    ushort2 l [[thread_position_in_threadgroup]], uint2 g [[thread_position_in_grid]],
    uint2 tile_at [[threadgroup_position_in_grid]]) {
  threadgroup uchar tile[TILE + 2][TILE + 2];
  for (int y = l.y; y < TILE + 2; y += TILE)
    for (int x = l.x; x < TILE + 2; x += TILE) {
      int gx = (int(tile_at.x) * TILE + x - 1 + dim.x) % dim.x;
      int gy = (int(tile_at.y) * TILE + y - 1 + dim.y) % dim.y;
      tile[y][x] = in[gy * dim.x + gx];
    }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int n = 0;
  for (int dy = 0; dy < 3; dy++)
    for (int dx = 0; dx < 3; dx++)
      if (dx != 1 || dy != 1) n += tile[l.y + dy][l.x + dx];
  out[g.y * dim.x + g.x] = (n == 3 || (n == 2 && tile[l.y + 1][l.x + 1])) ? 1 : 0;
}
"""

BODIES = """
struct Body { packed_float3 pos; float mass; packed_float3 vel; float spare; };
kernel void step(device const Body* in [[buffer(0)]], device Body* out [[buffer(1)]],
    constant uint& n [[buffer(2)]], constant float& dt [[buffer(3)]],
    threadgroup float4* tile [[threadgroup(0)]], uint gid [[thread_position_in_grid]],
    uint lid [[thread_index_in_threadgroup]], uint width [[threads_per_threadgroup]]) {
  float3 pull = 0, me = gid < n ? float3(in[gid].pos) : float3(0.0);
  for (uint base = 0; base < n; base += width) {
    uint j = base + lid;
    tile[lid] = j < n ? float4(in[j].pos, in[j].mass) : float4(0);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < width; ++k) {
      float3 d = tile[k].xyz - me;
      float r = rsqrt(dot(d, d) + 0.01);
      pull += d * (tile[k].w * r * r * r);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (gid >= n) return;
  Body b = in[gid];
  b.vel += pull * dt;
  b.pos = b.pos + b.vel * dt;
  out[gid] = b;
}
"""


def _sha_constants() -> str:
    """The first 32 bits of the fractions of the cube roots of the first 64 primes."""
    primes: list[int] = []
    number = 2
    while len(primes) < 64:
        if all(number % p for p in primes):
            primes.append(number)
        number += 1
    found = []
    for prime in primes:
        low, high = 0, prime << 32  # the root, scaled by 2**32
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**3 <= prime << 96 else (low, middle - 1)
        found.append(f"0x{low & 0xFFFFFFFF:08x}")
    return ", ".join(found)


SHA256 = (
    f"constant uint K[64] = {{{_sha_constants()}}};"
    + """
#define CHOOSE(x, y, z) (((x) & (y)) ^ (~(x) & (z)))
#define MAJORITY(x, y, z) (((x) & (y)) ^ ((x) & (z)) ^ ((y) & (z)))
static inline uint turn(uint x, uint n) { return (x >> n) | (x << (32 - n)); }
struct Params { uint length; uint stride; };
kernel void sha256(device const uchar* messages [[buffer(0)]], device uchar* digests [[buffer(1)]],
                   constant Params& p [[buffer(2)]], uint gid [[thread_position_in_grid]]) {
  uint h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const device uchar* m = messages + gid * p.stride;
  uint total = ((p.length + 8) / 64 + 1) * 64;
  for (uint start = 0; start < total; start += 64) {
    uint w[64];
    for (int i = 0; i < 16; i++) {
      uint v = 0;
      for (int b = 0; b < 4; b++) {
        uint at = start + i * 4 + b;
        uchar c = at < p.length ? m[at] : (at == p.length ? 0x80 : 0);
        if (at >= total - 8) c = uchar((ulong(p.length) * 8) >> (8 * (total - 1 - at)));
        v = (v << 8) | c;
      }
      w[i] = v;
    }
    for (int i = 16; i < 64; i++) {
      uint s0 = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ (w[i - 15] >> 3);
      uint s1 = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint s[8];
    for (int i = 0; i < 8; i++) s[i] = h[i];
    for (int i = 0; i < 64; i++) {
      uint e1 = turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25);
      uint t1 = s[7] + e1 + CHOOSE(s[4], s[5], s[6]) + K[i] + w[i];
      uint e0 = turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22);
      uint t2 = e0 + MAJORITY(s[0], s[1], s[2]);
      for (int k = 7; k > 0; k--) s[k] = s[k - 1];
      s[4] += t1;
      s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
  }
  for (int i = 0; i < 32; i++) digests[gid * 32 + i] = uchar(h[i / 4] >> (24 - 8 * (i % 4)));
}
"""
)

PCG = """
class Generator {
  ulong state, increment;
 public:
  Generator(ulong seed, ulong sequence) : state(0), increment((sequence << 1) | 1) {
    next(); state += seed; next();
  }
  uint next() {
    ulong old = state;
    state = old * 6364136223846793005UL + increment;
    uint x = uint(((old >> 18) ^ old) >> 27), r = uint(old >> 59);
    return (x >> r) | (x << ((-r) & 31));
  }
};
kernel void sample(device atomic_uint& inside [[buffer(0)]], device uint* drawn [[buffer(1)]],
                   uint g [[thread_position_in_grid]]) {
  Generator random(42, g);
  for (int i = 0; i < 50; i++) {
    uint a = random.next(), b = random.next();
    drawn[g * 100 + 2 * i] = a;
    drawn[g * 100 + 2 * i + 1] = b;
    float x = float(a >> 8) * 0x1p-24f, y = float(b >> 8) * 0x1p-24f;
    if (x * x + y * y < 1.0) atomic_fetch_add_explicit(&inside, 1, memory_order_relaxed);
  }
}
"""

ARGUMENTS = """
struct Inner { float scale; int index[3]; };
struct Outer {
  device const float* a [[id(0)]]; device float* b [[id(1)]]; uint n [[id(2)]];
  Inner inner [[id(3)]];
};
kernel void nested(constant Outer& args [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i < args.n) args.b[i] = args.a[i] * args.inner.scale + args.inner.index[2];
}
kernel void pointers(device float* device* rows [[buffer(0)]], constant uint& count [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
  for (uint k = 0; k < count; k++) rows[k][i] = k * 100 + i;
}
struct Row { device float* data; ulong n; };
kernel void ragged(const device Row* rows [[buffer(0)]], uint2 g [[thread_position_in_grid]]) {
  const device Row& r = rows[g.y];
  if (g.x < r.n) r.data[g.x] = g.y + g.x * 0.5;
}
"""

ATOMICS = """
kernel void narrow(device atomic_float* sum [[buffer(0)]], device atomic<float>& low [[buffer(1)]],
    device atomic_uint* most [[buffer(2)]], volatile device atomic_int* count [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(sum, float(i), memory_order_relaxed);
  atomic_fetch_sub_explicit(&low, 1.0f, memory_order_relaxed);
  atomic_fetch_max_explicit(most, as_type<uint>(float(i)), memory_order_relaxed);
  int seen = atomic_load_explicit(count, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(count, &seen, seen + int(i), memory_order_relaxed,
                                                memory_order_relaxed)) {}
  atomic_exchange_explicit(count + 1, 7, memory_order_relaxed);
}
kernel void wide(device atomic_ulong* a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  atomic_max_explicit(a, ulong(i) << 33, memory_order_relaxed);
  atomic_min_explicit(a + 1, ulong(i) + (1ul << 40), memory_order_relaxed);
}
"""

INFINITIES = """
kernel void k(const device float4* a, device float4* o, uint i [[thread_position_in_grid]]) {
  float m = -INFINITY;
  for (int j = 0; j < 4; j++) m = max(m, a[i][j]);
  bool nan = isnan(a[i].x);
  o[i] = float4(nan ? 0 : m, !nan && m == -INFINITY, nan, !nan && isfinite(a[i].x));
}
"""

MATRICES = """
kernel void product(device const half* A, device const half* B, device float* C, constant uint& n,
    uint2 g [[threadgroup_position_in_grid]], uint s [[simdgroup_index_in_threadgroup]]) {
  simdgroup_half8x8 a, b;
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.f);
  uint row = g.y * 16 + (s / 2) * 8, column = g.x * 16 + (s % 2) * 8;
  for (uint k = 0; k < n; k += 8) {
    simdgroup_load(a, A + row * n + k, n);
    simdgroup_load(b, B, n, ulong2(column, k));
    simdgroup_multiply_accumulate(sum, a, b, sum);
  }
  simdgroup_store(sum, C + row * n + column, n);
}
"""
