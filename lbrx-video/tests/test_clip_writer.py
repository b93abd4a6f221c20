"""Writing clips: round trips, color metadata, audio tracks, and files that appear when complete."""

from __future__ import annotations

import math
from fractions import Fraction

import av
import numpy as np
import pytest
from clip_files import HEIGHT, WIDTH, frame_of, source_frames, write_clip
from seeds import generator

import lbrx
import lbrx.video
from lbrx_video.color import Color, assumed_matrix

FRAMES = 4


def picture(channels=3):
    """Smooth frames, as (frames, channels, height, width)."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    phases = generator(19).uniform(0, 6, (FRAMES, channels, 2, 1, 1))
    waves = np.sin(x / 17 + phases[:, :, 0]) * np.sin(y / 13 + phases[:, :, 1])
    return (0.5 + 0.4 * waves).astype(np.float32)


def decibels(a, b):
    return -10 * np.log10(((a.astype(float) - b.astype(float)) ** 2).mean())


def read(path, **given):
    with lbrx.video.open(path) as clip:
        return np.concatenate([b.numpy() for b in clip.batches(4, device="cpu", **given)])


def write(path, frames, device="cpu", rate=24, **given):
    with lbrx.video.writer(path, rate=rate, **given) as out:
        out.write(lbrx.tensor(frames, device=device))


@pytest.mark.parametrize(
    ("file", "codec", "profile", "form", "least"),
    [
        ("a.mov", "prores", "4444", "yuv444p12le", 45),
        ("b.mov", "prores", "proxy", "yuv422p10le", 35),
        ("c.mov", "prores", "hq", "yuv422p10le", 45),
        ("d.mp4", "h264", None, "yuv420p", 35),
        ("e.mp4", "hevc", None, "yuv420p10le", 35),
        ("f.mkv", "ffv1", None, "yuv444p16le", 80),
        ("g.mkv", "h264", "high422", "yuv422p10le", 35),
    ],
)
def test_round_trip(tmp_path, file, codec, profile, form, least):
    x = picture()
    write(tmp_path / file, x, codec=codec, profile=profile)
    with lbrx.video.open(tmp_path / file) as clip:
        assert (clip.facts.codec, clip.facts.pixel_format) == (codec, form)
        assert (clip.size, clip.rate) == ((HEIGHT, WIDTH), 24)
    back = read(tmp_path / file)
    assert back.shape == x.shape
    assert decibels(x, back) > least


def test_round_trip_of_a_test_source_by_kernels(tmp_path):
    """FFmpeg's gradients as RGB, to ProRes 4444 on metal, and back."""
    source = source_frames(FRAMES, "rgb24", "gradients")
    frames = np.stack([frame.to_ndarray(format="rgb24") for frame in source])
    x = (frames / 255).astype(np.float32)
    write(tmp_path / "a.mov", x, profile="4444", layout="NHWC", device="metal")
    with lbrx.video.open(tmp_path / "a.mov") as clip:
        (back,) = clip.batches(FRAMES, layout="NHWC", device="metal")
    assert decibels(x, back.numpy()) > 45


def test_alpha(tmp_path):
    x = picture(4)
    write(tmp_path / "a.mov", x, profile="4444", alpha=True)
    with lbrx.video.open(tmp_path / "a.mov") as clip:
        assert clip.facts.pixel_format == "yuva444p12le"
    back = read(tmp_path / "a.mov", alpha=True)
    assert decibels(x, back) > 45
    assert np.abs(x[:, 3] - back[:, 3]).max() < 2 / 1023


@pytest.mark.parametrize(
    ("profile", "form", "least"), [("hq", "yuv422p10le", 45), ("4444", "yuva444p12le", 50)]
)
def test_encoding_by_kernels(tmp_path, profile, form, least):
    """FFmpeg decodes what the kernels encode. The color is in every frame."""
    alpha = profile == "4444"
    frames, path = picture(3 + alpha), tmp_path / "a.mov"
    write(path, frames, profile=profile, alpha=alpha, encoder="kernels")
    with lbrx.video.open(path, decoder="software") as clip:
        assert (clip.facts.pixel_format, len(clip)) == (form, FRAMES)
        (back,) = clip.batches(FRAMES, alpha=alpha, device="cpu")
    assert decibels(frames, back.numpy()) > least
    with av.open(str(path)) as file:
        frame = next(file.decode(video=0))
    assert (int(frame.colorspace), int(frame.color_primaries), int(frame.color_trc)) == (1, 1, 1)


def test_transfer_functions_are_undone(tmp_path):
    x = picture()
    write(tmp_path / "a.mkv", x, codec="ffv1", transfer="linear")
    assert decibels(x, read(tmp_path / "a.mkv", transfer="linear")) > 80
    coded = read(tmp_path / "a.mkv")
    np.testing.assert_allclose(coded, 1.099297 * x**0.45 - 0.099297, atol=1e-3)


