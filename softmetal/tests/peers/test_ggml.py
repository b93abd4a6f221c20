"""llama.cpp's own Metal kernels, with its argument structs, against numpy.

They are in the source distribution of llama-cpp-python: unpack it and name the folder in
LBRX_GGML_SOURCES, as `make test-peers` does.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ggml_blocks import random_rows
from metal_launch import launch, make_pipeline
from seeds import generator

from softmetal import compiler
from softmetal.types import CompileOptions

pytestmark = pytest.mark.full

C_TYPES = {
    "int16_t": ctypes.c_int16,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "bool": ctypes.c_bool,
}
MACROS = (("GGML_METAL_HAS_BF16", "1"),)
FRAGMENTS = ("fa_common.metal", "fa_vec_common.metal")  # included by others


@functools.cache
def sources() -> Path:
    root = os.environ.get("LBRX_GGML_SOURCES")
    if not root:
        pytest.skip("LBRX_GGML_SOURCES does not name llama-cpp-python's unpacked sources")
    found = sorted(Path(root).rglob("ggml-metal-impl.h"))
    if not found:
        pytest.skip(f"no ggml-metal-impl.h below {root}")
    return found[0].parent


def folders() -> tuple[Path, ...]:
    return (sources() / "kernels", sources(), sources().parent)


@functools.cache
def header() -> str:
    return (sources() / "ggml-metal-impl.h").read_text()


def number(name: str) -> int:
    """A #define of the header."""
    found = re.search(rf"^#define {name}\s+(\d+)", header(), re.M)
    assert found is not None, name
    return int(found[1])


def arguments(name: str, **values: Any) -> ctypes.Structure:
    """ggml_metal_kargs_<name> with these values; the rest is zero."""
    body = re.search(rf"typedef struct {{([^}}]*)}} ggml_metal_kargs_{name};", header())
    assert body is not None, name
    fields: list[tuple[str, Any]] = []
    for kind, field, count in re.findall(r"(\w+)\s+(\w+)(?:\[(\d+)\])?;", body[1]):
        fields.append((field, C_TYPES[kind] * int(count) if count else C_TYPES[kind]))
    record = type(name, (ctypes.Structure,), {"_fields_": fields})()
    for field, value in values.items():
        setattr(
            record, field, type(getattr(record, field))(*value) if type(value) is tuple else value
        )
    return record


def extents(prefix: str, array: np.ndarray, element: int | None = None) -> dict[str, int]:
    """GGML's sizes and strides: ne<prefix>0.. from the innermost dimension, nb in bytes."""
    shape = (1,) * (4 - array.ndim) + array.shape
    strides = np.cumprod([element or array.itemsize, *shape[:0:-1]])
    sizes = {f"ne{prefix}{k}": int(n) for k, n in enumerate(shape[::-1])}
    return sizes | {f"nb{prefix}{k}": int(n) for k, n in enumerate(strides)}


def known(name: str, values: dict[str, Any]) -> dict[str, Any]:
    body = re.search(rf"typedef struct {{([^}}]*)}} ggml_metal_kargs_{name};", header())
    assert body is not None, name
    return {k: v for k, v in values.items() if re.search(rf"\b{k}(\[\d+\])?;", body[1])}


def kernel(file: str, name: str, constants: dict[int, Any] | None = None) -> Any:
    text = (sources() / "kernels" / f"{file}.metal").read_text()
    return make_pipeline(text, name, folders(), constants, MACROS)


def close(got: np.ndarray, want: np.ndarray, tolerance: float = 1e-5) -> None:
    scale = float(np.abs(want).max()) or 1.0
    np.testing.assert_allclose(got.astype(float), want, rtol=tolerance, atol=tolerance * scale)


def normal(seed: int, *shape: int) -> np.ndarray:
    return generator(seed).standard_normal(shape).astype(np.float32)


