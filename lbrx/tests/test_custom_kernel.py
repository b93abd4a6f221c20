"""Custom kernels: how arguments are matched and converted, and errors."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest
from op_oracle import sample

import lbrx
from lbrx.arrays import dtype as dt

pytestmark = pytest.mark.usefixtures("metal_default")

SAXPY = """kernel void saxpy(device const float* x [[buffer(0)]], device const float* y [[buffer(1)]],
                  constant float& alpha [[buffer(2)]], device float* out [[buffer(3)]],
                  uint i [[thread_position_in_grid]]) {
  out[i] = alpha * x[i] + y[i];
}
"""


@pytest.fixture
def saxpy():
    return lbrx.kernel(SAXPY)


def test_arguments_by_position_and_by_name(saxpy, rng):
    x, y = rng.standard_normal((2, 1000)).astype(np.float32)
    a, b = lbrx.tensor(x), lbrx.tensor(y)
    before = lbrx.metal.stats()["kernels"].get("saxpy", 0)
    expected = np.float32(2) * x + y
    for result in (
        saxpy(a, b, 2.0),
        saxpy(a, b, alpha=2),
        saxpy(alpha=np.float32(2), y=b, x=a),
        saxpy(a, y, lbrx.tensor(2.0)),
        saxpy(a, y.tolist(), [2.0]),
        saxpy(x, y, 2.0),
        saxpy(a, b, lbrx.tensor(2.0, device="cpu"), grid=1000, group=64),
        saxpy(a, b, 2.0, grid=(1000, 1, 1), group=(128, 1, 1), shapes=[1000], dtypes=["float32"]),
    ):
        assert (result.device, result.dtype, result.shape) == ("metal", lbrx.float32, (1000,))
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)
    assert lbrx.metal.stats()["kernels"]["saxpy"] == before + 8
    assert repr(saxpy) == "<lbrx.kernel saxpy>"


@pytest.mark.parametrize(
    "view",
    [lambda x: x[::-1], lambda x: x[:, ::2], lambda x: x.T, lambda x: x[3:4], lambda x: x[:0]],
)
def test_views_are_made_contiguous_and_keep_their_shape(saxpy, view, rng):
    x = sample(rng, (6, 8), dt.float32)
    a = view(lbrx.tensor(x))
    result = saxpy(a, a, 3.0)
    np.testing.assert_array_equal(result.numpy(), 4 * view(x))
    assert result.is_contiguous


def test_contiguous_false_passes_the_memory_of_a_view(rng):
    k = lbrx.kernel(
        """kernel void transpose(device const float* x, constant int2& strides, device float* out,
             uint2 at [[thread_position_in_grid]], uint2 size [[threads_per_grid]]) {
             out[at.y * size.x + at.x] = x[int(at.y) * strides.x + int(at.x) * strides.y]; }""",
        contiguous=False,
    )
    x = sample(rng, (6, 8), dt.float32)
    view = lbrx.tensor(x)[1:, ::2].T
    result = k(view, view.array.layout.strides, grid=(5, 4))
    np.testing.assert_array_equal(result.numpy(), x[1:, ::2].T)


FEW = (dt.bool_, dt.uint64, dt.bfloat16)
TYPES = [pytest.param(d, marks=[] if d in FEW else pytest.mark.full) for d in dt.ALL if d.msl]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_template_of_every_dtype(dtype, rng):
    k = lbrx.kernel(
        """kernel void scaled(device const T* x, constant T& by, device T* out,
             uint i [[thread_position_in_grid]]) { out[i] = FLAG ? T(x[i] * by + T(N)) : T(0); }"""
    )
    x = sample(rng, (33,), dtype, 0, 3)
    result = k(lbrx.tensor(x), 1, template={"T": dtype, "N": 0, "FLAG": True})
    assert result.dtype is dtype
    np.testing.assert_array_equal(result.numpy(), x)


def test_numbers_in_a_template():
    k = lbrx.kernel("kernel void k(device float* out) { out[0] = FLAG ? WIDTH * SCALE : BIG % 7; }")
    values = {"WIDTH": 4, "SCALE": 0.5, "BIG": 2**40}
    assert k(shapes=[1], template=values | {"FLAG": True}).item() == 2
    assert k(shapes=[1], template=values | {"FLAG": False}).item() == 2**40 % 7


def test_constants_have_the_declared_type():
    k = lbrx.kernel(
        """struct Pair { int a; float b; };
           kernel void spread(constant uchar& small, constant long& large, constant half2& two,
                              constant float3& three, constant int* list, constant bool& flag,
                              constant Pair& pair, device float* out) {
             out[0] = small; out[1] = large / 1000000000l; out[2] = two.y; out[3] = three.z;
             out[4] = list[2]; out[5] = flag; out[6] = pair.a + pair.b; }"""
    )
    pair = struct.pack("if", 3, 0.25)
    out = k(255, 7 * 10**9, (1, 2.5), [1, 2, 3.5], range(5), True, pair, shapes=(7,), grid=1)
    assert out.tolist() == [255, 7, 2.5, 3.5, 2, 1, 3.25]
    long_list = list(range(5000))
    out = k(1, 0, (0, 0), (0, 0, 0), long_list, False, pair, shapes=(7,), grid=1)
    assert out.tolist() == [1, 0, 0, 0, 2, 0, 3.25]


def test_initial_content_of_outputs():
    k = lbrx.kernel(
        """kernel void count(device const uchar* x, device atomic_int* bins,
             uint i [[thread_position_in_grid]]) {
             atomic_fetch_add_explicit(&bins[x[i]], 1, memory_order_relaxed); }"""
    )
    x = lbrx.tensor(np.uint8([1, 2, 2, 5, 2]))
    assert k(x, bins=0, shapes=(8,), grid=5).tolist() == [0, 1, 3, 0, 0, 1, 0, 0]
    start = lbrx.arange(8, dtype="int32")
    same = start.copy()
    assert k(x, bins=start, grid=5).tolist() == [0, 2, 5, 3, 4, 6, 6, 7]
    assert start.tolist() == same.tolist() == list(range(8))
    with pytest.raises(lbrx.ShapeError, match=r"bins cannot start with \(8,\)"):
        k(x, bins=start, shapes=[3], grid=5)


def test_several_outputs_in_the_order_asked_for(rng):
    source = """kernel void halves(device const float* x, device float* whole, device int* part,
                  uint i [[thread_position_in_grid]]) {
                  whole[i] = floor(x[i]); part[i] = int(100 * (x[i] - floor(x[i]))); }"""
    x = lbrx.tensor([1.25, -0.5])
    whole, part = lbrx.kernel(source)(x)
    assert (whole.tolist(), part.tolist(), part.dtype) == ([1, -1], [25, 50], lbrx.int32)
    part, whole = lbrx.kernel(source, outputs=["part", "whole"])(x, shapes=[(2,), (1, 2)])
    assert (whole.tolist(), part.tolist()) == ([[1, -1]], [25, 50])


def test_threadgroup_memory_and_groups(rng):
    k = lbrx.kernel(
        """kernel void reverse(device const float* x, device float* out, threadgroup float* shared,
             uint i [[thread_position_in_grid]], uint lane [[thread_position_in_threadgroup]],
             uint size [[threads_per_threadgroup]]) {
             shared[lane] = x[i];
             threadgroup_barrier(mem_flags::mem_threadgroup);
             out[i] = shared[size - 1 - lane]; }"""
    )
    x = sample(rng, (4, 50), dt.float32)
    result = k(lbrx.tensor(x), shared=4 * 50, group=50)
    np.testing.assert_array_equal(result.numpy(), x[:, ::-1])
    with pytest.raises(lbrx.ShapeError, match="shared is threadgroup memory: give its length in b"):
        k(lbrx.tensor(x), shared=0.5, group=50)


def test_headers_of_the_package_and_names_of_kernels():
    source = """#include <metal_stdlib>