@pytest.mark.parametrize(
    ("file", "codec"), [("a.mov", "prores"), ("b.mp4", "h264"), ("c.mkv", "ffv1")]
)
def test_color_metadata(tmp_path, file, codec):
    color = Color(primaries=9, transfer=16, matrix=9)
    write(tmp_path / file, picture(), codec=codec, color=color)
    with av.open(str(tmp_path / file)) as clip:
        frame = next(clip.decode(video=0))
    found = (frame.color_primaries, frame.color_trc, frame.colorspace, frame.color_range)
    assert tuple(map(int, found)) == (9, 16, 9, 1)
    assert decibels(picture(), read(tmp_path / file)) > 24


UNTAGGED = (2, 2, 2, 0)


def copied(source, target, **given):
    """The frames of a clip, encoded again without a change."""
    with lbrx.video.open(source) as clip, lbrx.video.writer(target, like=clip, **given) as out:
        out.write(clip.frame(0, device="cpu"))
    with av.open(str(target)) as file:
        frame = next(file.decode(video=0))
        codes = (frame.color_primaries, frame.color_trc, frame.colorspace, frame.color_range)
        return tuple(map(int, codes))


@pytest.mark.parametrize(
    ("height", "color", "file", "codec", "tags"),
    [
        (48, UNTAGGED, "b.mov", "prores", (1, 1, 6, 1)),
        (48, UNTAGGED, "b.mp4", "h264", (1, 1, 6, 1)),
        (480, UNTAGGED, "b.mp4", "h264", (6, 1, 6, 1)),
        (576, UNTAGGED, "b.mkv", "ffv1", (5, 1, 6, 1)),
        (720, UNTAGGED, "b.mov", "prores", (1, 1, 1, 1)),
        (48, UNTAGGED, "b.avi", "ffv1", UNTAGGED),
        (48, (1, 1, 1, 1), "b.avi", "ffv1", UNTAGGED),
        (48, (5, 6, 5, 1), "b.mov", "prores", (5, 6, 5, 1)),
        (48, (9, 16, 9, 1), "b.mp4", "h264", (9, 16, 9, 1)),
        (48, (1, 1, 1, 2), "b.mov", "prores", (1, 1, 1, 1)),
        (48, (1, 1, 1, 2), "b.mp4", "h264", (1, 1, 1, 2)),
        (48, (2, 2, 6, 2), "b.mkv", "ffv1", (1, 1, 6, 2)),
    ],
)
def test_copies_keep_colors(tmp_path, height, color, file, codec, tags):
    """Codes and tags of a file mean what those of its source mean, for every reader: what a source
    leaves open is tagged as it was read, where a file can say it."""
    frames = [frame_of((110, 160, 90), "yuv444p", height)]
    source = write_clip(tmp_path / "a.mkv", "ffv1", frames, "yuv444p", color=color)
    profile = "4444" if codec == "prores" else None
    assert copied(source, tmp_path / file, codec=codec, profile=profile) == tags
    x, y = read(source), read(tmp_path / file)
    assert np.abs(x - y).max() < 0.02


def test_a_larger_copy_of_untagged_video(tmp_path):
    """The source's rows decide about the matrix, not those of the copy."""
    source = write_clip(
        tmp_path / "a.mkv", "ffv1", [frame_of((90, 200, 60), "yuv444p")], "yuv444p", color=UNTAGGED
    )
    with (
        lbrx.video.open(source) as clip,
        lbrx.video.writer(tmp_path / "b.mkv", "ffv1", like=clip, size=(720, 64)) as out,
    ):
        out.write(clip.frame(0, size=(720, 64), device="cpu"))
    assert out.color.matrix == assumed_matrix(HEIGHT) == 6
    np.testing.assert_allclose(read(source)[0, :, 0, 0], read(out.path)[0, :, 0, 0], atol=0.005)


@pytest.mark.parametrize("file", ["b.mov", "b.mp4"])
def test_pixels_that_are_not_square(tmp_path, file):
    frames = [frame_of((90, 128, 128), "yuv420p")]
    source = write_clip(tmp_path / "a.mp4", "libx264", frames, "yuv420p", aspect=Fraction(16, 15))
    copied(source, tmp_path / file)
    for path in (source, tmp_path / file):
        with lbrx.video.open(path) as clip:
            assert clip.facts.pixel_aspect == Fraction(16, 15)


@pytest.mark.parametrize(
    ("file", "codec"),
    [("a.mp4", "h264"), ("b.M4V", "h264"), ("c.mov", "prores"), ("d.mkv", "prores")],
)
def test_codec_by_the_ending(tmp_path, file, codec):
    write(tmp_path / file, picture())
    with lbrx.video.open(tmp_path / file) as clip:
        assert clip.facts.codec == codec


