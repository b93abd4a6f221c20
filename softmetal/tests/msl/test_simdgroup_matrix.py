"""simdgroup_matrix: lane layout, load and store, products, in every element type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from groups import Library, Refused
from numpy.typing import NDArray
from seeds import generator

HEAD = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"
TYPES = {"float": np.float32, "half": np.float16, "bfloat": ml_dtypes.bfloat16}
EPS = {"float": 2.0**-21, "half": 2.0**-11, "bfloat": 2.0**-8}

Array = NDArray[Any]


def place(lane: int, element: int) -> tuple[int, int]:
    """(row, column) of an element that a lane holds on Apple GPUs."""
    bit = [lane >> k & 1 for k in range(5)]
    return 4 * bit[4] + 2 * bit[2] + bit[1], 4 * bit[3] + 2 * bit[0] + element


def matrices(msl_type: str, count: int, shape: tuple[int, int] = (8, 8)) -> Array:
    values = generator(7).uniform(-1, 1, (count, *shape))
    return values.astype(TYPES[msl_type])


@pytest.mark.metal
@pytest.mark.parametrize("msl_type", TYPES)
def test_thread_elements_are_in_apples_layout(msl_type: str) -> None:
    text = f"""{HEAD}
kernel void layout(device {msl_type}* out [[buffer(0)]], device {msl_type}* read [[buffer(1)]],
                   uint lane [[thread_index_in_simdgroup]]) {{
  simdgroup_{msl_type}8x8 m;
  m.thread_elements()[0] = 2 * lane;
  m.thread_elements()[1] = 2 * lane + 1;
  simdgroup_store(m, out);
  simdgroup_matrix<{msl_type}, 8, 8> n;
  simdgroup_load(n, read);
  auto held = n.thread_elements();
  reinterpret_cast<device vec<{msl_type}, 2>*>(read + 64)[lane] =
      vec<{msl_type}, 2>(held[0], held[1]);
}}"""
    out = np.zeros((8, 8), TYPES[msl_type])
    read = np.arange(128).astype(TYPES[msl_type])
    Library(text).run("layout", [out, read], 32, 32)
    for lane in range(32):
        for element in range(2):
            row, column = place(lane, element)
            assert out[row, column] == 2 * lane + element
            assert read[64 + 2 * lane + element] == 8 * row + column


@pytest.mark.metal
@pytest.mark.parametrize("msl_type", TYPES)
def test_thread_elements_are_read_and_written_as_other_programs_do(msl_type: str) -> None:
    text = f"""{HEAD}
{msl_type} larger(thread const simdgroup_{msl_type}8x8& m) {{
  return max(m.thread_elements()[0], m.thread_elements()[1]);
}}
kernel void elements(device {msl_type}* x [[buffer(0)]]) {{
  typedef vec<{msl_type}, 2> pair;
  simdgroup_{msl_type}8x8 m, n;
  simdgroup_load(m, x);
  for (short i = 0; i < 2; i++) m.thread_elements()[i] *= {msl_type}(i + 2);
  pair mine = reinterpret_cast<thread pair&>(m.thread_elements());
  reinterpret_cast<thread pair&>(n.thread_elements()) = mine + pair(larger(m));
  simdgroup_store(n, x);
}}"""
    x = generator(9).integers(-8, 8, (8, 8)).astype(TYPES[msl_type])
    pairs = x.astype(float).reshape(8, 4, 2) * [2, 3]
    want = (pairs + pairs.max(axis=-1, keepdims=True)).reshape(8, 8)
    Library(text).run("elements", [x], 32, 32)
    np.testing.assert_array_equal(x.astype(float), want)


# What Apple's header refuses of a matrix: its elements are a vector of 64, by value if it is constant.
OPAQUE = {
    "to a pair": "float2 p = m.thread_elements(); out[0] = p.x;",
    "from a pair": "m.thread_elements() = float2(1, 2);",
    "as a pair's argument": "out[0] = dot(m.thread_elements(), float2(1));",
    "by name": "out[0] = m.thread_elements().x;",
    "pair of pairs": "float2 p = float2(m.thread_elements()) * 2; out[0] = p.x;",
    "arithmetic of a pair": "m.thread_elements() *= float2(2);",
    "element that another thread holds": "out[0] = m.thread_elements()[2];",
    "constant as a variable": """thread const simdgroup_float8x8& c = m;
      out[0] = reinterpret_cast<thread const float2&>(c.thread_elements()).x;""",
    "write to a constant": "thread const simdgroup_float8x8& c = m; c.thread_elements()[0] = 1;",
    "member": "out[0] = m.t[0];",
    "from elements": "m = simdgroup_float8x8(m.thread_elements());",
    "conversion from a number": "m = 0.0f;",
    "other elements": "m = simdgroup_half8x8(0);",
    "from a pointer to another type": "simdgroup_load(m, reinterpret_cast<device half*>(out));",
    "sum": "m = m + m;",
}


@pytest.mark.metal
@pytest.mark.parametrize("what", OPAQUE)
def test_elements_are_opaque(what: str) -> None:
    with pytest.raises(Refused, match=r":\d+:\d+: error: "):
        Library(f"""{HEAD}
