"""Planes to RGB and back, against formulas in float64 and against FFmpeg's scaler."""

from __future__ import annotations

import av
import color_oracle as oracle
import numpy as np
import pytest
from clip_files import frame_of
from seeds import derived, generator

import lbrx
import softmetal
from lbrx.arrays import dtype as dt
from lbrx_video.color import BT709
from lbrx_video.conversion import Samples, ToFrames, ToPlanes
from lbrx_video.ffmpeg import plane_view
from lbrx_video.operations import to_frames, to_planes
from lbrx_video.pixel_formats import FORMATS, ColorModel, find
from lbrx_video.planes import Planes

HEIGHT, WIDTH = 19, 37
CODE = 1.0  # of the format, the tolerance for results
PLANAR = ["yuv422p10le", "yuv420p", "yuv444p12le", "yuv440p10le", "yuv422p16le", "yuv411p"]
SAMPLE = [("p210le", "serial"), ("yuva444p12le", "threads"), ("rgb48le", "serial")]
SWEEP = pytest.mark.full


def conversion(form, *, height=HEIGHT, width=WIDTH, **given):
    channels = 3 + given.get("alpha", False)
    values = {
        "box": (0, 0, height, width),
        "size": (height, width),
        "filter": "bilinear",
        "antialias": True,
        "light": None,
        "code": None,
        "clip": False,
        "scale": (1.0,) * channels,
        "offset": (0.0,) * channels,
        "alpha": False,
        "layout": "NCHW",
        "dtype": dt.float32,
    }
    samples = Samples(
        *(find(form), height, width, given.pop("matrix", "bt709")),
        *(given.pop("full", False), given.pop("siting", "left")),
    )
    return ToFrames(samples, **{**values, **given})


def random_codes(form, rng, frames=2, height=HEIGHT, width=WIDTH):
    """Codes of each component at its own resolution."""
    return [
        rng.integers(0, 2**form.depth, (frames, *form.component_shape(i, height, width)))
        for i in range(len(form.components))
    ]


def packed(form, codes, device, height=HEIGHT, width=WIDTH):
    arrays = [
        np.zeros((len(codes[0]), *form.plane_shape(i, height, width)), form.dtype.numpy)
        for i in range(form.planes)
    ]
    for place, values in zip(form.components, codes, strict=True):
        target = arrays[place.plane][..., place.offset :: place.step]
        target[..., : values.shape[-1]] = values << place.shift
    tensors = tuple(lbrx.tensor(x, device=device) for x in arrays)
    return Planes(tensors, form, height, width, BT709)


def expected(form, codes, matrix, full, siting):
    steps = (1 << form.vertical, 1 << form.horizontal)
    frames = []
    for y, cb, cr in zip(*codes[:3], strict=True):
        cb, cr = (oracle.upsampled(c, *y.shape, steps, siting) for c in (cb, cr))
        frames.append(oracle.rgb(y, cb, cr, form.depth, matrix, full))
    return np.stack(frames)


DEFAULT = {("cpu", name) for name in PLANAR} | {("metal", "yuv422p10le"), ("metal", "yuv420p")}


