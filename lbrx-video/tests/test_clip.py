"""Reading clips: facts, ranges, exact seeking, prefetching and damaged files."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from fractions import Fraction

import av
import color_oracle as oracle
import numpy as np
import pytest
from clip_files import HEIGHT, WIDTH, decoded_planes, frame_of, source_frames, write_clip

import lbrx
import lbrx.video
from lbrx_video.prefetch import Prefetched

CLIPS = {
    "prores": ("a.mov", "prores_ks", "yuv422p10le", {"profile": "3"}),
    "h264": ("b.mp4", "libx264", "yuv420p", {"g": "12", "bf": "3", "crf": "10"}),
    "open_gop": ("c.mkv", "libx264", "yuv420p", {"x264-params": "keyint=8:open-gop=1:bframes=3"}),
    "ffv1": ("d.mkv", "ffv1", "yuv422p10le", {}),
}
COUNT = 30


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    return {
        name: write_clip(
            *(folder / file, codec, source_frames(COUNT, form), form),
            options=options,
            audio=name == "prores",
            faststart=file.endswith(("mov", "mp4")),
        )
        for name, (file, codec, form, options) in CLIPS.items()
    }


def read(opened, frames=4, *place, **given):
    """All frames of a range. The cpu computes the definition, and no kernel is compiled."""
    return np.concatenate(
        [b.numpy() for b in opened.batches(frames, *place, device="cpu", **given)]
    )


def expected(path, depth):
    frames = []
    for y, cb, cr in decoded_planes(path):
        steps = (y.shape[0] // cb.shape[0], y.shape[1] // cb.shape[1])
        cb, cr = (oracle.upsampled(c.astype(float), *y.shape, steps, "left") for c in (cb, cr))
        frames.append(oracle.rgb(y.astype(float), cb, cr, depth, "bt709", False))
    return np.stack(frames)


def test_facts(clips):
    with lbrx.video.open(clips["prores"]) as clip:
        facts = clip.facts
        assert (facts.codec, facts.profile, facts.tag) == ("prores", "HQ", "apch")
        assert (clip.size, clip.rate, len(clip)) == ((HEIGHT, WIDTH), Fraction(24), COUNT)
        assert (facts.pixel_format, facts.depth, facts.interlaced) == ("yuv422p10le", 10, False)
        assert facts.duration == Fraction(COUNT, 24)
        assert (facts.color.matrix_name, facts.color.transfer_name) == ("bt709", "bt709")
        assert [(a.codec, a.rate, a.channels) for a in facts.audio] == [("pcm_s16le", 8000, 1)]
        assert str(facts.color).startswith("matrix bt709, transfer bt709, primaries bt709, limited")
    with lbrx.video.open(clips["ffv1"]) as clip:
        assert (clip.facts.frames, len(clip)) == (None, COUNT)


@pytest.mark.parametrize(("name", "depth"), [("prores", 10), ("h264", 8), ("ffv1", 10)])
def test_frames_are_what_ffmpeg_decodes(clips, name, depth):
    with lbrx.video.open(clips[name]) as clip:
        frames = read(clip, 7)
    assert frames.shape == (COUNT, 3, HEIGHT, WIDTH)
    np.testing.assert_allclose(frames, expected(clips[name], depth), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CLIPS)
def test_seeking_is_exact(clips, name):
    with lbrx.video.open(clips[name]) as clip:
        whole = read(clip)
        for number in (29, 0, 13, 7, 8, 9, 23, 1, 16):
            np.testing.assert_array_equal(clip.frame(number, device="cpu").numpy(), whole[number])
        for start, stop, step in [(5, 20, 1), (0, 30, 7), (11, None, 3), (3, 4, 1), (26, 99, 2)]:
            np.testing.assert_array_equal(read(clip, 4, start, stop, step), whole[start:stop:step])
        np.testing.assert_array_equal(read(clip, 4, -3), whole[-3:])
        np.testing.assert_array_equal(read(clip, 4, 0.5, 1.0), whole[12:24])
        np.testing.assert_array_equal(read(clip, 4, Fraction(13, 24)), whole[13:])
        np.testing.assert_array_equal(clip.frame(0.52, device="cpu").numpy(), whole[12])
        assert list(clip.batches(4, 30)) == []
        with pytest.raises(IndexError, match="there is no frame 30: it has 30"):
            clip.frame(30)


def test_one_frame_by_any_place(clips):
    with lbrx.video.open(clips["prores"]) as clip:
        whole = read(clip)
        for place, number in (
            *((-1, 29), (-30, 0), (np.int64(3), 3), (np.float32(0.5), 12), (0.0, 0)),
            *((Fraction(29, 24), 29), (30 / 24, 29)),
        ):
            np.testing.assert_array_equal(clip.frame(place, device="cpu").numpy(), whole[number])
        for place in (-31, -0.1, 1.3, 99.0):
            with pytest.raises(IndexError, match=f"there is no frame (at )?{place}"):
                clip.frame(place)
        for place in ("3", None, math.nan):
            with pytest.raises(TypeError, match=f"frame={place!r}: give a frame as an integer"):
                clip.frame(place)


def test_options_of_a_conversion(clips):
    with lbrx.video.open(clips["prores"]) as clip:
        assert read(clip, 8, 0, 8, size=(12, 20)).shape == (8, 3, 12, 20)
        assert read(clip, 8, 0, 1, crop=(4, 6, 10, 20), layout="NHWC").shape == (1, 10, 20, 3)
        plain = read(clip, 8, 0, 2).astype(float)
        normal = read(clip, 8, 0, 2, mean=(0.5, 0.4, 0.3), std=(0.2, 0.5, 2.0), alpha=False)
        wanted = (plain - np.array([0.5, 0.4, 0.3])[:, None, None]) / np.array([0.2, 0.5, 2])[
            :, None, None
        ]
        np.testing.assert_allclose(normal, wanted, rtol=1e-4, atol=1e-5)
        rgba = read(clip, 8, 0, 1, alpha=True)
        assert (rgba[:, 3] == 1).all()
        linear = read(clip, 8, 0, 1, transfer="linear", clip=True)
        np.testing.assert_allclose(
            linear[0, 0, 20, 30],
            ((np.clip(plain[0, 0, 20, 30], 0, 1) + 0.0993) / 1.0993) ** (1 / 0.45),
            rtol=1e-3,
        )
        (batch,) = clip.batches(2, 0, 2, dtype="float16", size=(8, 8))
        assert (batch.device, batch.dtype) == (lbrx.default_device(), lbrx.float16)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"size": (1, 2, 3)}, lbrx.ShapeError, r"size=\(1, 2, 3\): give 2 numbers"),
        ({"size": (0, 2)}, lbrx.ShapeError, "give a height and a width from 1 on"),
        ({"crop": (0, 0, 90, 9)}, lbrx.ShapeError, "is not inside 48 x 64"),
        ({"filter": "area"}, lbrx.LbrxError, "filter='area': give one of nearest, bilinear"),
        ({"layout": "CNHW"}, lbrx.LbrxError, "layout='CNHW': give one of NCHW, NHWC"),
        ({"std": (1, 0, 1)}, lbrx.LbrxError, "give values other than 0"),
        ({"mean": (1, 0)}, lbrx.ShapeError, r"mean=\(1, 0\): give 3 numbers"),
        ({"step": 0}, lbrx.ShapeError, "step=0: give 1 or more"),
        ({"start": -31}, lbrx.LbrxError, "start=-31: .*a.mov has 30 frames"),
        ({"start": -0.5}, lbrx.LbrxError, "start=-0.5 seconds: give 0 or more"),
        ({"dtype": "int32"}, lbrx.DtypeError, "frames are floats, not int32"),
    ],
)
def test_wrong_arguments(clips, given, error, text):
    with lbrx.video.open(clips["prores"]) as clip, pytest.raises(error, match=text):
        list(clip.batches(4, device="cpu", **given))


# ---- damaged and unusual files ----


@pytest.mark.parametrize(("name", "least"), [("prores", 10), ("ffv1", 10), ("open_gop", 3)])
def test_truncated_files_give_what_they_have(clips, tmp_path, name, least):
    data = clips[name].read_bytes()
    path = tmp_path / clips[name].name
    path.write_bytes(data[: len(data) * 6 // 10])
    with lbrx.video.open(clips[name]) as clip:
        whole = read(clip)
    with lbrx.video.open(path) as clip:
        found, problem = before_the_error(clip)
    frames = np.concatenate(found)
    assert least <= len(frames) < COUNT
    np.testing.assert_array_equal(frames, whole[: len(frames)])
    assert str(path) in problem
    assert "video stream 0" in problem
    assert "copy the file again" in problem


def before_the_error(clip, device="cpu"):
    """The batches of a damaged clip, and the text of the error that follows."""
    found = []
    try:
        for batch in clip.batches(4, device=device):
            found.append(batch.numpy())  # noqa: PERF401 - those before the error are kept
    except lbrx.FormatError as problem:
        return found, str(problem)
    pytest.fail("the file was read in silence")


def test_files_that_are_not_videos(tmp_path):
    text = tmp_path / "notes.mov"
    text.write_text("nothing")
    with pytest.raises(lbrx.FormatError, match=r"notes.mov: it cannot be opened as a video: "):
        lbrx.video.open(text)
    with pytest.raises(FileNotFoundError, match="missing"):
        lbrx.video.open(tmp_path / "missing.mov")
    sound = tmp_path / "sound.wav"
    with av.open(str(sound), "w") as file:
        stream = file.add_stream("pcm_s16le", rate=8000, layout="mono")
        block = av.AudioFrame.from_ndarray(np.zeros((1, 100), np.int16), "s16", "mono")
        block.sample_rate = 8000
        file.mux(stream.encode(block))
    with pytest.raises(lbrx.FormatError, match="it has no video stream, only audio: give a video"):
        lbrx.video.open(sound)


def test_without_pyav():
    """The error names it. The record of planes does not need it."""
    code = (
        "import sys; sys.modules['av'] = None\nimport lbrx\nlbrx.video.Planes\nlbrx.video.open('a')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "LbrxError: video needs PyAV" in done.stderr
    assert done.stderr.endswith(": pip install av\n")


def test_wrong_streams_and_decoders(clips):
    with pytest.raises(lbrx.FormatError, match="there is no video stream 1: give 0 to 0"):
        lbrx.video.open(clips["prores"], stream=1)
    with pytest.raises(lbrx.LbrxError, match="decoder='gpu': give one of auto, hardware"):
        lbrx.video.open(clips["prores"], decoder="gpu")


def test_size_that_changes_in_the_middle(tmp_path):
    """Two streams of H.264, one after the other."""
    path = tmp_path / "changed.h264"
    parts = []
    for width in (WIDTH, 2 * WIDTH):
        part = tmp_path / f"{width}.h264"
        with av.open(str(part), "w", format="h264") as file:
            stream = file.add_stream("libx264", rate=24)
            stream.width, stream.height, stream.pix_fmt = width, HEIGHT, "yuv420p"
            for _ in range(6):
                file.mux(stream.encode(frame_of((100, 128, 128), "yuv420p", HEIGHT, width)))
            file.mux(stream.encode())
        parts.append(part.read_bytes())
    path.write_bytes(b"".join(parts))
    with lbrx.video.open(path) as clip:
        found, problem = before_the_error(clip)
    assert "frame 6 of video stream 0 is 128 x 48 yuv420p, and those before it 64 x 48" in problem
    assert [len(batch) for batch in found] == [4, 2]


def test_unknown_pixel_format(tmp_path):
    path = tmp_path / "bits.mov"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("png", rate=24)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "monob"
        file.mux(stream.encode(av.VideoFrame(WIDTH, HEIGHT, "monob")))
        file.mux(stream.encode())
    wanted = r"bits.mov: video stream 0: pixel format 'monob' is not one that lbrx reads: convert"
    with lbrx.video.open(path) as clip, pytest.raises(lbrx.FormatError, match=wanted):
        list(clip.batches(1, device="cpu"))


def test_decoding_by_kernels(clips, tmp_path):
    """The same frames, ranges and errors as by FFmpeg."""
    with (
        lbrx.video.open(clips["prores"], decoder="kernels") as ours,
        lbrx.video.open(clips["prores"], decoder="software") as theirs,
    ):
        for place in [(0, None, 1), (5, 20, 1), (3, None, 4), (0.5, 1.0, 1)]:
            ours_frames = [b.numpy() for b in ours.batches(7, *place, device="metal")]
            theirs_frames = [b.numpy() for b in theirs.batches(7, *place, device="metal")]
            np.testing.assert_array_equal(
                np.concatenate(ours_frames), np.concatenate(theirs_frames)
            )
        with pytest.raises(lbrx.LbrxError, match="kernels decode on metal, not on 'cpu'"):
            list(ours.batches(1, device="cpu"))
    in_matroska = tmp_path / "a.mkv"
    write_clip(in_matroska, "prores_ks", source_frames(3, "yuv422p10le"), "yuv422p10le")
    made = []
    for decoder in ("kernels", "software"):
        with lbrx.video.open(in_matroska, decoder=decoder) as clip:
            made.append(next(clip.batches(3, device="metal")).numpy())
    np.testing.assert_array_equal(*made)
    data = clips["prores"].read_bytes()
    path = tmp_path / "cut.mov"
    path.write_bytes(data[: len(data) * 6 // 10])
    with lbrx.video.open(path, decoder="kernels") as clip:
        found, problem = before_the_error(clip, "metal")
    assert sum(map(len, found)) >= 10
    assert "is truncated: frame" in problem
    with (
        lbrx.video.open(clips["h264"], decoder="kernels") as clip,
        pytest.raises(lbrx.LbrxError, match="kernels decode ProRes, and this is h264: give"),
    ):
        list(clip.batches(1))


# ---- prefetching ----


def test_prefetching_is_bounded_and_ends():
    made = []
    gate = threading.Semaphore(0)

    def produce():
        for i in range(100):
            made.append(i)
            gate.release()
            yield i

    items = Prefetched(produce, 2)
    assert next(items) == 0
    for _ in range(4):  # the one taken, two that wait, and one in the producer's hand
        assert gate.acquire(timeout=20)
    assert not gate.acquire(timeout=0.3)
    assert made == [0, 1, 2, 3]
    items.close()
    assert list(items) == []


def test_errors_come_after_the_items_before_them():
    def produce():
        yield 1
        raise lbrx.FormatError("broken")

    items = Prefetched(produce, 3)
    assert next(items) == 1
    with pytest.raises(lbrx.FormatError, match="broken"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)


def test_closing_a_clip_ends_its_threads(clips):
    before = threading.active_count()
    with lbrx.video.open(clips["prores"]) as clip:
        batches = clip.batches(1, device="cpu")
        next(batches)
    assert threading.active_count() <= before
    with pytest.raises(lbrx.LbrxError, match="the clip is closed"):
        list(clip.batches(1))
