"""SOFTMETAL_CHECK=bounds knows where each tensor ends, however its kernel was dispatched."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

import lbrx
from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.registry import RUNNERS, Call
from lbrx.metal import binding, context
from lbrx.ops import TABLE, OpFamily, rules
from lbrx.ops.table import op
from lbrx.scheduler.graph_plan import KNOWN
from lbrx.tensors import Tensor
from lbrx.tensors.placement import get

if sys.platform == "darwin":
    pytest.skip("Apple's Metal has no checking modes", allow_module_level=True)
import softmetal

SIZES = (3, 64, 100, 1000, 5000)  # 64 fills a block of the pool
BLUR = """
#include <metal_stdlib>
kernel void blur(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                 constant uint& last [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  out[i] = (x[i] + x[metal::min(i + 1, last)]) / 2; }
"""
blur = lbrx.kernel(BLUR, inputs=["x", "last"])


def fresh(n):
    return lbrx.ones(n, device="metal")


TENSORS: dict[str, Callable[[int], Tensor]] = {
    "fresh": fresh,
    "the beginning of a tensor": lambda n: fresh(n + 100)[:n],
    "a slice": lambda n: fresh(n + 100)[50 : 50 + n],
    "a reshaped slice": lambda n: fresh(2 * n + 100)[7 : 7 + 2 * n].reshape(2, n)[0],
    "a row": lambda n: fresh(4 * n).reshape(4, n)[2],
    "pending": lambda n: fresh(n) * 2 + 1,
    "a view of a pending one": lambda n: (fresh(n + 9) * 2)[9:],
    "strided, copied": lambda n: fresh(3 * n)[::3],
    "numpy's memory": lambda n: lbrx.from_numpy(np.ones((1 << 16) + n, np.float32)[:n], "metal"),
}


def found(compute: Callable[[], Tensor]) -> str:
    """What `bounds` says of a result, if anything."""
    try:
        compute().numpy()
    except lbrx.DeviceError as error:
        return str(error)
    return ""


def assert_found_only_beyond(n: int, run: Callable[[int], str]) -> None:
    """`run(last)` gives the finding of a blur whose last thread reads the element `last`."""
    with softmetal.checking("bounds"):
        assert run(n - 1) == ""
        assert f"reads 4 bytes beyond buffer 0 'x': element {n} of {n} float" in run(n)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", TENSORS)
def test_the_end_of_a_tensor(kind, n):
    assert_found_only_beyond(n, lambda last: found(lambda: blur(TENSORS[kind](n), last)))


def test_memory_that_is_passed_as_it_is_ends_with_the_last_element():
    strided = lbrx.kernel(
        """kernel void strided(device const float* x, constant uint& past, device float* out,
             uint i [[thread_position_in_grid]]) { out[i] = x[3 * i + past]; }""",
        contiguous=False,
    )
    x = lbrx.arange(1000, dtype="float32", device="metal")[10:310:3]
    with softmetal.checking("bounds"):
        assert strided(x, 0).tolist() == list(range(10, 310, 3))
        error = found(lambda: strided(x, 1))
        assert "beyond buffer 0 'x': element 298 of 298 float (byte 1192 of 1192)" in error


@pytest.mark.parametrize("n", SIZES)
def test_the_start_of_a_view(n):
    back = lbrx.kernel(
        """kernel void back(device const float* x, device float* out,
             uint i [[thread_position_in_grid]]) { out[i] = x[int(i) - 1]; }"""
    )
    with softmetal.checking("bounds"):
        error = found(lambda: back(fresh(n + 100)[50 : 50 + n]))
    assert f"before buffer 0 'x': element -1 of {n} float" in error


@pytest.mark.parametrize("n", SIZES)
def test_the_end_of_a_result(n):
    beyond = lbrx.kernel(
        """kernel void beyond(device const float* x, constant uint& past, device float* out,
             uint i [[thread_position_in_grid]]) { out[i + past] = x[i]; }"""
    )
    for start in ({}, {"out": 0.0}, {"out": fresh(n)}):
        with softmetal.checking("bounds"):
            assert found(lambda s=start: beyond(fresh(n), 0, **s)) == ""
            error = found(lambda s=start: beyond(fresh(n), 1, **s))
        assert f"writes 4 bytes beyond buffer 2 'out': element {n} of {n} float" in error


@pytest.mark.parametrize("kernels", [1, 12])  # encoded one by one, and as an indirect list
@pytest.mark.parametrize("n", SIZES)
def test_a_replay(n, kernels):
    """Of inputs and of results in the replay's arena, which have another one behind them."""

    def function(x, last):
        for _ in range(kernels):
            x = blur(blur(x * 2, n - 1), int(last))
        return x

    def run(last):
        compiled = lbrx.compile(lambda x: function(x, last))
        errors = [found(lambda: compiled(fresh(n + 8)[8:])) for _ in range(3)]
        assert len(set(map(bool, errors))) == 1, errors
        return errors[-1]

    assert_found_only_beyond(n, run)


@pytest.mark.parametrize("n", SIZES)
def test_a_list_that_was_recorded_without_checks(n):
    for last in (n - 1, n):
        compiled = lbrx.compile(lambda x, last=last: blur(blur(x + 1, n - 1), last))
        for _ in range(3):
            compiled(fresh(n)).numpy()
        with softmetal.checking("bounds"):
            assert bool(found(lambda c=compiled: c(fresh(n)))) is (last == n)


@pytest.fixture
def blurred():
    """An operation of a family, with the fault of `blur` where its attribute says so."""

    def same_shape(shapes, attributes):
        return shapes[0]

    @op(OpFamily.CUSTOM, same_shape, rules.same)
    def blurred(x, *, last: int):
        """Half of each element and its right neighbour."""
        return x

    def run(call: Call):
        (x,) = call.inputs
        b, n = call.builder, x.layout.size
        out = b.result(call.outputs[0])
        pipeline = b.pipeline("blur", "blur", source=BLUR)
        arguments = [buffer_of(x), buffer_of(out), call.attributes["last"].to_bytes(4, "little")]
        b.launch(pipeline, arguments, (n, 1, 1), (32, 1, 1))
        return (out,)

    RUNNERS["blurred"] = run

    def made(x, last):
        (array,) = get("metal").run(TABLE["blurred"], [x.array], {"last": last})
        return Tensor(array)

    yield made
    del RUNNERS["blurred"], TABLE["blurred"]


@pytest.mark.parametrize("n", SIZES)
def test_a_graph_that_is_planned_once(blurred, n):
    def graph(last):
        return blurred((fresh(n + 5)[5:] * 2).cumsum(axis=0), last).exp()

    before = len(KNOWN)
    for last in (n - 1, n):
        for _ in range(4):
            graph(last).numpy()
    assert len(KNOWN) > before
    assert_found_only_beyond(n, lambda last: found(lambda: graph(last)))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["pool", "host", "heap", "slice", "upload"])