@pytest.mark.parametrize(
    ("device", "name"),
    [
        pytest.param(device, name, marks=() if (device, name) in DEFAULT else SWEEP)
        for device in ("cpu", "metal")
        for name in PLANAR
    ],
)
def test_matrices_ranges_and_siting(device, name):
    form, rng = find(name), generator(derived(name))
    codes = random_codes(form, rng)
    planes = packed(form, codes, device)
    for matrix in oracle.WEIGHTS:
        for full in (False, True):
            for siting in oracle.PLACES:
                what = conversion(name, matrix=matrix, full=full, siting=siting)
                wanted = expected(form, codes, matrix, full, siting)
                error = np.abs(to_frames(planes, what).numpy() - wanted).max()
                assert error < 1e-5, (matrix, full, siting)
                assert error * 2**form.depth < CODE


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(name, variant, marks=() if (name, variant) in SAMPLE else SWEEP)
        for name in FORMATS
        for variant in ("serial", "threads")
    ],
)
def test_every_format(name, variant):
    """Alpha too. The places of components are compared with FFmpeg's by the test below."""
    form, rng = find(name), generator(derived(name))
    codes = random_codes(form, rng)
    with lbrx.kernels.forced(video_frames=variant):
        what = conversion(name, alpha=form.alpha, layout="NHWC", full=form.full_range)
        made = to_frames(packed(form, codes, "metal"), what).numpy()
    made = np.moveaxis(made, -1, 1)
    unit = 2.0 ** (form.depth - 8)
    if form.model is ColorModel.YUV:
        wanted = expected(form, codes, "bt709", form.full_range, "left")
    else:
        color = codes[:3] if form.model is ColorModel.RGB else codes[:1] * 3
        wanted = (np.stack(color, axis=1) - 16 * unit) / (219 * unit)
        if form.full_range:
            wanted = np.stack(color, axis=1) / (2.0**form.depth - 1)
    np.testing.assert_allclose(made[:, :3], wanted, rtol=0, atol=1e-5)
    if form.alpha:
        np.testing.assert_allclose(made[:, 3], codes[3] / (2**form.depth - 1), atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_components_are_where_ffmpeg_puts_them(name):
    """A flat color, converted to each format by FFmpeg."""
    form = find(name)
    if form.model is ColorModel.RGB:
        source = frame_of((100, 40, 200), "gbrp")
        matrix, full, wanted = "rgb", True, np.array([200, 100, 40]) / 255
    else:
        source = frame_of((60, 200, 90), "yuv444p")
        matrix, full = "bt709", form.full_range
        wanted = oracle.rgb(*(np.array(float(c)) for c in (60, 200, 90)), 8, matrix, False)
        if form.model is ColorModel.GRAY:
            wanted = np.full(3, (60 - 16) / 219)
    source.color_range = 2 if form.model is ColorModel.RGB else 1
    made = source.reformat(format=name, dst_color_range=2 if full else 1)
    arrays = [
        plane_view(plane, np.empty(form.plane_shape(i, 48, 64), form.dtype.numpy))[None]
        for i, plane in enumerate(made.planes)
    ]
    tensors = tuple(lbrx.tensor(x, device="cpu") for x in arrays)
    planes = Planes(tensors, form, 48, 64, BT709)
    what = conversion(name, height=48, width=64, matrix=matrix, full=full, alpha=form.alpha)
    found = to_frames(planes, what).numpy()
    np.testing.assert_allclose(found[0, :3, 20, 20], wanted, rtol=0, atol=2.5 / 255)
    if form.alpha:
        assert found[0, 3].min() > 0.99


@pytest.mark.parametrize("filter", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(7, 11), (19, 37), (40, 90), (5, 80)])
def test_resizing(filter, size):
    """Every plane is resampled from its own grid. With 4:4:4 that is resizing RGB."""
    form, rng = find("yuv444p12le"), generator(derived(filter))
    codes = random_codes(form, rng)
    for antialias in (True, False):
        what = conversion(form.name, size=size, filter=filter, antialias=antialias)
        made = to_frames(packed(form, codes, "metal"), what).numpy()
        values = expected(form, codes, "bt709", False, "left")
        across = oracle.resized(values, size[1], filter, antialias)
        wanted = oracle.resized(across.swapaxes(-1, -2), size[0], filter, antialias)
        np.testing.assert_allclose(made, wanted.swapaxes(-1, -2), rtol=0, atol=3e-5)


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_crop_is_part_of_the_picture(device):
    """Chroma keeps its place where the crop starts between its samples."""
    form, rng = find("yuv422p10le"), generator(derived("crop"))
    codes = random_codes(form, rng)
    planes = packed(form, codes, device)
    whole = to_frames(planes, conversion(form.name)).numpy()
    for top, left, height, width in [(0, 0, 19, 37), (3, 5, 10, 20), (4, 6, 15, 31)]:
        what = conversion(form.name, box=(top, left, height, width), size=(height, width))
        part = whole[:, :, top : top + height, left : left + width]
        np.testing.assert_allclose(to_frames(planes, what).numpy(), part, atol=1e-6)


