"""Whole kernels in the style of textbooks and samples, against numpy."""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import program_sources as sources
import pytest
from groups import Metal, device, queue
from seeds import generator

from softmetal import compiler
from softmetal.errors import CompileError
from softmetal.types import CompileOptions

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
Size = tuple[int, ...]


def library(source: str) -> Any:
    options = Metal.MTLCompileOptions.alloc().init()
    made, error = device().newLibraryWithSource_options_error_(HEAD + source, options, None)
    assert made is not None, error.localizedDescription()
    return made


def pipeline(made: Any, name: str) -> Any:
    function = made.newFunctionWithName_(name)
    assert function is not None, (name, made.functionNames())
    state, error = device().newComputePipelineStateWithFunction_error_(function, None)
    assert state is not None, error.localizedDescription()
    return state


def buffer(array: np.ndarray) -> Any:
    return device().newBufferWithBytes_length_options_(array.tobytes(), array.nbytes, 0)


def contents(bound: Any, like: np.ndarray) -> np.ndarray:
    raw = np.frombuffer(bound.contents().as_buffer(like.nbytes), like.dtype)
    return raw.reshape(like.shape)


def run(
    state: Any,
    arguments: Sequence[Any],
    grid: Size,
    group: Size,
    scratch: int = 0,
    resident: Sequence[Any] = (),
) -> None:
    """Dispatch over a grid; arrays are buffers in and out, bytes and numpy scalars constants."""
    commands = queue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(state)
    encoder.useResources_count_usage_(resident, len(resident), Metal.MTLResourceUsageWrite)
    bound = []
    for index, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            bound.append((argument, buffer(argument)))
            encoder.setBuffer_offset_atIndex_(bound[-1][1], 0, index)
        else:
            data = argument if isinstance(argument, bytes) else argument.tobytes()
            encoder.setBytes_length_atIndex_(data, len(data), index)
    if scratch:
        encoder.setThreadgroupMemoryLength_atIndex_(scratch, 0)
    encoder.dispatchThreads_threadsPerThreadgroup_(
        Metal.MTLSizeMake(*(*grid, 1, 1)[:3]), Metal.MTLSizeMake(*(*group, 1, 1)[:3])
    )
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None, commands.error().localizedDescription()
    for array, memory in bound:
        array[...] = contents(memory, array)


def rng(seed: int = 0) -> np.random.Generator:
    return generator(seed)


# ---- the language -------------------------------------------------------------------------------


def test_language() -> None:
    """Each case in a separate namespace, all in one kernel."""
    text, calls = "", ""
    for index, (_, prelude, body, _) in enumerate(sources.LANGUAGE):
        text += f"namespace case_{index} {{\n{prelude}\n"
        text += f"void run(device int* out, uint i) {{ {body} }}\n}}\n"
        calls += f"  case_{index}::run(out + {16 * index}, i);\n"
    text += f"kernel void k(device int* out, uint i [[thread_position_in_grid]]) {{\n{calls}}}\n"
    out = np.zeros((len(sources.LANGUAGE), 16), np.int32)
    run(pipeline(library(text), "k"), [out], (16,), (16,))
    for row, (name, _, _, want) in zip(out, sources.LANGUAGE, strict=True):
        expected = np.array([want(i) for i in range(16)], np.int64).astype(np.int32)
        np.testing.assert_array_equal(row, expected, err_msg=name)


