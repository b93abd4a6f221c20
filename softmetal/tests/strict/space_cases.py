"""Statements that Apple's compiler refuses because of address spaces, each with an accepted twin.

All of them are compiled at once, one kernel a line. `{n}` is the number of a case.
"""

from __future__ import annotations

from typing import NamedTuple

PRELUDE = """#include <metal_stdlib>
using namespace metal;
struct S { float a; int n; float get() const { return a; } void put(float v) { a = v; }
  float anywhere() const thread { return a; } float anywhere() const device { return a; }
  float anywhere() const constant { return a; } float anywhere() const threadgroup { return a; }
  float ours() const device { return a; } float fixed() const constant { return a; }
  float shared() const threadgroup { return a; }
  S operator+(S o) const { return {a + o.a, n}; } operator float() const { return a; } };
struct Links { device float* d; threadgroup float* t; constant float* c; };
float of_thread(thread float* p) { return *p; }
float of_device(device float* p) { return *p; }
float of_constant(constant float* p) { return *p; }
float of_threadgroup(threadgroup float* p) { return *p; }
void set(thread float& v) { v = 1; }
template <typename T> T first(device T* p) { return *p; }
template <typename T> T first_of(threadgroup const T* p) { return *p; }
template <typename P> void through(P p) { *p = 1; }
constant float table[2] = {1, 2};
"""
PARAMETERS = (
    "device float* d [[buffer(0)]], constant float* c [[buffer(1)]], "
    "threadgroup float* t [[threadgroup(0)]], device S* ds [[buffer(2)]], "
    "constant S& cs [[buffer(3)]], threadgroup S* ts [[threadgroup(1)]], "
    "device atomic_uint* da [[buffer(4)]], uint i [[thread_position_in_grid]]"
)
LOCALS = "float v[4] = {}; thread float* p = v; S s = {1, 2}; Links l = {d, t, c};"
SPACES = {"thread": "p", "device": "d", "constant": "c", "threadgroup": "t"}
CONVERSIONS = "MSL 4: a pointer or reference cannot change its address space"
METHODS = "MSL 4: a member function is for objects in the address spaces that it names"
CONSTANT = "MSL 4.2: constant memory is read-only"


class Case(NamedTuple):
    rule: str
    refused: str
    error: str  # in the message
    accepted: str


def _conversions() -> list[Case]:
    cases = []
    for to in SPACES:
        for source, name in SPACES.items():
            if to == source:
                continue
            const = "const " if "constant" in (to, source) else ""
            fits = SPACES[to]
            cases += [
                Case(
                    CONVERSIONS,
                    f"{to} {const}float* q = {name}; d[0] = *q;",
                    "cannot initialize a variable of type",
                    f"{to} {const}float* q = {fits}; d[0] = *q;",
                ),
                Case(
                    CONVERSIONS,
                    f"{to} {const}float& q = {name}[0]; d[0] = q;",
                    "changes address space",
                    f"{to} {const}float& q = {fits}[0]; d[0] = q;",
                ),
                Case(
                    CONVERSIONS,
                    f"d[0] = *({to} {const}float*){name};",
                    "converts between mismatching address spaces",
                    f"d[0] = *({to} {const}float*){fits};",
                ),
                Case(
                    CONVERSIONS,
                    f"d[0] = of_{to}({name});",
                    "no matching function for call to",
                    f"d[0] = of_{to}({fits});",
                ),
            ]
    return cases