def test_like_a_clip_with_its_audio(tmp_path):
    frames = source_frames(24, "yuv422p10le")
    original = write_clip(tmp_path / "a.mov", "prores_ks", frames, "yuv422p10le", audio=True)
    with (
        lbrx.video.open(original) as clip,
        lbrx.video.writer(tmp_path / "b.mov", profile="lt", like=clip) as out,
    ):
        for batch in clip.batches(5, device="cpu"):
            out.write(batch)
    assert out.frames == 24
    with lbrx.video.open(tmp_path / "b.mov") as clip:
        assert (len(clip), clip.rate, clip.facts.profile) == (24, 24, "LT")
        assert len(clip.facts.audio) == 1
    assert samples_of(tmp_path / "b.mov") == samples_of(original)
    with (
        lbrx.video.open(original) as clip,
        lbrx.video.writer(tmp_path / "c.mkv", "ffv1", like=clip, audio=False) as out,
    ):
        out.write(clip.frame(0, device="cpu"))
    with lbrx.video.open(tmp_path / "c.mkv") as clip:
        assert (clip.facts.pixel_format, clip.facts.audio) == ("yuv422p10le", ())


def samples_of(path):
    with av.open(str(path)) as file:
        return b"".join(bytes(packet) for packet in file.demux(audio=0))


def test_files_appear_when_complete(tmp_path):
    path = tmp_path / "a.mov"
    with lbrx.video.writer(path, rate=24) as out:
        out.write(lbrx.tensor(picture(), device="cpu"))
        assert not path.exists()
    complete = path.read_bytes()
    with pytest.raises(ZeroDivisionError), lbrx.video.writer(path, rate=24) as out:
        out.write(lbrx.tensor(picture() * (1 / out.frames), device="cpu"))
    assert path.read_bytes() == complete
    assert [file.name for file in tmp_path.iterdir()] == ["a.mov"]


@pytest.mark.parametrize(
    ("file", "given", "text"),
    [
        ("a.mov", {"codec": "av1"}, "codec='av1': give one of prores, h264, hevc, ffv1"),
        ("a.mov", {"profile": "raw"}, "prores_ks has no profile 'raw': give one of proxy, lt"),
        ("a.mp4", {"codec": "h264", "encoder": "kernels"}, "kernels encode ProRes, not h264: give"),
        ("a.mov", {"encoder": "gpu"}, "encoder='gpu': give one of auto, software, hardware"),
        ("a.mov", {"alpha": True}, "has no alpha in this profile: give alpha=False"),
        ("a.mov", {"layout": "HWC"}, "layout='HWC': give one of NCHW, NHWC"),
        (
            "a.mov",
            {"rate": 0},
            "rate=0: give a number of frames in a second from 1/10000 to 100,000",
        ),
        ("a.mov", {"rate": 9e-5}, "rate=9e-05: give a number"),
        ("a.mov", {"rate": math.inf}, "rate=inf: give a number"),
        ("a.mov", {"rate": 10**400}, "rate=1000.*: give a number"),
        ("a.mov", {"size": (8, 8)}, "with 3 or 4 channels of 8 x 8"),
        ("a.txt", {}, "a.txt: its ending says no container: give one of .mov, .mp4"),
        ("a.mp4", {"codec": "prores"}, "a.mp4: mp4 files cannot hold prores_ks: choose another"),
        (
            "a.mov",
            {"options": {"bits_per_mb": "no"}},
            "a.mov: prores_ks (cannot write this|failed)",
        ),
    ],
)
def test_wrong_arguments(tmp_path, file, given, text):
    with pytest.raises(lbrx.LbrxError, match=text):
        write(tmp_path / file, picture(), **given)
    assert list(tmp_path.iterdir()) == []


def test_writers_need_a_rate_and_frames(tmp_path):
    with pytest.raises(lbrx.LbrxError, match="how many frames in a second"):
        lbrx.video.writer(tmp_path / "a.mov")
    with (
        pytest.raises(lbrx.LbrxError, match="no frame was written"),
        lbrx.video.writer(tmp_path / "a.mov", rate=24),
    ):
        pass
    out = lbrx.video.writer(tmp_path / "a.mov", rate=23.976)
    assert (out.rate.numerator, out.rate.denominator) == (24000, 1001)
    out.abandon()
    with pytest.raises(lbrx.LbrxError, match="the writer is closed"):
        out.write(lbrx.zeros((3, 8, 8)))
    assert list(tmp_path.iterdir()) == []


def test_one_frame_at_a_time_and_flat_colors(tmp_path):
    """A frame without a batch axis; codes of a flat color are those of the formulas."""
    with lbrx.video.writer(tmp_path / "a.mkv", "ffv1", rate=24, size=(HEIGHT, WIDTH)) as out:
        out.write(lbrx.full((3, HEIGHT, WIDTH), 1.0, device="cpu"))
        out.write(np.zeros((3, HEIGHT, WIDTH), np.float32))
    with av.open(str(tmp_path / "a.mkv")) as clip:
        white, black = clip.decode(video=0)
    for frame, luma in ((white, 235 << 8), (black, 16 << 8)):
        wanted = frame_of((luma, 1 << 15, 1 << 15), "yuv444p16le")
        for ours, theirs in zip(frame.planes, wanted.planes, strict=True):
            assert bytes(ours) == bytes(theirs)
