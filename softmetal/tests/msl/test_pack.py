"""metal_pack against integer arithmetic in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Array, Case, evaluate_all
from numpy.typing import NDArray
from seeds import generator

Doubles = NDArray[np.float64]

# format: widths of the fields from the lowest bit up, signed, how the components are ordered
FORMATS: dict[str, tuple[tuple[int, ...], bool, tuple[int, ...]]] = {
    "unorm4x8": ((8, 8, 8, 8), False, (0, 1, 2, 3)),
    "snorm4x8": ((8, 8, 8, 8), True, (0, 1, 2, 3)),
    "unorm2x16": ((16, 16), False, (0, 1)),
    "snorm2x16": ((16, 16), True, (0, 1)),
    "unorm10a2": ((10, 10, 10, 2), False, (0, 1, 2, 3)),
    "unorm565": ((5, 6, 5), False, (2, 1, 0)),
}


def scales(widths: tuple[int, ...], signed: bool) -> Doubles:
    return np.array([2 ** (w - signed) - 1 for w in widths], float)


def unpacked(words: NDArray[np.uint32], name: str) -> Doubles:
    widths, signed, order = FORMATS[name]
    starts = np.cumsum((0, *widths[:-1]))
    fields = np.stack([words >> s & (2**w - 1) for s, w in zip(starts, widths, strict=True)], 1)
    numbers = fields.astype(np.int64)
    if signed:
        half = np.array([2 ** (w - 1) for w in widths])
        numbers = np.where(numbers >= half, numbers - 2 * half, numbers)
    return np.maximum(numbers / scales(widths, signed), -1)[:, list(order)]


def packed(x: Doubles, name: str) -> NDArray[np.uint64]:
    widths, signed, order = FORMATS[name]
    x = np.clip(x[:, np.argsort(order)], -1 if signed else 0, 1)
    product = x.astype(np.float32) * scales(widths, signed).astype(np.float32)
    fields = np.rint(product).astype(np.int64)
    starts = np.cumsum((0, *widths[:-1]))
    masks = np.array([2**w - 1 for w in widths])
    return ((fields & masks) << starts).sum(axis=1).astype(np.uint64)


def words_for(name: str) -> Array:
    dtype = np.uint16 if name == "unorm565" else np.uint32
    random = generator(0).integers(0, np.iinfo(dtype).max, 200, dtype, endpoint=True)
    random[:2] = 0, np.iinfo(dtype).max
    random[2] = 0x8080 if dtype is np.uint16 else 0x80808080
    return random


@pytest.mark.parametrize("name", FORMATS)
def test_unpack(name: str) -> None:
    words = words_for(name)
    width = len(FORMATS[name][0])
    cases = [
        Case(f"unpack_{name}_to_float(a)", [words], np.float32, width),
        Case(f"unpack_{name}_to_half(a)", [words], np.float16, width),
    ]
    want = unpacked(words.astype(np.uint32), name)
    for case, got in zip(cases, evaluate_all(cases), strict=True):
        tolerance = 2e-7 if case.out is np.float32 else 1e-3
        np.testing.assert_allclose(got.astype(float), want, rtol=tolerance, atol=1e-9)


@pytest.mark.parametrize("name", FORMATS)
def test_pack(name: str) -> None:
    width = len(FORMATS[name][0])
    x = generator(1).uniform(-1.25, 1.25, (200, width)).astype(np.float16)
    x[:3] = [[0], [1], [-1]]
    cases = [
        Case(f"pack_float_to_{name}(a)", [x.astype(np.float32)], words_for(name).dtype),
        Case(f"pack_half_to_{name}(a)", [x], words_for(name).dtype),
    ]
    want = packed(x.astype(float), name)
    for got in evaluate_all(cases):
        np.testing.assert_array_equal(got, want)


def test_packing_a_packed_word_gives_it_back() -> None:
    cases, wants = [], []
    for name in FORMATS:
        words = words_for(name)
        if FORMATS[name][1]:  # -1 has two encodings
            width = FORMATS[name][0][0]
            fields = words[:, None] >> (np.arange(32 // width) * width)
            words = words[(fields % 2**width != 2 ** (width - 1)).all(axis=1)]
        cases.append(Case(f"pack_float_to_{name}(unpack_{name}_to_float(a))", [words], words.dtype))
        wants.append(words)
    for got, want in zip(evaluate_all(cases), wants, strict=True):
        np.testing.assert_array_equal(got, want)


def test_srgb() -> None:
    """All 256 values of a channel; alpha stays linear."""
    byte = np.arange(256, dtype=np.uint32)
    words = byte | byte[::-1] << 8 | byte << 16 | byte << 24
    channel = byte / 255.0
    linear = np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)
    want = np.stack([linear, linear[::-1], linear, channel], axis=1)
    cases = [
        Case("unpack_unorm4x8_srgb_to_float(a)", [words], np.float32, 4),
        Case("unpack_unorm4x8_srgb_to_half(a)", [words], np.float16, 4),
        Case("pack_float_to_srgb_unorm4x8(a)", [want.astype(np.float32)], np.uint32),
    ]
    floats, halves, back = evaluate_all(cases)
    np.testing.assert_allclose(floats, want, rtol=4e-6, atol=1e-8)
    np.testing.assert_allclose(halves.astype(float), want, rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(back, words)


def test_nan_packs_as_zero() -> None:
    x = np.full((1, 4), np.nan, np.float32)
    cases = [Case(f"pack_float_to_{f}(a)", [x], np.uint32) for f in ("unorm4x8", "snorm4x8")]
    assert [int(v[0]) for v in evaluate_all(cases)] == [0, 0]
