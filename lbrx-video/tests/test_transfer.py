"""Transfer functions against values from their standards, and the kernels against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.arrays import dtype as dt
from lbrx_video.color import BT709
from lbrx_video.conversion import Samples, ToFrames
from lbrx_video.operations import to_frames
from lbrx_video.pixel_formats import find
from lbrx_video.planes import Planes
from lbrx_video.transfer import CODE, LIGHT, check_transfer

# Code and light, from BT.709, BT.1886, IEC 61966-2-1, ST 2084 (100 and 1,000 cd/m2) and BT.2100.
KNOWN = [
    ("bt709", 0.081, 0.018),
    ("bt709", 0.4094, 0.18),
    ("bt1886", 0.5, 0.18946),
    ("srgb", 0.5, 0.21404),
    ("srgb", 0.04045, 0.0031308),
    ("pq", 0.508078, 0.01),
    ("pq", 0.751827, 0.1),
    ("hlg", 0.5, 1 / 12),
    ("hlg", 0.75, 0.26496),
    ("gamma22", 0.5, 0.217638),
    ("gamma28", 0.5, 0.143587),
    ("linear", 0.3, 0.3),
]


@pytest.mark.parametrize(("name", "code", "light"), KNOWN)
def test_values_of_the_standards(name, code, light):
    assert LIGHT[name](np.array(code)) == pytest.approx(light, rel=3e-3)
    assert CODE[name](np.array(light)) == pytest.approx(code, rel=3e-3)


@pytest.mark.parametrize("name", LIGHT)
def test_both_directions_are_inverse(name):
    codes = np.linspace(0 if name == "pq" else -0.2, 1, 500)
    np.testing.assert_allclose(CODE[name](LIGHT[name](codes)), codes, atol=2e-5)


KERNELS = [pytest.param(n, marks=() if n in ("pq", "bt709") else pytest.mark.full) for n in LIGHT]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name):
    """A ramp of all codes, to light and back to another function."""
    form, width = find("gray16le"), 2048
    codes = np.linspace(0, 65535, width).astype(np.uint16)
    planes = Planes((lbrx.tensor(codes.reshape(1, 1, -1)),), form, 1, width, BT709)
    samples = Samples(form, 1, width, "bt709", False, "left")
    what = ToFrames(
        *(samples, (0, 0, 1, width), (1, width), "bilinear", True),
        *(name, "srgb", False, (1.0,) * 3, (0.0,) * 3, False, "NCHW", dt.float32),
    )
    made = to_frames(planes, what).numpy()[0, 0, 0]
    values = (codes.astype(float) - 4096) / (219 * 256)
    np.testing.assert_allclose(made, CODE["srgb"](LIGHT[name](values)), rtol=2e-5, atol=2e-6)


def test_unknown_names():
    with pytest.raises(lbrx.LbrxError, match="transfer='rec709': give one of linear, bt709"):
        check_transfer("rec709")
