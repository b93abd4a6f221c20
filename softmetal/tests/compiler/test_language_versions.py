"""The C++ that versions of Metal's language are based on: 14 up to Metal 3.2, 17 from Metal 4 on."""

from __future__ import annotations

import re

import pytest

import softmetal
from softmetal.compiler import check
from softmetal.errors import CompileError
from softmetal.types import CompileOptions

BEGIN = "#include <metal_stdlib>\nusing namespace metal;\n"
KERNEL = "kernel void k(device float* a [[buffer(0)]], uint i [[thread_position_in_grid]]) { %s }\n"
# What C++14 does not have, and clang's message there; each is valid C++17.
REFUSED = [
    ("template <auto N> float f() { return N; }\n", "a[i] = f<2>();", "'auto' not allowed in template"),
    ("", "array b{1.0f, 2.0f}; a[i] = b[1];", "requires template arguments"),
    ("template <class T> struct pair { T x, y; };\ntemplate <class T> pair(T, T) -> pair<T>;\n",
     "pair p{1.0f, 2.0f}; a[i] = p.x;", "a type specifier is required|deduction guides"),
    ("struct base { float x; };\nstruct derived : base { float y; };\n",
     "derived d{{1.0f}, 2.0f}; a[i] = d.y;", "no matching constructor"),
    ("struct fixed { fixed() = default; fixed(const fixed&) = delete; float x = 2; };\n"
     "fixed make() { return fixed(); }\n", "a[i] = make().x;", "deleted"),
]  # fmt: skip
# What clang and Apple's compiler accept there with a warning.
WARNED = [
    ("template <int N> float f() { if constexpr (N > 1) return 1; else return 2; }\n",
     "a[i] = f<2>();"),
    ("template <class... T> float sum(T... x) { return (x + ...); }\n", "a[i] = sum(1.0f, 2.0f);"),
    ("struct pair { float x, y; };\n", "auto [x, y] = pair{1, 2}; a[i] = x + y;"),
    ("namespace one::two { constant float c = 2; }\n", "a[i] = one::two::c;"),
    ("", "if (float x = a[i]; x > 0) a[i] = x;"),
]  # fmt: skip


def checked(version, before, body):
    return check(BEGIN + before + KERNEL % body, CompileOptions(language_version=version))[1]


@pytest.mark.parametrize(("before", "body", "message"), REFUSED)
def test_what_only_cpp_17_has(before, body, message):
    for version in (310, 320):
        with pytest.raises(CompileError) as found:
            checked(version, before, body)
        assert re.search(message, found.value.diagnostics), found.value.diagnostics
    assert checked(400, before, body) == ""


@pytest.mark.parametrize(("before", "body"), WARNED)
def test_what_older_versions_accept_with_a_warning(before, body):
    warning = r"C\+\+17 extensions?\b[^\n]*\[-Wc\+\+17-extensions\]"
    assert re.search(warning, checked(320, before, body))
    assert checked(400, before, body) == ""


@pytest.mark.parametrize(("version", "cplusplus"), [(240, 201402), (320, 201402), (400, 201703)])
def test_macros(version, cplusplus):
    body = f"static_assert(__cplusplus == {cplusplus} && __METAL_VERSION__ == {version});"
    assert checked(version, "", body.replace(");", ', "version");')) == ""


@pytest.mark.parametrize("version", ["3_1", "3_2", "4_0"])
def test_kernels_of_each_version_run(version):
    """A library's version decides what is accepted, and not what a kernel computes."""
    device = softmetal.MTLCreateSystemDefaultDevice()
    options = softmetal.MTLCompileOptions.alloc().init()
    options.setLanguageVersion_(getattr(softmetal, f"MTLLanguageVersion{version}"))
    source = BEGIN + KERNEL % "a[i] = __METAL_VERSION__ + i;"
    library, _ = device.newLibraryWithSource_options_error_(source, options, None)
    function = library.newFunctionWithName_("k")
    state, _ = device.newComputePipelineStateWithFunction_error_(function, None)
    buffer = device.newBufferWithLength_options_(16, 0)
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(state)
    encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
    encoder.dispatchThreads_threadsPerThreadgroup_((4, 1, 1), (4, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    number = int(version.replace("_", "")) * 10
    found = memoryview(buffer.contents().as_buffer(16)).cast("f").tolist()
    assert found == [number, number + 1, number + 2, number + 3]