@pytest.mark.parametrize("variant", ["serial", pytest.param("threads", marks=SWEEP)])
def test_memory_and_order(variant):
    """Both directions touch no memory outside of their buffers, at sizes that end within a run."""
    form, rng = find("yuv422p10le"), generator(derived("memory"))
    codes = random_codes(form, rng, 1, 5, 301)
    samples = Samples(form, 5, 301, "bt709", False, "left")
    # The first conversion registers the families that are forced below.
    to_frames(packed(form, codes, "metal", 5, 301), conversion(form.name, height=5, width=301))
    with (
        softmetal.checking("bounds", "race"),
        lbrx.kernels.forced(video_frames=variant, video_planes=variant),
    ):
        planes = packed(form, codes, "metal", 5, 301)
        frames = to_frames(planes, conversion(form.name, height=5, width=301)).numpy()
        back = to_planes(lbrx.tensor(frames), ToPlanes(samples, None, None, "NCHW"), BT709)
        luma = back.tensors[0].numpy()
    np.testing.assert_allclose(frames, expected(form, codes, "bt709", False, "left"), atol=1e-5)
    assert np.abs(luma.astype(int) - codes[0]).max() <= 1


def test_large_reductions_use_the_other_variant():
    """So many samples make a pixel that they do not fit a thread's memory."""
    form, rng = find("yuv422p10le"), generator(derived("large"))
    codes = random_codes(form, rng, 1, 4, 3000)
    planes = packed(form, codes, "metal", 4, 3000)
    what = conversion(form.name, height=4, width=3000, size=(2, 2), filter="lanczos")
    made = to_frames(planes, what).numpy()
    values = expected(form, codes, "bt709", False, "left")
    assert made.shape == (1, 3, 2, 2)
    np.testing.assert_allclose(made.mean(), values.mean(), atol=0.05)


def test_clipping_normalising_and_types():
    form, rng = find("yuv422p10le"), generator(derived("types"))
    codes = random_codes(form, rng)
    planes = packed(form, codes, "metal")
    values = expected(form, codes, "bt709", False, "left")
    what = conversion(
        form.name, clip=True, scale=(2.0, 4.0, 5.0), offset=(-1.0, 0.5, 0.0), dtype=dt.float16
    )
    made = to_frames(planes, what)
    assert made.dtype is dt.float16
    wanted = np.clip(values, 0, 1) * np.array([2, 4, 5])[:, None, None]
    wanted += np.array([-1, 0.5, 0])[:, None, None]
    np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-3, atol=1e-3)
    assert values.max() > 1
    with pytest.raises(lbrx.DtypeError, match="frames are floats, not uint8: give float32"):
        conversion(form.name, dtype=dt.uint8)
    with pytest.raises(lbrx.ShapeError, match="is not inside 19 x 37: give"):
        conversion(form.name, box=(10, 0, 10, 37))


def test_as_ffmpeg_converts_8_bits():
    """FFmpeg's scaler interpolates left-sited chroma only when it is told so."""
    rng = generator(derived("ffmpeg"))
    smooth = np.cumsum(rng.integers(-3, 4, (3, 48, 64)), axis=2) + 512
    codes = [smooth[0], smooth[1, :, ::2], smooth[2, :, ::2]]
    frame = frame_of(codes, "yuv422p10le")
    frame.colorspace = frame.color_range = 1
    graph = av.filter.Graph()
    source = graph.add_buffer(width=64, height=48, format=frame.format, time_base=1)
    options = "in_chroma_loc=left:in_color_matrix=bt709:flags=bilinear+full_chroma_int+accurate_rnd"
    nodes = [source, graph.add("scale", options), graph.add("format", "pix_fmts=rgb24")]
    graph.link_nodes(*nodes, graph.add("buffersink")).configure()
    graph.push(frame)
    theirs = graph.pull().to_ndarray().astype(float)
    form = find("yuv422p10le")
    planes = packed(form, [c[None] for c in codes], "metal", 48, 64)
    what = conversion(form.name, height=48, width=64, clip=True, layout="NHWC")
    assert np.abs(to_frames(planes, what).numpy()[0] * 255 - theirs).max() < 1


# ---- the other way ----