def test_buffers_of_the_metal_backend(kind, n):
    gpu, size = context(), 4 * n
    makers = {
        "pool": lambda: gpu.buffer(size),
        "host": lambda: gpu.host_buffer(size),
        "heap": lambda: gpu.heap_buffer(size, "tests"),
        "slice": lambda: gpu.buffer(size + 512).slice(256, size),
        "upload": lambda: gpu.upload(np.ones(n, np.float32)),
    }

    def run(last):
        x, out = makers[kind](), gpu.heap_buffer(size, "tests")
        pipeline = gpu.shaders.pipeline("blur", "blur", source=BLUR)
        given = [x, out, last.to_bytes(4, "little")]
        gpu.queue.dispatch(pipeline, given, (n, 1, 1), (32, 1, 1))
        try:
            gpu.queue.wait()
        except lbrx.DeviceError as error:
            return str(error)
        return ""

    assert_found_only_beyond(n, run)


def test_nothing_is_declared_without_checks(monkeypatch):
    def refuse(*given):
        raise AssertionError(given)

    monkeypatch.setattr(binding, "_declare_extent", refuse)
    assert blur(fresh(10), 9).tolist() == [1.0] * 10
    assert (fresh(10) @ fresh(10)).item() == 10
    assert binding.spacing() == 0
