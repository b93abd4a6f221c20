"""Packing of small integers, compared with arithmetic on rows as one large integer."""

from __future__ import annotations

import numpy as np
import pytest

from lbrx.quant import bits


@pytest.mark.parametrize(
    ("width", "run"), [(1, 1), (1, 32), (2, 1), (2, 4), (2, 32), (4, 1), (4, 64)]
)
def test_runs(rng, width, run):
    values = rng.integers(0, 1 << width, (3, 8 // width * run * 2), dtype=np.uint8)
    packed = bits.pack_runs(values, width, run)
    assert packed.shape == (3, run * 2)
    np.testing.assert_array_equal(bits.unpack_runs(packed, width, run), values)
    for row, column in np.ndindex(values.shape):
        group, place = divmod(column, 8 // width * run)
        shift, byte = divmod(place, run)
        stored = packed[row, group * run + byte] >> shift * width
        assert stored & ((1 << width) - 1) == values[row, column]


@pytest.mark.parametrize("width", range(1, 9))
def test_a_stream_is_one_long_integer(rng, width):
    values = rng.integers(0, 1 << width, (3, 40), dtype=np.uint8)
    packed = bits.pack_stream(values, width)
    for row, stored in zip(values, packed, strict=True):
        number = sum(int(value) << i * width for i, value in enumerate(row))
        assert int.from_bytes(stored.tobytes(), "little") == number
    np.testing.assert_array_equal(bits.unpack_stream(packed, width), values)
