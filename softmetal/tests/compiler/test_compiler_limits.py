"""Sources that take too much time, memory or depth end in an error that names the limit."""

from __future__ import annotations

import signal

import pytest
from hostile_sources import HEAD, KERNEL, PLAIN, body

from softmetal import compiler
from softmetal.errors import CompileError, SettingError
from softmetal.toolchain import clang
from softmetal.types import MAX_SOURCE, CompileOptions

POWERS = "".join(f"#define L{n + 1} L{n} L{n} L{n} L{n}\n" for n in range(20))
TIME = r"clang was stopped after 2 s: set SOFTMETAL_COMPILER_TIMEOUT"
NESTED = "brackets nest more than 256 deep"
CRASHED = r"clang crashed \(\w+ \d+\)"
WIDE = (
    "template <int N, int M> struct B { B<N - 1, 2 * M> a; B<N - 1, 2 * M + 1> b; };\n"
    "template <int M> struct B<0, M> {};\n"
)
BOMBS = {
    "macro": ("#define L0 x[i]++;\n" + POWERS + KERNEL % "L20", TIME),
    "macro of a moderate size": ("#define L0 x[i]++;\n" + POWERS + KERNEL % "L10", "expands to"),
    "macro in a condition": ("#define L0 1+\n" + POWERS + "#if L20 1\n#endif\n" + PLAIN, TIME),
    "macro of arguments": (
        "#define F(a) a a a a a a a a\n" + KERNEL % ("F(" * 12 + "x[i]++;" + ")" * 12), TIME),
    "wide templates": (body("x[i] = sizeof(B<40, 0>);", WIDE), TIME),
    "deep templates": (
        body("x[i] = A<0>::v;", "template <int N> struct A { enum { v = A<N + 1>::v }; };\n"),
        "recursive template instantiation exceeded maximum depth",
    ),
    "constexpr loop": (
        body("x[i] = n;", "constexpr int f() { int n = 0; for (;;) n ^= 1; return n; }\n"
             "constexpr constant int n = f();\n"),
        "constexpr evaluation hit maximum step limit",
    ),
    "constexpr recursion": (
        body("x[i] = n;", "constexpr int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
             "constexpr constant int n = f(60);\n"),
        "constexpr evaluation hit maximum step limit",
    ),
    "long source": (HEAD + "//" + "x" * MAX_SOURCE + "\n" + PLAIN, "characters: at most"),
    "parentheses": (body("x[i] = " + "(" * 50_000 + "1" + ")" * 50_000 + ";"), NESTED),
    "braces": (body("{" * 50_000 + "}" * 50_000), NESTED),
    "brackets": (body("x" + "[i" * 50_000 + "]" * 50_000 + " = 1;"), NESTED),
    "namespaces": ("namespace a {" * 50_000 + "}" * 50_000, NESTED),
    "open angles": ("void f(" + "a<" * 50_000 + ");", "too many '<'"),
    "operators": (body("x[i] = " + "!" * 100_000 + "x[0];"), CRASHED),
    "crash": ("#pragma clang __debug crash\n" + PLAIN, CRASHED),
    "failure": ("#pragma clang __debug llvm_fatal_error\n" + PLAIN, CRASHED),
    "large array": (body("x[i] = t[x[0]];", "constant int t[1 << 28] = {1, 2};\n"), "256 MiB"),
    "larger array": (body("x[i] = t[x[0]];", "constant char t[1ul << 40] = {1};\n"), "256 MiB"),
    "shift": ("kernel void k(device int* x [[buffer(1 << 99999999999)]]) {}", "not an integer"),
    "long sum": (f"kernel void k(device int* x [[buffer({'1+' * 9999}1)]]) {{}}", "not an integer"),
    "many signs": (f"kernel void k(device int* x [[buffer({'-' * 9999}1)]]) {{}}", "not an integ"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name, tmp_path, monkeypatch):
    compiler.compile_library(PLAIN, CompileOptions())  # the precompiled header has no such limit
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    source, message = BOMBS[name]
    if message is TIME:  # the other limits are reached when they are, however busy the machine is
        monkeypatch.setenv("SOFTMETAL_COMPILER_TIMEOUT", "2")

    def build():
        program = compiler.compile_library(source, CompileOptions())
        compiler.compile_kernel(program, "k", {})

    with pytest.raises(CompileError, match=message) as caught:
        build()
    assert len(str(caught.value)) < 100_000
    assert not list(tmp_path.iterdir())


def test_memory(monkeypatch):
    compiler.compile_library(PLAIN, CompileOptions())
    monkeypatch.setattr(clang, "MEMORY_BYTES", 600 << 20)
    with pytest.raises(CompileError, match="needs more than 600 MiB of memory"):
        compiler.compile_library(body("x[i] = sizeof(B<40, 0>);", WIDE), CompileOptions())


def test_the_limit_of_time_can_be_set(monkeypatch, tmp_path):
    source = f"// {tmp_path}\n{PLAIN}"  # which no cache has
    monkeypatch.setenv("SOFTMETAL_COMPILER_TIMEOUT", "soon")
    with pytest.raises(SettingError, match="SOFTMETAL_COMPILER_TIMEOUT='soon' is not a number"):
        compiler.compile_library(source, CompileOptions())
    monkeypatch.setenv("SOFTMETAL_COMPILER_TIMEOUT", "0")
    program = compiler.compile_library(source, CompileOptions())
    assert list(program.functions) == ["k"]


def test_a_compiler_that_ends_before_its_input_does_not_end_the_program():
    """Native programs have Python leave SIGPIPE as it is."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        with pytest.raises(CompileError, match="nonexistent"):
            clang.run("clang", ["--nonexistent", "-x", "c", "-E", "-"], "int x;\n" * 1_000_000)
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert signal.SIGPIPE not in signal.sigpending()