def test_every_file_passes_the_check_without_warnings() -> None:
    for path in sorted((sources() / "kernels").glob("*.metal")):
        if path.name not in FRAGMENTS:
            options = CompileOptions(include_dirs=tuple(map(str, folders())), macros=MACROS)
            program, warnings = compiler.check(path.read_text(), options)
            assert program.functions, path.name
            assert warnings + compiler.check_address_spaces(path.read_text(), options) == ""


@pytest.mark.parametrize("columns", [32, 100, 1023])
@pytest.mark.parametrize("mask", [None, np.float32, np.float16])
@pytest.mark.parametrize("bias", [0.0, 8.0])
def test_soft_max(columns: int, mask: type | None, bias: float) -> None:
    heads, rows, scale = 3, 5, 0.3
    if bias and mask is None:
        pytest.skip("a slope without a mask has no effect")
    x = normal(columns, heads, rows, columns)
    m = (normal(1, rows, columns) * 2).astype(mask) if mask else x
    head_log2 = 2
    m0, m1 = 2 ** (-bias / head_log2), 2 ** (-bias / 2 / head_log2)
    out = np.zeros_like(x)
    name = "kernel_soft_max_f16" if mask is np.float16 else "kernel_soft_max_f32"
    values = extents("0", x) | extents("1", m) | extents("", out)
    values |= {"scale": scale, "max_bias": bias, "m0": m0, "m1": m1, "n_head_log2": head_log2}
    record = arguments("soft_max", **known("soft_max", values))
    x_argument: Any = x
    # Without a mask llama.cpp passes the same buffer twice; here that is one offset of one buffer.
    launch_shared(
        kernel("softmax", name), record, x_argument, m if mask else None, out, rows, heads
    )
    slope = np.array([m0, m0**2, m1][:heads]) if bias else np.ones(heads)
    logits = x.astype(float) * scale
    if mask:
        logits += slope[:, None, None] * m.astype(float)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    close(out, e / e.sum(-1, keepdims=True))


def launch_shared(
    pipeline: Any,
    record: ctypes.Structure,
    x: np.ndarray,
    mask: np.ndarray | None,
    out: np.ndarray,
    rows: int,
    heads: int,
) -> None:
    """soft_max compares the addresses of its inputs: absent ones are src0's."""
    from metal_launch import DEVICE, QUEUE, Metal

    def buffer(a: np.ndarray) -> Any:
        return DEVICE.newBufferWithBytes_length_options_(a.tobytes(), a.nbytes, 0)

    source, result = buffer(x), buffer(out)
    masked = source if mask is None else buffer(mask)
    commands = QUEUE.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBytes_length_atIndex_(bytes(record), ctypes.sizeof(record), 0)
    for index, bound in enumerate([source, masked, source, result], 1):
        encoder.setBuffer_offset_atIndex_(bound, 0, index)
    encoder.setThreadgroupMemoryLength_atIndex_(32 * 4, 0)
    encoder.dispatchThreadgroups_threadsPerThreadgroup_(
        Metal.MTLSizeMake(rows, heads, 1), Metal.MTLSizeMake(64, 1, 1)
    )
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None, commands.error()
    out[...] = np.frombuffer(result.contents().as_buffer(out.nbytes), out.dtype).reshape(out.shape)


@pytest.mark.parametrize("operation", ["norm", "rms_norm"])
@pytest.mark.parametrize(("columns", "lanes"), [(64, 1), (257, 1), (512, 4)])
@pytest.mark.parametrize("fused", ["", "_mul", "_mul_add"])
def test_norms(operation: str, columns: int, lanes: int, fused: str) -> None:
    rows, eps = 3, 1e-5
    x, weight, shift = normal(0, rows, columns), normal(1, 1, columns), normal(2, 1, columns)
    out = np.zeros_like(x)
    stride = columns * 4
    record = arguments(
        "norm", ne00=columns, ne00_t=columns // lanes, eps=eps,
        nb1=stride, nb2=stride * rows, nb3=stride * rows,
        nef1=(rows, 1, 1), nef2=(1, 1, 1), nef3=(1, 1, 1),
        nbf1=(stride, stride, stride), nbf2=(stride * rows, stride, stride),
        nbf3=(stride * rows, stride, stride),
    )  # fmt: skip
    name = f"kernel_{operation}{fused}_f32" + ("_4" if lanes == 4 else "")
    pipeline = kernel("norm", name, {number("FC_NORM"): False})
    launch(pipeline, [record, x, weight, shift, out], (rows, 1, 1), (64, 1, 1), scratch=128)
    y = x.astype(float)
    if operation == "norm":
        y -= y.mean(1, keepdims=True)
    y /= np.sqrt((y * y).mean(1, keepdims=True) + eps)
    y = y * weight if fused else y
    close(out, y + shift if fused == "_mul_add" else y)