#include "elementwise.h"
kernel void one(device float* out, uint i [[thread_position_in_grid]]) { out[i] = op::erf(2.0f); }
kernel void two(device float* out, uint i [[thread_position_in_grid]]) { out[i] = 2; }
"""
    assert lbrx.kernel(source, "one")(shapes=[1]).item() == pytest.approx(0.9953223)
    assert lbrx.kernel(source, "two")(shapes=[1]).item() == 2
    with pytest.raises(lbrx.DeviceError, match="the source has the kernels one, two: give the"):
        lbrx.kernel(source)
    with pytest.raises(lbrx.DeviceError, match=r"no kernel three in three\.metal: it has one, two"):
        lbrx.kernel(source, "three")(shapes=[1])


def test_a_template_that_is_not_instantiated():
    source = "template <typename T> kernel void f(device T* out) { out[0] = T(1); }"
    with pytest.raises(lbrx.DeviceError, match=r"no kernel f in f\.metal: it has none: a template"):
        lbrx.kernel(source)(shapes=[1])


def test_compile_errors_have_the_lines_of_the_source():
    source = 'int f() { return 1; }\n#include "elementwise.h"\nkernel void k(device int* x) {\n  x = y;\n}'
    with pytest.raises(lbrx.DeviceError, match=r"k\.metal:4:7: error: use of undeclared .*'y'"):
        lbrx.kernel(source)(shapes=[1], template={"T": lbrx.float32, "N": 3})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda k, x: k(x, x, 2.0, x), TypeError, r"saxpy> takes \(x, y, alpha\), not 4 values"),
        (lambda k, x: k(x, alpha=2.0), TypeError, "takes .*: give y too"),
        (lambda k, x: k(x, x, 2.0, x=x), TypeError, "x was given twice"),
        (lambda k, x: k(x, x, 2.0, beta=1), TypeError, "no argument beta: it has x, y, alpha, out"),
        (lambda k, x: k(x, x, "two"), lbrx.DtypeError, "alpha is float: give numbers or a tensor"),
        (
            lambda k, x: k(x, x, b"ab"),
            lbrx.ShapeError,
            r"alpha \(float\) was given 2 bytes: give 4",
        ),
        (lambda k, x: k(x, x, []), lbrx.DtypeError, "alpha is float: give numbers"),
        (
            lambda k, x: k(x, x.astype("float16"), 1),
            lbrx.DtypeError,
            r"y is declared as float, but was given float16\[4\]: cast it with astype\('float32'\)",
        ),
        (
            lambda k, x: k(x, x.to_device("cpu"), 1),
            lbrx.DeviceError,
            r"y is on 'cpu', float32\[4\]: move it with to_device\('metal'\)",
        ),
        (lambda k, x: k(x, x, 1, grid=0), lbrx.ShapeError, r"grid of \(0, 1, 1\) has no threads"),
        (lambda k, x: k(x, x, 1, grid=(1, 2, 3, 4)), lbrx.ShapeError, "give one to three sizes"),
        (lambda k, x: k(x, x, 1, grid=-1), lbrx.ShapeError, "give one to three sizes"),
        (lambda k, x: k(x, x, 1, grid=2.5), lbrx.ShapeError, r"grid=2\.5: give one to three sizes"),
        (lambda k, x: k(x, x, 1, group="a"), lbrx.ShapeError, "group='a': give one to three"),
        (lambda k, x: lbrx.kernel(b"k"), TypeError, "the source is bytes: give it as a string"),
        (lambda k, x: k(x, x, 1, group=0), lbrx.ShapeError, "has no threads"),
        (lambda k, x: k(x, x, 1, group=4096), lbrx.DeviceError, "4096 threads exceeds 1024"),
        (lambda k, x: k(x, x, 1, shapes=[(4,), (4,)]), lbrx.ShapeError, "1 outputs, not 2: give"),
        (lambda k, x: k([1.0], [1.0], 1), lbrx.ShapeError, "no input that gives out a shape: give"),
        (
            lambda k, x: k(x, x, 1, dtypes="int32"),
            lbrx.DtypeError,
            "declares out as float, not int32: change one",
        ),
    ],
)
def test_wrong_calls(saxpy, call, error, message):
    with pytest.raises(error, match=message):
        call(saxpy, lbrx.ones(4))


@pytest.mark.parametrize(
    ("source", "options", "call", "error", "message"),
    [
        ("int f();", {}, {}, lbrx.DeviceError, "no `kernel void` function: give the name"),
        (
            "kernel void k(device const int* x) {}",
            {},
            {"x": 1},
            lbrx.DeviceError,
            "no output: declare",
        ),
        (
            "kernel void k(device int* x) {}",
            {"outputs": ["y"]},
            {},
            lbrx.DeviceError,
            "declares the outputs x, not y: name all",
        ),
        (
            "kernel void k(constant uchar& n, device int* x) {}",
            {},
            {"n": 256},
            lbrx.DtypeError,
            r"256 does not fit uint8 \(0 to 255\)",
        ),
        (
            "kernel void k(constant int& n, device int* x) {}",
            {},
            {"n": 1.5},
            lbrx.DtypeError,
            "n is int, but was given 1.5: give integers",
        ),
        (
            "kernel void k(constant float3& n, device int* x) {}",
            {},
            {"n": [1, 2]},
            lbrx.ShapeError,
            "n is float3: give 3 numbers, not 2",
        ),
        (
            "struct S { int a; };\nkernel void k(constant S& n, device int* x) {}",
            {},
            {"n": 2},
            lbrx.DtypeError,
            "n is a struct of 4 bytes: give it as bytes",
        ),
        (
            "kernel void k(device T* x) {}",
            {},
            {"template": {"T": lbrx.float64}},
            lbrx.DtypeError,
            "T=float64 is not a type of Metal: give",
        ),
    ],
)
def test_wrong_kernels(source, options, call, error, message):
    with pytest.raises(error, match=message):
        lbrx.kernel(source, **options)(shapes=[1], **call)


@pytest.mark.skipif(sys.platform == "darwin", reason="Apple's Metal has no checking modes")
def test_checking_modes_find_errors_in_custom_kernels():
    import softmetal

    wrong = lbrx.kernel(
        """kernel void beyond(device const float* x, device float* out,
             uint i [[thread_position_in_grid]]) { out[i] = x[i + 1]; }"""
    )
    with softmetal.checking("bounds"):
        result = wrong(lbrx.ones(64))
        with pytest.raises(lbrx.DeviceError, match=r"kernel beyond failed.*x"):
            result.numpy()
    with softmetal.checking("bounds", "race"):
        assert lbrx.kernel(SAXPY)(lbrx.ones(3), lbrx.ones(3), 2.0).tolist() == [3, 3, 3]


def test_a_compiled_function_replays_kernels_with_its_arguments(saxpy, rng):
    """Kernels read inputs, views and results of other operations; floats and shapes change."""
    weight = lbrx.tensor(sample(rng, (5,), dt.float32))
    constant = saxpy(weight, weight, 1.0).numpy()

    @lbrx.compile
    def compiled(x, alpha):
        plain = saxpy(x[0], weight, alpha)
        turned = saxpy(x.T[::-1], x.T * 2, alpha=3)
        return plain.exp(), saxpy(turned, [0.0] * 20, 2.0), saxpy(weight, weight, 1.0)

    for alpha in (2.0, -0.5, 2.0):
        x = sample(rng, (4, 5), dt.float32)
        first, second, third = compiled(lbrx.tensor(x), alpha)
        np.testing.assert_allclose(first.numpy(), np.exp(alpha * x[0] + weight.numpy()), rtol=1e-5)
        np.testing.assert_allclose(second.numpy(), 2 * (3 * x.T[::-1] + 2 * x.T), rtol=1e-5)
        np.testing.assert_array_equal(third.numpy(), constant)
    assert sum(map(len, compiled._traces.values())) == 1
    x = sample(rng, (2, 5), dt.float32)
    with pytest.raises(lbrx.DtypeError, match="y is declared as float, but was given int32"):
        lbrx.compile(lambda x: saxpy(x, x.astype("int32"), 1.0))(lbrx.tensor(x))


def test_compiled_kernels_with_initial_content_structs_and_integers():
    count = lbrx.kernel(
        """struct Step { int first; float scale; };
           kernel void count(device const uchar* x, constant Step& step, constant int& more,
             device atomic_int* bins, device float* scaled, uint i [[thread_position_in_grid]]) {
             atomic_fetch_add_explicit(&bins[x[i] + step.first], more, memory_order_relaxed);
             scaled[i] = x[i] * step.scale; }"""
    )
    step = struct.pack("if", 1, 0.5)

    @lbrx.compile
    def compiled(x, start, more):
        shapes = [(4,), x.shape]
        bins, scaled = count(x, step, more, bins=start + 1, shapes=shapes, grid=x.size)
        zeros, _ = count(x, step, int(more), bins=0, shapes=shapes, grid=x.size)
        return bins, scaled, zeros

    for values, start, more in (([0, 2, 2], [0, 0, 0, 5], 1), ([1, 1, 0], [9, 0, 0, 0], 2)):
        given = lbrx.tensor(np.uint8(values)), lbrx.tensor(np.int32(start)), more
        wanted = np.bincount(np.array(values) + 1, minlength=4) * more
        bins, scaled, zeros = compiled(*given)
        assert bins.tolist() == (wanted + start + 1).tolist()
        assert (scaled.tolist(), zeros.tolist()) == ([v / 2 for v in values], wanted.tolist())


def test_the_neural_engine_refuses_custom_kernels(saxpy):
    pytest.importorskip("coremltools")
    function = lbrx.compile(lambda x: saxpy(x, x, 2.0), unit="neural-engine")
    with pytest.raises(lbrx.TraceError, match="custom_kernel: the Neural Engine runs no Metal"):
        function(lbrx.ones(3))
