"""Sources are code: what Metal does not have is refused, and the host is out of reach."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hostile_sources import ATTACKS, HARMLESS, HEAD, HOST_FUNCTIONS, KERNEL, PLAIN

from softmetal import compiler
from softmetal.compiler import host_access, stages
from softmetal.errors import CompileError
from softmetal.toolchain import clang, targets
from softmetal.types import CompileOptions


def attempt(source: str, **options: object) -> str:
    """The first error that a source ends in."""

    def build() -> None:
        program = compiler.compile_library(source, CompileOptions(**options))
        compiler.compile_kernel(program, "k", {})

    with pytest.raises(CompileError) as caught:
        build()
    return next(line for line in caught.value.diagnostics.splitlines() if "error: " in line)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks(name):
    source, message = ATTACKS[name]
    error = attempt(source)
    assert message in error
    assert ": error: " in error or ": fatal error: " in error


@pytest.mark.parametrize("name", HOST_FUNCTIONS)
def test_functions_of_the_host(name):
    source, symbol = HOST_FUNCTIONS[name]
    assert f"undefined symbol: {symbol}" in attempt(source)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_programs_write(name):
    program = compiler.compile_library(HARMLESS[name], CompileOptions())
    for checks in (frozenset(), frozenset({"bounds"})):
        assert compiler.compile_kernel(program, "k", {}, checks).name == "k"


# ---- behind the token pass ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('void f() { __asm__("nop"); }', "inline assembly"),
        ('__asm__(".globl a");', "inline assembly"),
        ("__attribute__((constructor)) void f() { ::g = 1; }", "when a library is loaded"),
        ("__attribute__((destructor)) void f() { ::g = 1; }", "when a library is loaded"),
        ('__attribute__((used, section(".init_array"))) int p = 1;', "'section'"),
        ('extern "C" void r() {} extern "C" int f() __attribute__((ifunc("r"), used));', "ifunc"),
        ("void f() { __builtin_ia32_wrfsbase64(0); }", r"builtin behind 'llvm.x86.wrfsbase.64'"),
        ("void f() { __builtin_ia32_fxsave((void*)&g); }", r"builtin behind 'llvm.x86.fxsave'"),
        (
            "void f() { g = __builtin_readcyclecounter(); }",
            "builtin behind 'llvm.readcyclecounter'",
        ),
        ("void f() { g = *(__attribute__((address_space(257))) int*)0; }", "'address_space'"),
        ("void f() { int a[g + 1]; volatile int* p = a; p[g] = 1; g = p[0]; }", "variable length"),
        ("void f() { static void* p[] = {&&a, &&b}; goto *p[g]; a: g = 1; b: g = 2; }", "computed"),
        ('#include "/etc/hostname"', "file not found"),
        ('#embed "/etc/hostname"', "file not found"),
    ],
)
def test_library_data_is_checked_in_the_compiled_code(text, message):
    """Data that was never through the token pass, as `newLibraryWithData` may be given it."""
    program = compiler.compile_library(PLAIN, CompileOptions())
    forged = replace(program, text=f"static volatile int g;\n{text}\n{program.text}")
    forged = replace(forged, text=forged.text.replace("x[i] = 1", "x[i] = 1, f()", "f()" in text))
    with pytest.raises(CompileError, match=message):
        compiler.compile_kernel(forged, "k", {})


@pytest.mark.parametrize(
    "text",
    [
        '__attribute__((no_sanitize("kernel-address"), noinline)) void f() { g = 1; }',
        "__attribute__((disable_sanitizer_instrumentation, noinline)) void f() { g = 1; }",
        "__attribute__((nodebug, noinline)) void f() { g = 1; }",
    ],
)
def test_functions_that_hide_from_the_checks(text):
    program = compiler.compile_library(PLAIN, CompileOptions())
    forged = f"static volatile int g;\n{text}\n{program.text}".replace("x[i] = 1", "x[i] = 1, f()")
    with pytest.raises(CompileError, match="would hide from the checking modes"):
        compiler.compile_kernel(replace(program, text=forged), "k", {}, frozenset({"bounds"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__attribute__((constructor)) static void f(void) {}", "INIT_ARRAY"),
        ("__attribute__((destructor)) static void f(void) {}", "FINI_ARRAY"),
        ("void _init(void) {}", "INIT"),
        ("void _fini(void) {}", "FINI"),
        ("void exit(int); void softmetal_entry(void) { exit(1); }", "undefined symbol: exit"),
        ("int malloc(int n) { return n; }", "export the symbol malloc"),
    ],
)
def test_objects(text, message, tmp_path):
    target = targets.host()
    flags = [f"--target={target.triple}", "-fPIC", "-x", "c", "-c", "-"]
    clang.run("clang", [*flags, "-o", str(tmp_path / "a.o")], text)
    stages.link([tmp_path / "a.o"], tmp_path / "a.so")
    with pytest.raises(CompileError, match=message):
        host_access.check_object(tmp_path / "a.so")


# ---- folders of the user ----


@pytest.fixture
def folder(tmp_path):
    """Headers in a folder that is given, and one beside it that is not."""
    (tmp_path / "outside.h").write_text("constant int secret = 1;\n")
    given = tmp_path / "given"
    given.mkdir()
    (given / "mine.h").write_text('#include "sub/other.h"\n')
    (given / "sub").mkdir()
    (given / "sub" / "other.h").write_text("constant int number = 7;\n")
    (given / "link.h").symlink_to(tmp_path / "outside.h")
    (given / "up.h").write_text('#include "../outside.h"\n')
    return given


def test_headers_of_the_folders_given(folder, monkeypatch):
    source = HEAD + '#include "mine.h"\n' + KERNEL % "x[i] = number;"
    monkeypatch.chdir(folder)
    for given in (str(folder), ".", f"{folder}/sub/.."):
        program = compiler.compile_library(source, CompileOptions(include_dirs=(given,)))
        assert list(program.functions) == ["k"]
    assert "file not found" in attempt(source)


def test_a_header_in_another_encoding(folder):
    (folder / "old.h").write_bytes(b"// caf\xe9\nconstant int number = 7; // \xe9\n")
    source = '#include "old.h"\n' + KERNEL % "x[i] = number + missing;"
    error = attempt(source, include_dirs=(str(folder),))
    assert error.startswith("program_source:2:")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("link.h", "outside the include folders"),
        ("up.h", "file not found"),
        ("../outside.h", "file not found"),
        ("sub/../../outside.h", "file not found"),
        ("{folder}/../outside.h", "file not found"),
    ],
)
def test_ways_out_of_the_folders(name, message, folder):
    source = f'#include "{name}"\n'.replace("{folder}", str(folder)) + PLAIN
    assert message in attempt(source, include_dirs=(str(folder),))


def test_errors_show_no_lines_of_other_files(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the secret line\n")
    with pytest.raises(CompileError) as caught:
        compiler.compile_library(
            f'#line 1 "{secret}"\nint f() {{ return nope; }}', CompileOptions()
        )
    assert "nope" in caught.value.diagnostics
    assert "the secret line" not in caught.value.diagnostics