@pytest.mark.parametrize("style", ["norm", "neox"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rotated", [64, 32])
def test_rope(style: str, dtype: type, rotated: int) -> None:
    tokens, heads, size, base = 5, 3, 64, 10000.0
    x = normal(7, tokens, heads, size).astype(dtype)
    positions = np.array([0, 1, 5, 77, 4000], np.int32)
    out = np.zeros_like(x)
    values = extents("0", x) | extents("", out)
    values |= {"n_dims": rotated, "n_ctx_orig": 4096, "freq_base": base, "freq_scale": 1.0}
    values |= {"attn_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
    suffix = "f32" if dtype is np.float32 else "f16"
    first = number("FC_ROPE")
    pipeline = kernel("rope", f"kernel_rope_{style}_{suffix}", {first: False, first + 1: False})
    record = arguments("rope", **known("rope", values))
    launch(pipeline, [record, x, positions, x, out], (heads, tokens, 1), (32, 1, 1))
    frequency = base ** (-np.arange(0, rotated, 2) / rotated)
    angle = (positions[:, None] * frequency)[:, None, :]
    want = x.astype(float)
    pairs = (
        (np.s_[..., 0:rotated:2], np.s_[..., 1:rotated:2])
        if style == "norm"
        else (np.s_[..., : rotated // 2], np.s_[..., rotated // 2 : rotated])
    )
    a, b = want[pairs[0]].copy(), want[pairs[1]].copy()
    want[pairs[0]] = a * np.cos(angle) - b * np.sin(angle)
    want[pairs[1]] = a * np.sin(angle) + b * np.cos(angle)
    # The angle itself is a float: at position 4000 it is good to 4000 * 2**-23 only.
    close(out, want, 2e-3)


MAT_VEC = {
    "f32": (2, 2, 256), "f16": (2, 2, 256), "bf16": (2, 2, 256), "q4_0": (2, 4, 0),
    "q4_1": (2, 4, 0), "q5_0": (2, 4, 0), "q8_0": (4, 2, 256), "q4_K": (2, 2, 0), "q6_K": (2, 2, 0),
}  # fmt: skip
FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def weights(kind: str, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as it is stored, and as float64."""
    padded = rows + 64  # kernels read past the last row: llama.cpp's tensors lie in larger buffers
    if kind in FLOATS:
        stored = normal(columns, padded, columns).astype(FLOATS[kind])
        values = stored.astype(float)
    else:
        stored, values = random_rows(kind, padded, columns, columns)
    return stored, values[:rows]


def matrix_arguments(name: str, a: np.ndarray, k: int, b: np.ndarray, out: np.ndarray) -> Any:
    rows, row_bytes = out.shape[1], a.nbytes // a.shape[0]
    values = {"ne00": k, "ne01": rows, "ne02": 1, "nb01": row_bytes, "nb02": a.nbytes}
    values |= {"nb03": a.nbytes, "r2": 1, "r3": 1, "nr0": MAT_VEC.get(name, (0, 0, 0))[1]}
    values |= extents("1", b) | {"ne0": rows, "ne1": out.shape[0]}
    return values


@pytest.mark.parametrize("kind", MAT_VEC)
@pytest.mark.parametrize(("rows", "columns"), [(64, 256), (37, 512), (5, 1024)])
def test_mat_vec(kind: str, rows: int, columns: int) -> None:
    simdgroups, rows_each, scratch = MAT_VEC[kind]
    a, a64 = weights(kind, rows, columns)
    b = normal(3, 3, columns)
    out = np.zeros((3, rows), np.float32)
    values = matrix_arguments(kind, a, columns, b, out)
    first = number("FC_MUL_MV")
    whole = np.int16
    constants = {
        first: whole(simdgroups), first + 1: whole(1), first + 2: whole(1), first + 3: whole(1),
        first + 4: whole(1), first + 5: np.bool_(False),
    }  # fmt: skip
    pipeline = kernel("mul_mv", f"kernel_mul_mv_{kind}_f32", constants)
    shared = kind in FLOATS or kind == "q8_0"  # these split a row over their simdgroups
    each = rows_each if shared else rows_each * simdgroups
    record = arguments("mul_mv", **known("mul_mv", values))
    launch(pipeline, [record, a, b, out], (-(-rows // each), 3, 1), (32, simdgroups, 1), scratch)
    close(out, b.astype(float) @ a64.T, 1e-5)


@pytest.mark.parametrize("kind", ["f32", "f16", "q4_0", "q8_0", "q4_K", "q6_K"])
@pytest.mark.parametrize(
    ("rows", "columns", "batch"), [(64, 256, 32), (70, 256, 33), (128, 512, 5)]
)
def test_mat_mul(kind: str, rows: int, columns: int, batch: int) -> None:
    a, a64 = weights(kind, rows, columns)
    b = normal(4, batch, columns)
    out = np.zeros((batch, rows), np.float32)
    ragged = rows % 64 != 0 or batch % 32 != 0
    first, whole = number("FC_MUL_MM"), np.int16
    constants: dict[int, Any] = {first: False, first + 1: ragged, first + 6: False}
    constants |= {first + k: whole(1) for k in (2, 3, 4, 5)}
    pipeline = kernel("mul_mm", f"kernel_mul_mm_{kind}_f32", constants)
    record = arguments("mul_mm", **known("mul_mm", matrix_arguments(kind, a, columns, b, out)))
    groups = (-(-batch // 32), -(-rows // 64), 1)
    launch(pipeline, [record, a, b, out], groups, (128, 1, 1), 8192 if ragged else 6144)
    close(out, b.astype(float) @ a64.T, 2e-3)  # its tiles are half, whatever the weights are


@pytest.mark.parametrize("kind", ["f16", "q4_0", "q4_1", "q5_0", "q8_0", "q4_K", "q6_K"])
def test_get_rows(kind: str) -> None:
    rows, columns = 11, 512
    a, a64 = weights(kind, rows, columns)
    picks = np.array([3, 0, 10, 3], np.int32)
    out = np.zeros((len(picks), columns), np.float32)
    pieces = columns if kind in FLOATS else columns // 16
    values = {"ne00t": pieces, "ne00": columns, "nb01": a.nbytes // len(a), "nb02": a.nbytes}
    values |= {"nb03": a.nbytes} | extents("1", picks) | extents("", out)
    record = arguments("get_rows", **known("get_rows", values))
    pipeline = kernel("quantize", f"kernel_get_rows_{kind}")
    width = min(pieces, 32)
    groups = (-(-pieces // width) * len(picks), 1, 1)
    launch(pipeline, [record, a, picks, out], groups, (width, 1, 1))
    close(out, a64[picks], 1e-6)


@pytest.mark.parametrize(("kind", "step"), [("q4_0", 1 / 7), ("q8_0", 1 / 126), ("q5_0", 1 / 15)])
def test_quantize(kind: str, step: float) -> None:
    """A copy into blocks and back is within half a step of each block's largest value."""
    from ggml_blocks import BLOCKS

    x = normal(9, 4, 256)
    elements, length, _, decode = BLOCKS[kind]
    blocks = np.zeros((4, 256 // elements, length), np.uint8)
    values = {"nk0": 256 // elements} | extents("0", x)
    values |= extents("", x, element=4) | {"nb0": length, "nb1": 256 // elements * length}
    values |= {"nb2": blocks.nbytes, "nb3": blocks.nbytes}
    record = arguments("cpy", **known("cpy", values))
    pipeline = kernel("quantize", f"kernel_cpy_f32_{kind}")
    launch(pipeline, [record, x, blocks], (4, 1, 1), (256 // elements, 1, 1))
    back = decode(blocks.reshape(-1, length)).reshape(4, -1, elements)
    largest = np.abs(x.reshape(4, -1, elements)).max(-1, keepdims=True)
    assert (np.abs(back - x.reshape(back.shape)) <= largest * step * 1.01).all()


UNARY = {
    "SCALE": lambda x: 0.5 * x + 0.25, "SQR": lambda x: x * x, "SIN": np.sin, "COS": np.cos,
    "TANH": np.tanh, "RELU": lambda x: np.maximum(x, 0), "SIGMOID": lambda x: 1 / (1 + np.exp(-x)),
    "GELU": lambda x: 0.5 * x * (1 + np.tanh(0.79788456080286535 * x * (1 + 0.044715 * x * x))),
    "SILU": lambda x: x / (1 + np.exp(-x)), "ELU": lambda x: np.where(x > 0, x, np.expm1(x)),
    "NEG": np.negative, "ABS": np.abs, "SGN": np.sign, "STEP": lambda x: (x > 0) * 1.0,
    "EXP": np.exp, "EXPM1": np.expm1, "FLOOR": np.floor, "CEIL": np.ceil, "TRUNC": np.trunc,
    "SOFTPLUS": lambda x: np.log1p(np.exp(x)), "CLAMP": lambda x: np.clip(x, -0.5, 0.75),
    "HARDSWISH": lambda x: x * np.clip((x + 3) / 6, 0, 1),
    "HARDSIGMOID": lambda x: np.clip((x + 3) / 6, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("operation", UNARY)
def test_unary(operation: str) -> None:
    x = normal(11, 3, 100) * 2
    out = np.zeros_like(x)
    values = extents("0", x) | extents("", out)
    values |= {"scale": 0.5, "bias": 0.25, "min": -0.5, "max": 0.75}
    first = number("FC_UNARY")
    constants = {first: np.int16(number(f"OP_UNARY_NUM_{operation}")), first + 1: False}
    pipeline = kernel("unary", "kernel_unary_f32_f32", constants)
    record = arguments("unary", **known("unary", values))
    launch(pipeline, [record, x, out], (3 * 4, 1, 1), (32, 1, 1))
    close(out, UNARY[operation](x.astype(float)), 2e-5)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("columns", [5, 64, 100])
def test_argsort(order: str, columns: int) -> None:
    x = normal(13, 4, columns)
    out = np.zeros((4, columns), np.int32)
    threads = 1 << (columns - 1).bit_length()
    values = extents("0", x) | extents("", out) | {"top_k": columns}
    record = arguments("argsort", **known("argsort", values))
    pipeline = kernel("argsort", f"kernel_argsort_f32_i32_{order}")
    launch(pipeline, [record, x, out], (4, 1, 1), (threads, 1, 1), threads * 4)
    want = np.argsort(x, axis=1)
    np.testing.assert_array_equal(out, want if order == "asc" else want[:, ::-1])


@pytest.mark.parametrize("columns", [7, 128, 1000])
def test_cumsum(columns: int) -> None:
    x = normal(15, 3, columns)
    out, sums = np.zeros_like(x), np.zeros((3, 1), np.float32)
    values = extents("0", x) | extents("t", sums) | {"outb": False}
    record = arguments("cumsum_blk", **known("cumsum_blk", values))
    pipeline = kernel("reduce", "kernel_cumsum_blk_f32")
    launch(pipeline, [record, x, sums, out], (3, 1, 1), (1024, 1, 1), 128)
    close(out, np.cumsum(x.astype(float), axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_im2col(dtype: type) -> None:
    n, channels, height, width, k = 2, 3, 9, 7, 3
    x = normal(17, n, channels, height, width)
    out = np.zeros((n, height, width, channels, k, k), dtype)
    values = {"ofs0": channels * height * width, "ofs1": height * width, "IW": width, "IH": height}
    values |= {"CHW": channels * k * k, "s0": 1, "s1": 1, "p0": 1, "p1": 1, "d0": 1, "d1": 1}
    values |= {"N": n, "KH": k, "KW": k, "KHW": k * k}
    record = arguments("im2col", **known("im2col", values))
    pipeline = kernel("conv", "kernel_im2col_f32" if dtype is np.float32 else "kernel_im2col_f16")
    launch(pipeline, [record, x, out], (channels, height, width), (2, k, k))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))
    np.testing.assert_array_equal(out, windows.transpose(0, 2, 3, 1, 4, 5).astype(dtype))


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, scale: float) -> Any:
    group = q.shape[0] // k.shape[0]
    scores = q.astype(float) @ np.repeat(k, group, 0).astype(float).transpose(0, 2, 1) * scale
    scores += mask.astype(float)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ np.repeat(v, group, 0).astype(float)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(("tokens", "cached"), [(1, 64), (9, 128), (20, 192)])
def test_flash_attention(vector: bool, tokens: int, cached: int) -> None:
    """Four query heads over two of keys, with a causal mask, half keys and values."""
    heads, kv_heads, size, scale = 4, 2, 64, 64**-0.5
    q = normal(19, heads, tokens, size)
    k, v = (normal(s, kv_heads, cached, size).astype(np.float16) for s in (20, 21))
    allowed = np.arange(cached)[None] <= np.arange(tokens)[:, None] + cached - tokens
    mask = np.where(allowed, 0, -np.inf).astype(np.float16)
    out = np.zeros((tokens, heads, size), np.float32)
    kind = "flash_attn_ext_vec" if vector else "flash_attn_ext"
    values = extents("0", q) | extents("1", k) | extents("2", v) | extents("3", mask)
    values |= {"ne1": heads, "ne2": tokens, "ne3": 1, "ne_12_2": kv_heads, "ne_12_3": 1}
    values |= {"ns10": size, "ns20": size, "scale": scale, "m0": 1.0, "m1": 1.0}
    values |= {"n_head_log2": 4}
    record = arguments(kind, **known(kind, values))
    first = number(f"FC_{kind.upper()}")
    simdgroups = 1 if vector else 4
    constants: dict[int, Any] = {first + n: n == 0 for n in (0, 1, 2, 3, 4, 5, 10)}
    constants[first + 10] = tokens % 8 != 0
    constants |= {first + 20: np.int32(size), first + 21: np.int32(size)}
    constants |= {first + 22: np.int32(simdgroups), first + 23: np.int32(1)}
    spare = np.zeros(64, np.uint8)
    if vector:
        pipeline = kernel("fa_vec_f16", "kernel_flash_attn_ext_vec_f16_dk64_dv64", constants)
        scratch = (128 + 4 * 32 + 2 * 128) * 2
        tensors = [record, q, k, v, mask, spare, spare, out, spare]
        launch(pipeline, tensors, (tokens, heads, 1), (32, 1, 1), scratch)
    else:
        blocks = np.full((-(-tokens // 8), -(-cached // 64)), 1, np.int8)  # look at the mask
        pipeline = kernel("fa_f16", "kernel_flash_attn_ext_f16_dk64_dv64", constants)
        scratch = 8 * (size + 2 * 64 + 4 * 64) * 2
        tensors = [record, q, k, v, mask, spare, spare, blocks, out]
        launch(pipeline, tensors, (-(-tokens // 8), heads, 1), (32, 4, 1), scratch)
    close(out, attention(q, k, v, mask, scale).transpose(1, 0, 2), 2e-3)
