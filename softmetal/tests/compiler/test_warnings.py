"""Warnings are about the user's code: none for programs that are right, one for a mistake."""

from __future__ import annotations

import pytest
from hostile_sources import body

from softmetal import compiler
from softmetal.types import CompileOptions

CLEAN = {
    "division by a function constant": body(
        "x[i] = i / n + i % n; x[i] /= n; x[i] += i / (n * 2);",
        "constant int n [[function_constant(0)]];\n",
    ),
    "switch over a function constant": body(
        "switch (n) { case 3: x[i] = 1; break; case 4: x[i] = 2; break; }",
        "constant int n [[function_constant(0)]];\n",
    ),
    "optional function constant": body(
        "x[i] = m / 2;",
        "constant int n [[function_constant(0)]];\n"
        "constant bool given = is_function_constant_defined(n);\n"
        "constant int m = given ? n : 7;\n",
    ),
    "array designators": body("x[i] = t[1];", "constant int t[] = {[0] = 1, [1] = 2};\n"),
    "unused names": body(
        "int a = 1; x[i] = 1;",
        "int f(int n) { return 1; }\nconstant float g = 1;\nusing T = int;\n",
    ),
    "attributes of Metal": body(
        "x[i] = 1;", "struct V { float4 p [[position]]; uint c [[flat]]; };\n"
    ),
    "pragmas": body(
        "\n#pragma unroll(N)\nfor (int n = 0; n < N; n++) x[n] = 1;\n",
        "#define N 4\n#pragma METAL internals : enable\n#pragma unknown\n#pragma mark - a\n",
    ),
    "address spaces": body(
        "threadgroup float s[64]; simdgroup_float8x8 m; simdgroup_load(m, s, 8);\n"
        "simdgroup_store(m, s, 8); simdgroup_store(m, (device float*)x, 8); f(x); f(&x[i]);",
        "void f(device int* p) { *p = 1; }\n",
    ),
    "braces with other types": body("float4 v = {i, 0, 0, 1.0}; x[i] = v.x;"),
}
MISTAKES = {
    "comparison as a statement": (body("x[i] == 1;"), "-Wunused-comparison"),
    "assignment in a condition": (body("if (x[i] = 1) x[0] = 2;"), "-Wparentheses"),
    "division by zero": (body("x[i] = i / 0;"), "-Wdivision-by-zero"),
    "division by zero beside a function constant": (
        body("x[i] = i % 0 + n;", "constant int n [[function_constant(0)]];\n"),
        "-Wdivision-by-zero",
    ),
    "shift by too much": (body("x[i] = 1 << 40;"), "-Wshift-count-overflow"),
    "missing result": (body("x[i] = f();", "int f() { }\n"), "-Wreturn-type"),
    "value that is not used": (body("x[i] + 1;"), "-Wunused-value"),
}


def warnings_of(source: str) -> str:
    options = CompileOptions()
    return compiler.check(source, options)[1] + compiler.check_address_spaces(source, options)


@pytest.mark.parametrize("name", CLEAN)
def test_clean_programs(name):
    assert warnings_of(CLEAN[name]) == ""


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    source, warning = MISTAKES[name]
    line = warnings_of(source).splitlines()[0]
    assert line.startswith("program_source:")
    assert warning in line