_NO_MEMBER = "no matching member function for call to"
CASES = [
    *_conversions(),
    Case(METHODS, "d[0] = ds[i].get();", _NO_MEMBER, "S o = ds[i]; d[0] = o.get();"),
    Case(METHODS, "d[0] = cs.get();", _NO_MEMBER, "S o = cs; d[0] = o.get();"),
    Case(METHODS, "d[0] = ts[0].get();", _NO_MEMBER, "S o = ts[0]; d[0] = o.get();"),
    Case(METHODS, "ds[i].put(1);", _NO_MEMBER, "s.put(1); ds[i] = s;"),
    Case(METHODS, "d[0] = s.ours();", "cannot initialize object parameter", "d[0] = ds[0].ours();"),
    Case(METHODS, "d[0] = cs.ours();", "cannot initialize object parameter", "d[0] = ds[0].ours();"),
    Case(METHODS, "d[0] = s.fixed();", "cannot initialize object parameter", "d[0] = cs.fixed();"),
    Case(METHODS, "d[0] = ds->fixed();", "cannot initialize object parameter", "d[0] = cs.fixed();"),
    Case(METHODS, "d[0] = s.shared();", "cannot initialize object parameter", "d[0] = ts->shared();"),
    Case(METHODS, "d[0] = ds->shared();", "cannot initialize object parameter",
         "d[0] = ts->shared() + s.anywhere() + ds->anywhere() + cs.anywhere() + ts->anywhere();"),
    Case(METHODS, "S o = ds[0] + s;", "no viable overloaded '+'", "S o = s + ds[0];"),
    Case(METHODS, "float f = ds[0];", "no viable conversion", "float f = s;"),
    Case(CONSTANT, "c[0] = 1;", "not assignable", "d[0] = c[0];"),
    Case(CONSTANT, "cs.a = 1;", "cannot assign", "s.a = cs.a; ds[0] = cs;"),
    Case(CONSTANT, "table[0] = 1;", "cannot assign", "d[0] = table[1];"),
    Case(CONSTANT, "set(table[0]);", "no matching function", "set(v[0]);"),
    Case(CONVERSIONS, "l.d = t;", "assigning", "l.d = d; l.t = t; l.c = c; *l.d = *l.c;"),
    Case(CONVERSIONS, "l.t = d;", "assigning", "l.t = t + 1;"),
    Case(CONVERSIONS, "l.c = t;", "assigning", "l.c = table;"),
    Case(CONVERSIONS, "d[0] = first(t);", "no matching function", "d[0] = first(d) + first_of(t);"),
    Case(CONVERSIONS, "d[0] = first_of(d);", "no matching function", "d[0] = first_of(t);"),
    Case(CONVERSIONS, "through<thread float*>(d);", "no matching function",
         "through(d); through(t); through(p); through<device float*>(d);"),
    Case(CONVERSIONS, "device float* q = i ? d : t;", "incompatible operand types",
         "device float* q = i ? d : d + 1; float f = i ? *d : *t; S o = i ? s : ds[0];"),
    Case(CONVERSIONS, "device float4* q = reinterpret_cast<device float4*>(v);", "reinterpret_cast",
         "device float4* q = reinterpret_cast<device float4*>(d); q[0].xy = q[1].zw;"),
    Case(CONVERSIONS, "threadgroup float q[4]; device float* r = q;", "cannot initialize",
         "threadgroup float q[4], e; q[0] = d[0]; e = q[0]; threadgroup float* r = q; d[1] = *r + e;"),
    Case(CONVERSIONS, "set(d[0]);", "no matching function", "float f = d[0]; set(f); d[0] = f;"),
    Case(CONVERSIONS, "modf(1.5f, d[0]);", "no matching function", "float w; d[0] = modf(1.5f, w) + w;"),
    Case(CONVERSIONS, "d = t;", "changes address space of pointer", "d = d + 1; t = t + 1; p = v;"),
    Case(CONVERSIONS, "d[0] = d == t;", "comparison of distinct pointer types", "d[0] = d == d + 1;"),
    Case(CONVERSIONS, "d[0] = d - t;", "non-overlapping address spaces", "d[0] = (d + 1) - d;"),
    Case(CONVERSIONS, "d[0] = *static_cast<device float*>(t);", "static_cast", "d[0] = *static_cast<device float*>(d);"),
    Case(CONVERSIONS, "const_cast<device float*>(c)[0] = 1;", "const_cast", "d[0] = const_cast<constant float*>(c)[0];"),
    Case(CONVERSIONS, "thread auto* q = d;", "has incompatible initializer", "device auto* q = d; thread auto* r = v;"),
    Case("MSL 4: a variable of a function is in thread or threadgroup memory", "device float q = 1;",
         "automatic variable qualified with an address space", "thread float q = 1; d[0] = q;"),
    Case("MSL 4: an argument is in thread memory", "auto f = [](device float q) { return q; };",
         "parameter may not be qualified with an address space", "auto f = [](device float* q) { return *q; }; f(d);"),
    Case("MSL 4: a member is where its object is", "struct T { device float q; };",
         "field may not be qualified with an address space", "struct T { device float* q; }; T o = {d}; *o.q = 1;"),
    Case("MSL 6.15: atomics are in device or threadgroup memory",
         "atomic_uint a; atomic_fetch_add_explicit(&a, 1u, memory_order_relaxed);",
         "no matching function", "atomic_fetch_add_explicit(&da[i], 1u, memory_order_relaxed);"),
    Case("MSL 6.15: the expected value of an exchange is in thread memory",
         "device uint* e = (device uint*)d; atomic_compare_exchange_weak_explicit(da, e, 1u, "
         "memory_order_relaxed, memory_order_relaxed);", "no matching function",
         "uint e = 0; atomic_compare_exchange_weak_explicit(da, &e, 1u, memory_order_relaxed, "
         "memory_order_relaxed);"),
    Case("MSL 6.7: matrices are loaded from device or threadgroup memory",
         "simdgroup_float8x8 m; simdgroup_load(m, v, 8);", "no matching function",
         "simdgroup_float8x8 m; simdgroup_load(m, d, 8); simdgroup_store(m, t, 8);"),
]  # fmt: skip