kernel void opaque(device float* out [[buffer(0)]]) {{
  simdgroup_float8x8 m;
  simdgroup_load(m, out);
  {OPAQUE[what]}
  simdgroup_store(m, out);
}}""")


MOVES = [  # (elements a row, origin column, origin row, transpose)
    (8, 0, 0, False),
    (8, 0, 0, True),
    (13, 3, 2, False),
    (13, 3, 2, True),
    (32, 0, 5, True),
]


@pytest.mark.metal
@pytest.mark.parametrize("msl_type", TYPES)
def test_load_and_store(msl_type: str) -> None:
    moves = "\n".join(
        f"""
  simdgroup_load(m, in, {stride}, ulong2({column}, {row}), {str(transpose).lower()});
  simdgroup_store(m, loaded + {64 * k}, 8, 0, false);
  simdgroup_load(m, in);
  simdgroup_store(m, stored + {1024 * k}, {stride}, ulong2({column}, {row}),
                  {str(transpose).lower()});"""
        for k, (stride, column, row, transpose) in enumerate(MOVES)
    )
    text = f"""{HEAD}
kernel void moves(device {msl_type}* loaded [[buffer(0)]], device {msl_type}* stored [[buffer(1)]],
                  device const {msl_type}* in [[buffer(2)]]) {{
  simdgroup_{msl_type}8x8 m;{moves}
}}"""
    x = matrices(msl_type, 16).reshape(-1)
    loaded = np.zeros((len(MOVES), 8, 8), x.dtype)
    stored = np.zeros((len(MOVES), 1024), x.dtype)
    Library(text).run("moves", [loaded, stored, x], 32, 32)
    for k, (stride, column, row, transpose) in enumerate(MOVES):
        at = (row + np.arange(8)[:, None]) * stride + column + np.arange(8)
        at = at.T if transpose else at
        np.testing.assert_array_equal(loaded[k], x[at])
        want = np.zeros(1024, x.dtype)
        want[at] = x[:64].reshape(8, 8)
        np.testing.assert_array_equal(stored[k], want)


@pytest.mark.metal
def test_threadgroup_memory() -> None:
    text = f"""{HEAD}
kernel void through(device float* out [[buffer(0)]], device const float* in [[buffer(1)]],
                    uint t [[thread_position_in_threadgroup]],
                    uint simd [[simdgroup_index_in_threadgroup]]) {{
  threadgroup float shared[128];
  shared[t] = in[t];
  shared[t + 64] = in[t + 64];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_float8x8 m;
  simdgroup_load(m, shared + 64 * simd, 8, ulong2(0), true);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_store(m, shared + 64 * simd);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = shared[t];
  out[t + 64] = shared[t + 64];
}}"""
    x = matrices("float", 2)
    out = np.zeros_like(x)
    Library(text).run("through", [out, x], 64, 64)
    np.testing.assert_array_equal(out, x.transpose(0, 2, 1))


@pytest.mark.metal
def test_constructors() -> None:
    text = f"""{HEAD}
kernel void make(device float* out [[buffer(0)]]) {{
  simdgroup_store(simdgroup_float8x8(3), out);
  simdgroup_store(make_filled_simdgroup_matrix<float, 8>(2.5f), out + 64);
  simdgroup_store(make_filled_simdgroup_matrix<float, 8, 8>(4), out + 128);
  simdgroup_store(make_diagonal_simdgroup_matrix<float, 8, 8>(-1), out + 192);
}}"""
    out = np.zeros((4, 8, 8), np.float32)
    Library(text).run("make", [out], 32, 32)
    eye, ones = np.eye(8), np.ones((8, 8))
    np.testing.assert_array_equal(out, [3 * eye, 2.5 * ones, 4 * ones, -eye])


# element types of D, A, B, C
MIXES = [
    ("float", "float", "float", "float"),
    ("half", "half", "half", "half"),
    ("bfloat", "bfloat", "bfloat", "bfloat"),
    ("float", "half", "half", "float"),
    ("float", "bfloat", "bfloat", "float"),
    ("float", "float", "half", "float"),
    ("float", "half", "float", "float"),
]


@pytest.mark.metal
@pytest.mark.parametrize("types", MIXES, ids="-".join)
def test_products(types: tuple[str, str, str, str]) -> None:
    d, a, b, c = types
    text = f"""{HEAD}
