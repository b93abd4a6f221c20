"""Damaged sources and library data: each gives a library or an NSError, and nothing else happens."""

from __future__ import annotations

import json
import random
import zlib

import pytest
from hostile_sources import ATTACKS, HARMLESS, PLAIN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softmetal import compiler
from softmetal.compiler.serialization import _VERSION, MAGIC
from softmetal.types import CompileOptions

SEEDS = [*HARMLESS.values(), *(source for source, _ in ATTACKS.values())]
# Pieces of text that have a meaning to the preprocessor, the token pass or clang.
PIECES = [
    *("\n# ", '"', "'", "\\", "\\\n", "#", "##", "%:", "<:", "[[", "]]", "(", ")", "{", "}", "<"),
    *(">", ";", ",", '#line 1 "a\\"b"\n', '#line 9 "/dev/zero"\n', "\n# 1 2 3\n", '\n# 4 "x', "\0"),
    *("\ud800", "\udfff", "\r", "\f", "\u2028", "é", "1'", 'R"(', ')"', 'R"a(\n# 3 "x" 3\n)a"'),
    *("/*", "*/", "//", "__VA_ARGS__", "_Pragma(", "asm", "template <", "kernel ", "constant "),
    *("threadgroup ", "device ", "[[buffer(", "[[function_constant(0)]]", "1e", "0x", "9" * 5000),
    *("#include <metal_stdlib>\n", "#define k \n", "static ", "operator", "namespace a {", "\x1a"),
]


def short(examples: int):
    return settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )


@st.composite
def damaged_sources(draw) -> str:
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(text)))
        end = at + draw(st.integers(0, 12))
        piece = draw(st.sampled_from(PIECES) | st.text(max_size=3))
        match draw(st.sampled_from(["insert", "replace", "cut", "copy"])):
            case "insert":
                text = text[:at] + piece + text[at:]
            case "replace":
                text = text[:at] + piece + text[end:]
            case "cut":
                text = text[:at]
            case "copy":
                text = text[:at] + text[at:end] * 3 + text[end:]
    return text


def use(device, library, error) -> None:
    """Make every pipeline of a library, if there is one."""
    assert (library is None) == (error is not None)
    for name in library.functionNames() if library is not None else ():
        function = library.newFunctionWithName_(name)
        pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
        assert (pipeline is None) == (error is not None)


@pytest.mark.parametrize("examples", [40, pytest.param(3_000, marks=pytest.mark.full)])
def test_sources(examples, device):
    @short(examples)
    @given(damaged_sources())
    def run(source):
        use(device, *device.newLibraryWithSource_options_error_(source, None, None))

    run()


# ---- library data ----

SOURCE = f"constant int n [[function_constant(0)]];\n{PLAIN}"


def fields_of(source: str) -> dict:
    data = compiler.program_to_bytes(compiler.compile_library(source, CompileOptions()))
    return json.loads(zlib.decompress(data[len(MAGIC + _VERSION) :]))


def packed(fields: object) -> bytes:
    return packed_text(json.dumps(fields))


def packed_text(text: str) -> bytes:
    return MAGIC + _VERSION + zlib.compress(text.encode(errors="surrogatepass"))


OTHER = [None, True, 0, -1, 2**70, 1.5, "", "x", "\0", "\ud800", [], [1], ["a"], [["a", 1]], {}]


def changed(value: object, source: random.Random) -> object:
    """A JSON value with some of its parts replaced, at any depth, also within JSON in text."""
    if source.random() < 0.1:
        return source.choice(OTHER)
    if isinstance(value, dict):
        pairs = [(k, changed(v, source)) for k, v in value.items() if source.random() < 0.97]
        return dict(pairs) | ({"more": 1} if source.random() < 0.03 else {})
    if isinstance(value, list):
        return [changed(item, source) for item in value]
    if isinstance(value, str) and value.startswith("{"):
        return json.dumps(changed(json.loads(value), source))
    return value


@pytest.mark.parametrize("examples", [100, pytest.param(20_000, marks=pytest.mark.full)])
def test_library_data(examples, device):
    fields = fields_of(SOURCE)

    @short(examples)
    @given(st.integers(0, 2**32))
    def run(seed):
        data = packed(changed(fields, random.Random(seed)))
        use(device, *device.newLibraryWithData_error_(data, None))

    run()


DEEP = 100_000
PROGRAM_TEXT = '{"text": "", "source": "", "options": %s, "functions": %s, "constants": %s}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        MAGIC + _VERSION,
        MAGIC + _VERSION + b"\0" * 40,
        packed_text("[" * DEEP + "]" * DEEP),
        packed_text('{"text": ' * DEEP + "1" + "}" * DEEP),
        packed_text(PROGRAM_TEXT % ("{}", "[" * DEEP + "]" * DEEP, "[]")),
        packed_text('{"text": 1' + "0" * 5000 + "}"),
        packed_text('"\ud800"'),
        MAGIC + _VERSION + zlib.compress(b" " * (300 << 20), 9),
        *(packed(value) for value in OTHER),
    ],
    ids=lambda data: f"{len(data)} bytes",
)
def test_library_data_that_is_refused(data, device):
    library, error = device.newLibraryWithData_error_(data, None)
    assert library is None
    assert "not a library that softmetal can load" in str(error)


def test_a_kernel_whose_description_nests_too_deeply(device):
    fields = fields_of(SOURCE)
    fields["functions"]["k"] = "[" * DEEP + "]" * DEEP
    library, error = device.newLibraryWithData_error_(packed(fields), None)
    assert error is None
    function = library.newFunctionWithName_("k")
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    assert pipeline is None
    assert "kernel 'k' is damaged in the library: its values nest too deeply" in str(error)


@pytest.mark.parametrize(
    ("source", "place", "message"),
    [
        ("\n  int \ud800;", "program_source:2:7", "a lone surrogate"),
        ("int a;\0", "program_source:1:7", "a NUL character"),
    ],
)
def test_sources_that_are_not_text(source, place, message, device):
    library, error = device.newLibraryWithSource_options_error_(source, None, None)
    assert library is None
    assert f"{place}: error: {message}" in str(error)


@pytest.mark.parametrize(
    ("macros", "message"),
    [
        ({"A": "\0"}, "a NUL character"),
        ({"\ud800": "1"}, "a lone surrogate"),
        ({"A": "1" * 200_000}, "more than 30,000 characters"),
        ({"A(": "1"}, "error: "),
        ({"A": '1\n#include "/etc/hostname"'}, ""),
        ({"A": "k) asm("}, "error: "),
    ],
)
def test_macros(macros, message, device, metal):
    options = metal.MTLCompileOptions.new()
    options.setPreprocessorMacros_(macros)
    source = PLAIN + "constant int a = sizeof(A);\n"
    library, error = device.newLibraryWithSource_options_error_(source, options, None)
    if message:
        assert library is None
        assert message in str(error)
    else:
        use(device, library, error)
