"""Elementwise operations after a conversion become part of its kernel, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from seeds import derived, generator
from test_conversion import conversion, packed, random_codes

import lbrx
from lbrx.arrays import dtype as dt
from lbrx_video.operations import to_frames
from lbrx_video.pixel_formats import find


def frames_of(dtype=dt.float32, layout="NCHW"):
    form = find("yuv422p10le")
    planes = packed(form, random_codes(form, generator(derived("fusion"))), "metal")
    return to_frames(planes, conversion(form.name, dtype=dtype, layout=layout))


def dispatches(*tensors):
    before = lbrx.metal.stats()["dispatches"]
    lbrx.eval(*tensors)
    return lbrx.metal.stats()["dispatches"] - before


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        (dt.float16, "NCHW"),
        (dt.float32, "NHWC"),
        pytest.param(dt.bfloat16, "NCHW", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("variant", ["serial", pytest.param("threads", marks=pytest.mark.full)])
def test_scale_and_bias_are_part_of_the_kernel(dtype, layout, variant):
    shape = (3, 1, 1) if layout == "NCHW" else (3,)
    bias = lbrx.tensor(np.array([0.1, -0.2, 0.3], np.float32).reshape(shape))
    lbrx.eval(bias)
    with lbrx.kernels.forced(video_frames=variant):
        frames = frames_of(dtype, layout)
        fused = frames * 1.7 + bias
        assert "fused_video_frames_multiply_add" in str(lbrx.explain(fused))
        assert dispatches(fused) == 1
        separate = frames_of(dtype, layout)
        lbrx.eval(separate)
        scaled = separate * 1.7
        lbrx.eval(scaled)
        np.testing.assert_array_equal(fused.numpy(), (scaled + bias).numpy())


def test_images_as_operands():
    """One of the frames' shape, one with a stride, and a comparison."""
    rng = generator(derived("images"))
    image = lbrx.tensor(rng.random((2, 3, 19, 37), np.float32))
    turned = lbrx.tensor(rng.random((37, 19), np.float32)).T
    lbrx.eval(image, turned)
    frames = frames_of()
    fused = lbrx.where(frames > 0.5, frames * image, turned)
    assert dispatches(fused) == 1
    values = frames_of().numpy()
    wanted = np.where(values > 0.5, values * image.numpy(), turned.numpy())
    np.testing.assert_array_equal(fused.numpy(), wanted)


def test_frames_that_others_need_are_stored():
    frames = frames_of()
    half, total = frames * 0.5, frames.sum()
    lbrx.eval(half, total, frames)
    values = frames_of().numpy()
    np.testing.assert_array_equal(frames.numpy(), values)
    np.testing.assert_array_equal(half.numpy(), values * np.float32(0.5))
    assert total.item() == pytest.approx(values.astype(float).sum(), rel=1e-5)


def test_another_order_of_pixels_is_not_fused():
    frames = frames_of()
    turned = frames.transpose(0, 2, 3, 1) * 2.0
    np.testing.assert_array_equal(
        turned.numpy(), np.moveaxis(frames_of().numpy(), 1, -1) * np.float32(2)
    )


def test_compiled_functions_replay_conversions():
    form = find("yuv422p10le")
    graded = lbrx.compile(lambda y, cb, cr: lbrx.apply("video_frames", y, cb, cr, what=what) * 2.0)
    what = conversion(form.name)
    for seed in "ab":
        planes = packed(form, random_codes(form, generator(derived(seed))), "metal")
        wanted = to_frames(planes, what).numpy() * np.float32(2)
        np.testing.assert_array_equal(graded(*planes.tensors).numpy(), wanted)