kernel void product(device {d}* out [[buffer(0)]], device const {a}* pa [[buffer(1)]],
                    device const {b}* pb [[buffer(2)]], device const {c}* pc [[buffer(3)]],
                    uint simd [[simdgroup_index_in_threadgroup]],
                    uint group [[threadgroup_position_in_grid]]) {{
  ulong k = group * 3 + simd;
  simdgroup_{a}8x8 ma;
  simdgroup_{b}8x8 mb;
  simdgroup_{c}8x8 mc;
  simdgroup_{d}8x8 md;
  simdgroup_load(ma, pa + 64 * k);
  simdgroup_load(mb, pb + 64 * k);
  simdgroup_load(mc, pc + 64 * k);
  simdgroup_multiply(md, ma, mb);
  simdgroup_store(md, out + 128 * k);
  simdgroup_multiply_accumulate(md, ma, mb, mc);
  simdgroup_store(md, out + 128 * k + 64);
}}"""
    count = 6
    pa, pb, pc = matrices(a, count), matrices(b, count)[:, ::-1].copy(), matrices(c, count) * 2
    pc = pc.astype(TYPES[c])
    out = np.zeros((count, 2, 8, 8), TYPES[d])
    Library(text).run("product", [out, pa, pb, pc], 32 * count, 96)
    plain = pa.astype(float) @ pb.astype(float)
    want = np.stack([plain, plain + pc.astype(float)], axis=1)
    np.testing.assert_allclose(out.astype(float), want, rtol=EPS[d], atol=EPS["float"])


def test_operands_may_be_the_result() -> None:
    text = f"""{HEAD}
kernel void powers(device float* p [[buffer(0)]]) {{
  simdgroup_float8x8 m, n;
  simdgroup_load(m, p);
  n = m;
  simdgroup_multiply(m, m, m);
  simdgroup_multiply_accumulate(m, m, n, m);
  m = m * n;
  simdgroup_store(m, p);
}}"""
    x = matrices("float", 1)[0]
    m = x.astype(float)
    Library(text).run("powers", [x], 32, 32)
    want = (m @ m @ m + m @ m) @ m
    np.testing.assert_allclose(x, want, rtol=0, atol=2e-5)


@pytest.mark.metal
def test_tiled_matmul_with_partial_last_simdgroup() -> None:
    """64 x 40 x 24 by tiles of 8; the last threadgroup has lanes that leave early."""
    text = f"""{HEAD}
kernel void matmul(device float* c [[buffer(0)]], device const half* a [[buffer(1)]],
                   device const half* b [[buffer(2)]],
                   uint simd [[simdgroup_index_in_threadgroup]],
                   uint group [[threadgroup_position_in_grid]]) {{
  const uint m = 64, n = 40, k = 24;
  uint tile = group * 4 + simd;
  if (tile >= (m / 8) * (n / 8)) return;
  uint row = tile / (n / 8) * 8, column = tile % (n / 8) * 8;
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0);
  for (uint i = 0; i < k; i += 8) {{
    simdgroup_half8x8 left, right;
    simdgroup_load(left, a, k, ulong2(i, row));
    simdgroup_load(right, b, n, ulong2(column, i));
    simdgroup_multiply_accumulate(sum, left, right, sum);
  }}
  simdgroup_store(sum, c, n, ulong2(column, row));
}}"""
    rng = generator(8)
    a, b = (rng.uniform(-1, 1, s).astype(np.float16) for s in ((64, 24), (24, 40)))
    c = np.zeros((64, 40), np.float32)
    Library(text).run("matmul", [c, a, b], 12 * 128, 128)
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=0, atol=1e-5)


def test_private_multiply() -> None:
    text = f"""{HEAD}
kernel void raw(device float* out [[buffer(0)]], device const half* in [[buffer(1)]],
                uint lane [[thread_index_in_simdgroup]]) {{
  vec<half, 64> a;
  vec<float, 64> sum;
  *reinterpret_cast<thread vec<half, 2>*>(&a) = vec<half, 2>(in[2 * lane], in[2 * lane + 1]);
  *reinterpret_cast<thread vec<float, 2>*>(&sum) = vec<float, 2>(1);
  sum = __metal_simdgroup_matrix_8x8_multiply_accumulate(a, a, sum, vec<float, 64>());
  vec<float, 2> mine = *reinterpret_cast<thread vec<float, 2>*>(&sum);
  out[2 * lane] = mine.x;
  out[2 * lane + 1] = mine.y;
}}"""
    x = matrices("half", 1).reshape(-1)
    out = np.zeros(64, np.float32)
    Library(text).run("raw", [out, x], 32, 32)
    m = np.zeros((8, 8))
    places = [place(lane, element) for lane in range(32) for element in range(2)]
    for value, at in zip(x, places, strict=True):
        m[at] = value
    want = m @ m + 1
    np.testing.assert_allclose(out, [want[at] for at in places], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["simdgroup_matrix<float, 4, 4>", "simdgroup_matrix<int, 8, 8>"])
def test_refused(name: str) -> None:
    with pytest.raises(Refused, match=r"simdgroup_matrix (is 8x8|holds float)"):
        Library(f"{HEAD}kernel void refused(device float* p [[buffer(0)]]) {{ {name} m; }}")