OVERLOADED = """
template <typename T> struct Two { device T* x; };
template <typename T, int N> kernel void scale(device T* x, uint i [[thread_position_in_grid]]) {
  x[i] *= T(N);
}
template <typename T, int N> kernel void scale(device T* x, constant T& by,
                                               uint i [[thread_position_in_grid]]) {
  x[i] = x[i] * by + T(N);
}
template <typename T, int N> kernel void scale(device vec<T, 2>* x, constant vec<T, 2>& by,
                                               uint i [[thread_position_in_grid]]) {
  x[i] -= by;
}
template <typename T> kernel void scale(device T* x, uint i [[thread_position_in_grid]],
                                        uint n [[threads_per_grid]]) {
  x[i] = T(n);
}
template [[host_name("one")]] [[kernel]] decltype(scale<float>) scale<float>;
template [[host_name("plain")]] kernel void scale<float, 3>(device float* x, uint i);
template [[host_name("by")]] kernel void scale<float, 3>(device float*, constant float&, uint);
template [[host_name("by2")]] kernel void scale<float, 3>(
    device vec<float, 2>* x [[buffer(0)]], constant vec<float, 2>& by [[buffer(1)]],
    uint i [[thread_position_in_grid]]);
"""


@pytest.mark.parametrize(
    ("name", "more", "want"),
    [
        ("plain", [], [0, 3, 6, 9]),
        ("one", [], [4, 4, 4, 4]),
        ("by", [np.float32(5)], [3, 8, 13, 18]),
        ("by2", [np.float32([1, 5]).tobytes()], [-1, -4, 1, -2]),
    ],
)
def test_overloaded_kernel_templates(name: str, more: list[Any], want: list[float]) -> None:
    """An instantiation means the template whose parameters it repeats."""
    x = np.arange(4, dtype=np.float32)
    run(pipeline(library(OVERLOADED), name), [x, *more], (2 if name == "by2" else 4,), (2,))
    np.testing.assert_array_equal(x, want)


STAGES = """
struct Corner { float4 place [[position]]; float2 uv; };
vertex Corner corner(uint v [[vertex_id]], device const float4* places [[buffer(0)]]) {
  return {places[v], places[v].xy};
}
template <typename T> vertex Corner any(uint v [[vertex_id]], device const T* places) {
  return {places[v], 0};
}
template [[host_name("any4")]] vertex Corner any<float4>(uint v [[vertex_id]],
                                                         device const float4* places);
constexpr sampler nearest(filter::nearest, address::repeat);
static float4 look(texture2d<float> image, sampler how, float2 at) { return image.sample(how, at); }
fragment float4 paint(Corner in [[stage_in]], texture2d<float> image [[texture(0)]]) {
  constexpr sampler nearby(filter::linear);
  return look(image, nearby, in.uv) + look(image, nearest, in.uv);
}
[[mesh]] void grow(uint i [[thread_index_in_threadgroup]]) { threadgroup int t[4]; t[i] = 1; }
[[visible]] int twice(int x) { return 2 * x; }
[[stitchable]] int more(int x) { return x + 1; }
kernel void k(device int* object, device int* mesh, uint vertex_id [[thread_position_in_grid]]) {
  object[vertex_id] = twice(mesh[vertex_id]) + more(3);
}
"""


WARNED = [
    *(("vertex functions", 5), ("vertex functions", 8), ("textures and samplers", 13)),
    *(("textures and samplers", 14), ("fragment functions", 15), ("mesh functions", 19)),
]


def test_kernels_beside_other_stages() -> None:
    """The kernels of a library that also renders; the warnings name what is left out."""
    made = library(STAGES)
    assert made.functionNames() == ["k"]
    out, given = np.zeros(3, np.int32), np.int32([4, 5, 6])
    run(pipeline(made, "k"), [out, given], (3,), (3,))
    np.testing.assert_array_equal(out, [12, 14, 16])
    _, warnings = compiler.check(HEAD + STAGES, CompileOptions(strict=True))
    for what, line in WARNED:
        assert re.search(rf":{line}:\d+: warning: {what} are not supported", warnings)


def test_a_kernel_that_reaches_a_texture_is_refused() -> None:
    source = STAGES + "float4 both(float2 p);\nkernel void t(texture2d<float> x [[texture(0)]]) {}"
    with pytest.raises(CompileError, match="error: textures are not supported by softmetal"):
        compiler.check(HEAD + source, CompileOptions())
    source = STAGES + "constant int n = 3;\nkernel void t(device float* x) { look(n, 1, x[0]); }"
    with pytest.raises(CompileError, match="error: textures are not supported by softmetal"):
        compiler.check(HEAD + source, CompileOptions())