@pytest.mark.parametrize("variant", ["serial", pytest.param("threads", marks=SWEEP)])
@pytest.mark.parametrize(
    ("name", "layout", "dtype"),
    [
        ("yuv422p10le", "NCHW", "float32"),
        ("yuv420p", "NHWC", "float16"),
        pytest.param("yuv420p10le", "NCHW", "float32", marks=SWEEP),
        pytest.param("p210le", "NCHW", "float32", marks=SWEEP),
        pytest.param("gbrp12le", "NCHW", "float32", marks=SWEEP),
        pytest.param("yuv444p16le", "NCHW", "bfloat16", marks=SWEEP),
    ],
)
def test_planes_within_a_code(name, layout, dtype, variant):
    form, rng = find(name), generator(derived(name))
    x = lbrx.tensor(rng.uniform(-0.1, 1.1, (2, 3, HEIGHT, WIDTH)), dtype=dtype, device="metal")
    values = x.astype("float32").numpy().astype(float)
    given = x if layout == "NCHW" else x.transpose(0, 2, 3, 1).contiguous()
    for matrix, full, siting in [
        ("bt709", False, "left"),
        ("bt2020", True, "topleft"),
        ("bt601", False, "center"),
    ]:
        what = ToPlanes(Samples(form, HEIGHT, WIDTH, matrix, full, siting), None, None, layout)
        with lbrx.kernels.forced(video_planes=variant):
            planes = to_planes(given, what, BT709)
        for component, wanted in enumerate(_codes(form, values, matrix, full, siting)):
            place = form.components[component]
            found = planes.tensors[place.plane].numpy()[..., place.offset :: place.step]
            found = found[..., : wanted.shape[-1]] >> place.shift
            difference = np.abs(found - np.clip(wanted, 0, 2**form.depth - 1))
            assert difference.max() <= 0.5 + 1e-2, (matrix, full, siting, component)


def _codes(form, values, matrix, full, siting):
    """Codes that are not rounded: chroma is a triangle of twice its step around its place."""
    unit, top = 2.0 ** (form.depth - 8), 2.0**form.depth - 1
    if form.model is ColorModel.RGB:
        span = (0, top) if full else (16 * unit, 219 * unit)
        return [span[0] + values[:, i] * span[1] for i in range(3)]
    kr, kb = oracle.WEIGHTS[matrix]
    red, green, blue = values.swapaxes(0, 1)
    y = kr * red + (1 - kr - kb) * green + kb * blue
    cb, cr = (blue - y) / (2 * (1 - kb)), (red - y) / (2 * (1 - kr))
    if full:
        y, cb, cr = y * top, cb * top + 128 * unit, cr * top + 128 * unit
    else:
        y, cb, cr = (219 * y + 16) * unit, (224 * cb + 128) * unit, (224 * cr + 128) * unit
    across, down = oracle.PLACES[siting]
    for shift, place in ((form.horizontal, across), (form.vertical, down)):
        cb, cr = (_halved(c, shift, place).swapaxes(-1, -2) for c in (cb, cr))
    return [y, cb, cr]


def _halved(values, shift, place):
    if not shift:
        return values
    length, step = values.shape[-1], 1 << shift
    made = []
    for k in range(-(-length // step)):
        at = k * step + place * (step - 1)
        weights = np.maximum(1 - np.abs(np.arange(length) - at) / step, 0)
        made.append(values @ (weights / weights.sum()))
    return np.stack(made, axis=-1)


def test_alpha_goes_both_ways():
    form, rng = find("yuva444p10le"), generator(derived("alpha"))
    x = rng.uniform(0, 1, (1, 4, HEIGHT, WIDTH)).astype(np.float32)
    samples = Samples(form, HEIGHT, WIDTH, "bt709", False, "left")
    planes = to_planes(lbrx.tensor(x), ToPlanes(samples, None, None, "NCHW"), BT709)
    back = to_frames(planes, conversion(form.name, alpha=True)).numpy()
    np.testing.assert_allclose(back, x, rtol=0, atol=2 / 876)
    np.testing.assert_allclose(back[:, 3], x[:, 3], rtol=0, atol=0.51 / 1023)


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "text"),
    [
        ((3, 19, 37), "float32", lbrx.ShapeError, r"give \(frames, channels, height, width\)"),
        ((1, 2, 19, 37), "float32", lbrx.ShapeError, "with 3 or 4 channels of 19 x 37"),
        ((1, 3, 19, 38), "float32", lbrx.ShapeError, "with 3 or 4 channels of 19 x 37"),
        ((1, 3, 19, 37), "uint8", lbrx.DtypeError, "frames are uint8: give floats"),
    ],
)
def test_frames_that_cannot_be_planes(shape, dtype, error, text):
    samples = Samples(find("yuv420p"), HEIGHT, WIDTH, "bt709", False, "left")
    with pytest.raises(error, match=text):
        to_planes(lbrx.zeros(shape, dtype=dtype), ToPlanes(samples, None, None, "NCHW"), BT709)
