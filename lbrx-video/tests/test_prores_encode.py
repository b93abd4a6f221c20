"""ProRes encoded by kernels: FFmpeg reads it, it has the wanted size, and its error is small."""

from __future__ import annotations

import numpy as np
import pytest
from device_memory import GPU
from prores_material import drawn, reference

import lbrx
import softmetal
from lbrx.errors import FormatError, SettingError
from lbrx_video.color import BT709
from lbrx_video.pixel_formats import find
from lbrx_video.planes import Planes
from lbrx_video.prores import FieldOrder, decode, encode, read_header
from lbrx_video.prores.profiles import PROFILES
from lbrx_video.prores.rate_control import COARSEST, chosen_scales

# Codec, pixel format, size, source, field order, least PSNR of a plane in dB.
CASES = [
    ("apco", "yuv422p10le", (90, 307), "smooth", 0, 32),
    ("apcs", "yuv422p10le", (64, 128), "smooth", 1, 38),
    ("apcn", "yuv422p10le", (37, 41), "smooth", 2, 40),
    ("apch", "yuv422p10le", (90, 307), "smooth", 0, 42),
    ("apch", "yuv422p10le", (48, 150), "extreme", 0, 15),
    ("apch", "yuv422p10le", (1, 1), "smooth", 0, 60),
    ("apch", "yuv422p10le", (48, 2000), "spot", 0, 50),
    ("ap4h", "yuv444p12le", (90, 307), "ramp", 2, 70),
    ("ap4x", "yuva444p12le", (33, 145), "smooth", 1, 48),
]


def frames_of(name: str, size: tuple[int, int], source: str, count: int, seed: int = 0) -> Planes:
    """Frames of a pixel format, with random lower bits at 12 bits."""
    rng = np.random.default_rng(seed)
    form = find(name)
    tensors = []
    for plane in range(form.planes):
        shape = form.plane_shape(plane, *size)
        if source == "ramp" and plane < 3:
            y, x = np.mgrid[: shape[0], : shape[1]]
            values = np.stack([(9 * x + 5 * y + 300 * plane) % 4096] * count).astype(np.uint16)
            values = np.minimum(values, 4000 - values // 8) + 16
        else:
            kind = source if plane < 3 else "alpha"
            values = np.stack([drawn(kind, *shape, number, rng) for number in range(count)])
            if form.depth == 12:
                values = values * 4 + rng.integers(0, 4, values.shape, np.uint16)
        tensors.append(lbrx.tensor(values.astype(np.uint16), device="metal"))
    return Planes(tuple(tensors), form, *size, BT709)


def decibels(values: np.ndarray, wanted: np.ndarray, depth: int) -> float:
    error = np.mean((values.astype(np.float64) - wanted) ** 2)
    return float(10 * np.log10((2**depth - 1) ** 2 / max(error, 1e-12)))


@pytest.mark.parametrize(("codec", "name", "size", "source", "order", "least"), CASES)
def test_round_trip(
    codec: str, name: str, size: tuple[int, int], source: str, order: int, least: float
) -> None:
    planes = frames_of(name, size, source, 2)
    packets = encode(planes, codec=codec, field_order=FieldOrder(order))
    depth = planes.format.depth
    read = reference(packets, codec)
    for tensor, values in zip(planes.tensors[:3], read, strict=False):
        assert decibels(values, tensor.numpy(), depth) > least
    for tensor, values in zip(planes.tensors[3:], read[3:], strict=True):
        np.testing.assert_array_equal(values, tensor.numpy())
    for tensor, values in zip(decode(packets, codec=codec).tensors, read, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), values)


@pytest.mark.parametrize("codec", ["apco", "apch"])
def test_size(codec: str) -> None:
    """Noise fills the frame's size but for a few bytes; the headers come on top."""
    planes = frames_of("yuv422p10le", (160, 320), "extreme", 2)
    for packet in encode(planes, codec=codec):
        wanted = PROFILES[codec].bits * 10 * 20 // 8
        slices = 10 * 3  # of 8, 8 and 4 macroblocks
        body = len(packet) - 8 - 148 - 8 - 2 * slices
        assert 0.97 * wanted < body <= wanted


def test_header() -> None:
    planes = frames_of("yuva444p12le", (33, 145), "smooth", 1)
    (packet,) = encode(planes, codec="ap4h", field_order=FieldOrder.TOP_FIRST)
    header = read_header(packet)
    assert (header.width, header.height, header.alpha_bits) == (145, 33, 16)
    assert header.field_order is FieldOrder.TOP_FIRST
    assert (header.primaries, header.transfer, header.matrix) == (1, 1, 1)
    assert int.from_bytes(packet[:4], "big") == len(packet)


def test_refused() -> None:
    planes = frames_of("yuv422p10le", (16, 16), "flat", 1)
    with pytest.raises(SettingError, match="codec 'h264' is not ProRes: give one of apco"):
        encode(planes, codec="h264")
    with pytest.raises(FormatError, match="ap4h takes yuv444p12le or yuva444p12le, not yuv422p10"):
        encode(planes, codec="ap4h")
    with pytest.raises(FormatError, match="no second field"):
        encode(
            frames_of("yuv422p10le", (1, 16), "flat", 1),
            codec="apch",
            field_order=FieldOrder.TOP_FIRST,
        )


@pytest.mark.skipif(GPU, reason="checks are of the software device")
@pytest.mark.full
def test_checked() -> None:
    """No access beyond a buffer and no race."""
    for name, codec in (("yuv422p10le", "apch"), ("yuva444p12le", "ap4x")):
        planes = frames_of(name, (37, 145), "extreme", 2)
        with softmetal.checking("bounds", "race"):
            encode(planes, codec=codec, field_order=FieldOrder.TOP_FIRST)


def test_rate_control(rng: np.random.Generator) -> None:
    """Frames of very different needs, compared with a search over all scales."""
    frames = np.sort(np.append(rng.integers(0, 4, 90), range(4)))
    needs = rng.integers(100, 9000, len(frames))

    def bits(scales: np.ndarray) -> np.ndarray:
        return np.where(scales > 0, 48 + (needs / np.maximum(scales, 1) ** 0.7).astype(int), 0)

    full = np.bincount(frames, bits(np.ones_like(frames)))
    budgets = (full * np.array([1.5, 0.6, 0.2, 0.001])).astype(np.int64)
    chosen, sizes = chosen_scales(bits, frames, budgets)
    np.testing.assert_array_equal(sizes, bits(chosen))
    totals = np.bincount(frames, sizes)
    for frame, budget in enumerate(budgets):
        own = chosen[frames == frame]
        coarse, fine = own.max(), max(own.max() - 1, 1)
        with_coarse, with_fine = (
            np.sum(bits(np.full_like(frames, scale))[frames == frame]) for scale in (coarse, fine)
        )
        assert own.min() >= fine
        if coarse == COARSEST:
            assert with_coarse > budget
        else:
            assert totals[frame] <= budget
            assert coarse == 1 or with_fine > budget