@pytest.mark.parametrize("strict", [False, True])
def test_library_of_other_stages_alone_is_refused(strict: bool) -> None:
    source = HEAD + STAGES.partition("kernel void k")[0]
    with pytest.raises(CompileError, match=r":5:1: error: vertex functions are not supported"):
        compiler.check(source, CompileOptions(strict=strict))


def test_cooperation() -> None:
    """Threadgroup variables in all their forms, each in a separate kernel."""
    text = sources.COOPERATION_PRELUDE + "".join(
        f"kernel void k{n}(device int* out, uint i [[thread_position_in_grid]]) {{ {body} }}\n"
        for n, (body, _) in enumerate(sources.COOPERATION)
    )
    made = library(text)
    for n, (body, want) in enumerate(sources.COOPERATION):
        out = np.zeros(16, np.int32)
        run(pipeline(made, f"k{n}"), [out], (16,), (16,))
        np.testing.assert_array_equal(out, [want(i) for i in range(16)], err_msg=body)


def test_names() -> None:
    made = library(sources.NAMES)
    wanted = {"inside::k": 1, "renamed": 2, "after": 3, "attribute": 4, "limited": 5, "made_a": 6,
              "made_b": 7, "plain_c": 8, "empty": 0, "none": 0}  # fmt: skip
    assert set(made.functionNames()) == set(wanted)
    for name, value in wanted.items():
        out = np.zeros(1, np.float32)
        run(pipeline(made, name), [out], (1,), (1,))
        assert out[0] == value, name
    assert pipeline(made, "limited").maxTotalThreadsPerThreadgroup() == 64


def test_headers_shared_with_the_host() -> None:
    out, record = np.zeros(4, np.float32), np.zeros(28, np.float32)
    record[:5] = [1, 2, 3, 4, 10]
    record[8:24] = np.arange(16)
    record.view(np.uint32)[25] = 7
    unused = np.zeros(4, np.float32)
    run(pipeline(library(sources.SHARED_HEADER), "k"), [unused, out, record], (4,), (4,))
    np.testing.assert_array_equal(out, np.arange(1, 5) + 10 + np.arange(4) * 5 + 7)


def test_vectors_at_any_multiple_of_their_element() -> None:
    """GPUs allow it and llama.cpp's matrix product relies on it."""
    if device().architecture().name().startswith("sm_"):
        pytest.skip("NVIDIA's GPUs do not allow it: a fault, which ends the use of the GPU")
    made = library(sources.UNALIGNED)
    values = np.arange(64, dtype=np.float32)
    for name, stride, count in [("vectors", 5, 4), ("matrices", 17, 16)]:
        out = np.zeros(64, np.float32)
        run(pipeline(made, name), [values, out], (3,), (3,))
        for i in range(3):
            start = 2 + i * stride
            np.testing.assert_array_equal(out[start : start + count], values[1 : 1 + count] + i)


# ---- threads ------------------------------------------------------------------------------------

VECTORS = (
    "thread_position_in_grid threads_per_grid threadgroups_per_grid "
    "dispatch_threads_per_threadgroup thread_position_in_threadgroup "
    "threadgroup_position_in_grid threads_per_threadgroup"
).split()
SCALARS = (
    "thread_index_in_threadgroup thread_index_in_simdgroup simdgroup_index_in_threadgroup "
    "simdgroups_per_threadgroup dispatch_simdgroups_per_threadgroup thread_index_in_quadgroup "
    "quadgroup_index_in_threadgroup quadgroups_per_threadgroup "
    "dispatch_quadgroups_per_threadgroup threads_per_simdgroup"
).split()


def attributes_of(thread: Size, grid: Size, group: Size) -> list[int]:
    """The attributes above of one thread, by their definitions."""
    place = [t // g for t, g in zip(thread, group, strict=True)]
    local = [t % g for t, g in zip(thread, group, strict=True)]
    size = [min(g, n - p * g) for g, n, p in zip(group, grid, place, strict=True)]
    index = (local[2] * size[1] + local[1]) * size[0] + local[0]
    here, whole = int(np.prod(size)), int(np.prod(group))
    groups = [-(-n // g) for n, g in zip(grid, group, strict=True)]
    return [
        *thread, *grid, *groups, *group, *local, *place, *size, index, index % 32, index // 32,
        -(-here // 32), -(-whole // 32), index % 4, index // 4, -(-here // 4), -(-whole // 4), 32,
    ]  # fmt: skip


@pytest.mark.parametrize("scalar", ["uint", "ushort"])
@pytest.mark.parametrize("barrier", ["", "threadgroup_barrier(mem_flags::mem_none);"])
def test_attributes_on_every_thread(scalar: str, barrier: str) -> None:
    width = 3 * len(VECTORS) + len(SCALARS)
    parameters = [f"{scalar}3 v{n} [[{name}]]" for n, name in enumerate(VECTORS)]
    parameters += [f"{scalar} s{n} [[{name}]]" for n, name in enumerate(SCALARS)]
    stores = [f"o[{3 * n + c}] = v{n}[{c}];" for n in range(len(VECTORS)) for c in range(3)]
    stores += [f"o[{3 * len(VECTORS) + n}] = s{n};" for n in range(len(SCALARS))]
    state = pipeline(
        library(
            f"kernel void k(device uint* out, {', '.join(parameters)}) {{ {barrier}\n"
            f"device uint* o = out + {width} * ((v0.z * v1.y + v0.y) * v1.x + v0.x);\n"
            f"{' '.join(stores)} }}"
        ),
        "k",
    )
    shapes = [((7, 5, 3), (4, 2, 2)), ((33, 2, 1), (32, 1, 1)), ((1, 1, 1), (4, 4, 4)),
              ((50, 3, 1), (48, 2, 1))]  # fmt: skip
    for grid, group in shapes:
        out = np.zeros((*grid[::-1], width), np.uint32)
        run(state, [out], grid, group)
        for thread in itertools.product(*map(range, grid)):
            assert list(out[thread[::-1]]) == attributes_of(thread, grid, group), (thread, grid)


def test_radix_sort_by_ballots() -> None:
    keys = rng().integers(0, 2**32, 1024, dtype=np.uint32)
    want = np.sort(keys)
    state = pipeline(library(sources.RADIX), "digit")
    for shift in range(0, 32, 4):
        run(state, [keys, np.uint32(shift)], (1024,), (1024,))
    np.testing.assert_array_equal(keys, want)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float", np.float32), ("uint", np.uint32), ("half", np.float16), ("short", np.int16)],
)
def test_bitonic_sort(name: str, dtype: type) -> None:
    values = rng(1).integers(0, 2**15, (3, 128)).astype(dtype)
    want = np.sort(values, axis=1)
    run(pipeline(library(sources.BITONIC), f"bitonic_{name}"), [values], (384,), (128,))
    np.testing.assert_array_equal(values, want)


def test_blelloch_scan() -> None:
    values = rng(2).integers(0, 9, 256).astype(np.float32)
    want = np.cumsum(values) - values
    run(pipeline(library(sources.SCAN), "scan"), [values], (128,), (128,), scratch=1024)
    np.testing.assert_array_equal(values, want)


def test_fft() -> None:
    made = library(sources.FFT)
    for n in (64, 256):
        signal = rng(n).standard_normal((n, 2)).astype(np.float32)
        want = np.fft.fft(signal[:, 0].astype(float) + 1j * signal[:, 1])
        run(pipeline(made, f"fft_{n}"), [signal], (n // 2,), (n // 2,))
        np.testing.assert_allclose(signal[:, 0] + 1j * signal[:, 1], want, atol=1e-4)


def test_transpose() -> None:
    values = rng(3).integers(0, 1000, (45, 70)).astype(np.uint64)
    out = np.zeros((70, 45), np.uint64)
    arguments = [values, out, struct.pack("2I", 70, 45)]
    run(pipeline(library(sources.TRANSPOSE), "t"), arguments, (80, 24), (16, 8), 16 * 17 * 8)
    np.testing.assert_array_equal(out, values.T)


def test_histogram() -> None:
    values = rng(4).integers(0, 256, 10007).astype(np.uint8)
    counts = np.zeros(256, np.uint32)
    arguments = [values, counts, np.uint32(values.size)]
    run(pipeline(library(sources.HISTOGRAM), "histogram"), arguments, (500,), (64,))
    np.testing.assert_array_equal(counts, np.bincount(values, minlength=256))


def test_life() -> None:
    cells = rng(5).integers(0, 2, (32, 48)).astype(np.uint8)
    out = np.zeros_like(cells)
    arguments = [cells, out, struct.pack("2i", 48, 32)]
    run(pipeline(library(sources.LIFE), "life"), arguments, (48, 32), (16, 16))
    around = sum(np.roll(cells, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1) if x or y)
    np.testing.assert_array_equal(out, (around == 3) | ((around == 2) & (cells == 1)))


def test_bodies() -> None:
    n, step = 50, 0.01
    bodies = rng(6).standard_normal((n, 8)).astype(np.float32)
    bodies[:, 3] = abs(bodies[:, 3])
    out = np.zeros_like(bodies)
    arguments = [bodies, out, np.uint32(n), np.float32(step)]
    run(pipeline(library(sources.BODIES), "step"), arguments, (64,), (32,), scratch=32 * 16)
    x = bodies[:, :3].astype(float)
    apart = x[None] - x[:, None]
    pull = bodies[None, :, 3] * ((apart**2).sum(-1) + 0.01) ** -1.5
    speed = bodies[:, 4:7] + (apart * pull[..., None]).sum(1) * step
    np.testing.assert_allclose(out[:, 4:7], speed, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out[:, :3], x + speed * step, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(out[:, [3, 7]], bodies[:, [3, 7]])


# ---- integers, addresses, atomics ---------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 3, 55, 56, 119])
def test_sha256(length: int) -> None:
    messages = rng(length).integers(0, 256, (9, 128)).astype(np.uint8)
    digests = np.zeros((9, 32), np.uint8)
    state = pipeline(library(sources.SHA256), "sha256")
    run(state, [messages, digests, struct.pack("II", length, 128)], (9,), (8,))
    for message, digest in zip(messages, digests, strict=True):
        assert digest.tobytes() == hashlib.sha256(message[:length].tobytes()).digest()


def pcg(seed: int, sequence: int, count: int) -> list[int]:
    mask, state, numbers = 2**64 - 1, 0, []
    increment = (sequence << 1) | 1
    for turn in range(count + 2):
        old, state = state, (state * 6364136223846793005 + increment) & mask
        if turn == 0:
            state = (state + seed) & mask
        word, rotate = ((old >> 18 ^ old) >> 27) & 0xFFFFFFFF, old >> 59
        numbers.append((word >> rotate | word << (-rotate & 31)) & 0xFFFFFFFF)
    return numbers[2:]


def test_pcg_monte_carlo() -> None:
    inside, drawn = np.zeros(1, np.uint32), np.zeros((20, 100), np.uint32)
    run(pipeline(library(sources.PCG), "sample"), [inside, drawn], (20,), (16,))
    np.testing.assert_array_equal(drawn, [pcg(42, i, 100) for i in range(20)])
    points = (drawn >> 8).reshape(-1, 2) * 2.0**-24
    assert inside[0] == ((points**2).sum(1) < 1).sum()


def test_argument_buffers() -> None:
    made, n = library(sources.ARGUMENTS), 20
    a = np.arange(n, dtype=np.float32)
    source, target = buffer(a), buffer(a * 0)
    record = struct.pack("<QQIfiii4x", source.gpuAddress(), target.gpuAddress(), n, 2.0, 1, 2, 3)
    run(pipeline(made, "nested"), [record], (32,), (32,), resident=[source, target])
    np.testing.assert_array_equal(contents(target, a), a * 2 + 3)
    rows = [buffer(a * 0) for _ in range(3)]
    addresses = np.array([row.gpuAddress() for row in rows], np.uint64)
    run(pipeline(made, "pointers"), [addresses, np.uint32(3)], (n,), (8,), resident=rows)
    for k, row in enumerate(rows):
        np.testing.assert_array_equal(contents(row, a), 100 * k + a)
    table = np.stack([addresses, np.array([5, 6, 7], np.uint64)], axis=1)
    run(pipeline(made, "ragged"), [np.ascontiguousarray(table)], (n, 3), (8, 1), resident=rows)
    for k, row in enumerate(rows):
        want = np.where(a < 5 + k, k + a / 2, 100 * k + a)
        np.testing.assert_array_equal(contents(row, a), want)


def test_atomics() -> None:
    made = library(sources.ATOMICS)
    total, falling = np.zeros(1, np.float32), np.zeros(1, np.float32)
    largest, count = np.zeros(1, np.uint32), np.zeros(2, np.int32)
    run(pipeline(made, "narrow"), [total, falling, largest, count], (1000,), (100,))
    assert (total[0], falling[0]) == (499500, -1000)
    assert largest.view(np.float32)[0] == 999
    assert list(count) == [499500, 7]
    wide = np.array([0, 2**63], np.uint64)
    run(pipeline(made, "wide"), [wide], (1000,), (100,))
    assert [int(n) for n in wide] == [999 << 33, 1 << 40]


@pytest.mark.parametrize("fast", [True, False])
def test_infinities_and_nan_survive(fast: bool) -> None:
    options = Metal.MTLCompileOptions.alloc().init()
    options.setFastMathEnabled_(fast)
    source = HEAD + sources.INFINITIES
    made, error = device().newLibraryWithSource_options_error_(source, options, None)
    assert made is not None, error
    values = np.array([[-np.inf] * 4, [1, 2, np.inf, 0], [np.nan] * 4], np.float32)
    out = np.zeros((3, 4), np.float32)
    run(pipeline(made, "k"), [values, out], (3,), (3,))
    np.testing.assert_array_equal(out, [[-np.inf, 1, 0, 0], [np.inf, 0, 0, 1], [0, 0, 1, 0]])


def test_simdgroup_matrices_of_half_into_float() -> None:
    n = 32
    a, b = (rng(s).standard_normal((n, n)).astype(np.float16) for s in (7, 8))
    out = np.zeros((n, n), np.float32)
    state = pipeline(library(sources.MATRICES), "product")
    run(state, [a, b, out, np.uint32(n)], (256, 2), (128, 1))
    np.testing.assert_allclose(out, a.astype(float) @ b, rtol=1e-3, atol=1e-3)


def test_large_tables_and_deep_calls() -> None:
    table = rng(9).integers(0, 2**31, 5000)
    text = f"constant int table[5000] = {{{', '.join(map(str, table))}}};\nint f0(int x) {{ return x + 1; }}\n"
    text += "".join(f"int f{n}(int x) {{ return f{n - 1}(x) + 1; }}\n" for n in range(1, 200))
    text += "kernel void k(device int* o, uint i [[thread_position_in_grid]])"
    text += " { o[i] = table[i] ^ f199(i); }"
    out = np.zeros(5000, np.int32)
    run(pipeline(library(text), "k"), [out], (5000,), (256,))
    np.testing.assert_array_equal(out, table ^ (np.arange(5000) + 200))
