"""lbrx video: info, frames, convert, apply and compare; PSNR and SSIM against FFmpeg's filters."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import av
import numpy as np
import pytest
from clip_files import HEIGHT, WIDTH, decoded_planes, source_frames, write_clip

import lbrx
import lbrx.video
from lbrx.cli import main
from lbrx_video.metrics import compare
from lbrx_video.pictures import save_picture

KERNEL = """
// Mixes a frame with its mirror image, and adds a table entry for each channel.
kernel void mirror(device const float* frame, device const float* table, device float* result,
                   constant float& amount, constant uint& width, constant uint& height,
                   constant uint& number, uint2 at [[thread_position_in_grid]]) {
  for (uint c = 0; c < 3; c++) {
    const uint row = (c * height + at.y) * width;
    const float other = frame[row + width - 1 - at.x];
    result[row + at.x] = mix(frame[row + at.x], other, amount) + table[c] * float(number);
  }
}
"""


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    frames = source_frames(10, "yuv422p10le")
    options = {"profile": "3"}
    a = write_clip(
        folder / "a.mov", "prores_ks", frames, "yuv422p10le", options=options, audio=True
    )
    b = write_clip(folder / "b.mov", "prores_ks", frames, "yuv422p10le", options={"profile": "0"})
    c = write_clip(folder / "c.mp4", "libx264", source_frames(10, "yuv420p"), "yuv420p")
    return {"a": a, "b": b, "c": c}


def run(capsys, *arguments):
    assert main(["video", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_info(clips, capsys, tmp_path):
    text = run(capsys, "info", clips["a"])
    for line in (
        "codec      prores HQ (apch)",
        "size       64 x 48",
        "rate       24 frames/s",
        "frames     10, 0.417 s",
        "pixels     yuv422p10le, 10 bits",
        "color      matrix bt709, transfer bt709, primaries bt709, limited range, chroma left",
        "audio      pcm_s16le, 8000 Hz, 1 channels",
    ):
        assert line in text
    untagged = write_clip(
        tmp_path / "u.mkv",
        *("libx264", source_frames(1, "yuv420p"), "yuv420p"),
        color=(2, 2, 2, 0),
        aspect=Fraction(3, 2),
    )
    text = run(capsys, "info", untagged)
    assert "color      matrix unspecified, transfer unspecified, primaries unspecified" in text
    assert "chroma left; read with matrix bt601" in text
    assert "size       64 x 48, pixels 3:2" in text
    facts = json.loads(run(capsys, "info", clips["a"], "--json"))
    assert (facts["height"], facts["rate"], facts["color"]["matrix"]) == (48, 24.0, 1)


def test_frames(clips, capsys, tmp_path):
    text = run(capsys, "frames", clips["a"], tmp_path / "out", "--start", "2", "--step", "3")
    assert text == f"{tmp_path / 'out'}: 3 pictures\n"
    with lbrx.video.open(clips["a"]) as clip:
        wanted = np.clip(clip.frame(5, device="cpu").numpy(), 0, 1) * 255
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["000002.png", "000005.png", "000008.png"]
    with av.open(str(tmp_path / "out" / "000005.png")) as file:
        picture = next(file.decode(video=0)).to_ndarray(format="rgb24")
    assert np.abs(np.moveaxis(picture, -1, 0) - wanted).max() <= 0.5 + 1e-3
    again = ["video", "frames", str(clips["a"]), str(tmp_path / "out"), "--start", "-2"]
    assert main(again) == 1
    assert "000008.png exists: add --force to replace it" in capsys.readouterr().err
    assert main([*again, "--force"]) == 0


@pytest.mark.parametrize(("bits", "channels"), [(8, 3), (8, 4), (16, 3), (16, 4)])
def test_pictures(tmp_path, bits, channels):
    top = 2**bits - 1
    codes = np.random.default_rng(1).integers(0, top + 1, (channels, 5, 7))
    frame = lbrx.tensor((codes / top).astype(np.float32), device="cpu")
    save_picture(tmp_path / "a.png", frame, bits)
    name = {3: "rgb24", 4: "rgba"} if bits == 8 else {3: "rgb48le", 4: "rgba64le"}
    with av.open(str(tmp_path / "a.png")) as file:
        decoded = next(file.decode(video=0)).to_ndarray(format=name[channels])
    np.testing.assert_array_equal(np.moveaxis(decoded, -1, 0), codes)


def test_apply(clips, capsys, tmp_path):
    kernel, table, out = tmp_path / "mirror.metal", tmp_path / "table.npy", tmp_path / "out.mov"
    kernel.write_text(KERNEL)
    np.save(table, np.array([0.0, 0.01, 0.02], np.float32))
    given = ["--set", "amount=0.25", "--set", f"table=@{table}", "--profile", "4444"]
    text = run(capsys, "apply", kernel, clips["a"], out, *given, "--batch", "4")
    assert text.startswith(f"{out}: 10 frames, ")
    with lbrx.video.open(clips["a"]) as clip:
        before = np.concatenate([b.numpy() for b in clip.batches(10, device="cpu")])
    with lbrx.video.open(out) as clip:
        assert len(clip.facts.audio) == 1
        after = np.concatenate([b.numpy() for b in clip.batches(10, device="cpu")])
    added = np.arange(10)[:, None, None, None] * np.array([0, 0.01, 0.02])[:, None, None]
    wanted = 0.75 * before + 0.25 * before[..., ::-1] + added
    assert -10 * np.log10(((wanted - after) ** 2).mean()) > 30
    assert -10 * np.log10(((before - after) ** 2).mean()) < 20
    mp4 = tmp_path / "out.mp4"
    run(capsys, "apply", kernel, clips["a"], mp4, *given[:4], "--frames", "2")
    assert json.loads(run(capsys, "info", mp4, "--json"))["codec"] == "h264"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--set", "amount"], "--set amount: give NAME=VALUE"),
        (["--set", "amount=much"], "give numbers with commas, or @FILE.npy"),
        (["--set", "speed=1"], "mirror has no parameter speed: it has frame, table, amount"),
        (["--set", "amount=1"], "of which frame, table is not set"),
        (["--start", "soon"], "'soon' is not a place: give a frame such as 120, or 5.0s"),
    ],
)
def test_apply_with_wrong_arguments(clips, capsys, tmp_path, given, text):
    kernel, table = tmp_path / "mirror.metal", tmp_path / "table.npy"
    kernel.write_text(KERNEL)
    np.save(table, np.zeros(3, np.float32))
    if "--start" in given:
        given = [*given, "--set", "amount=1", "--set", f"table=@{table}"]
    assert (
        main(["video", "apply", *map(str, (kernel, clips["a"], tmp_path / "o.mov")), *given]) == 1
    )
    assert text in capsys.readouterr().err
    assert not (tmp_path / "o.mov").exists()


def test_frames_of_nothing(clips, capsys, tmp_path):
    folder, file = tmp_path / "new", tmp_path / "file"
    file.touch()
    missing = tmp_path / "no such.mov"
    for clip, target, text in (
        (missing, folder, f"{missing}: No such file or directory: check the path"),
        (tmp_path, folder, f"{tmp_path}: Is a directory: check the path"),
        (clips["a"], file, f"{file} is a file: give a folder"),
    ):
        assert main(["video", "frames", str(clip), str(target)]) == 1
        assert capsys.readouterr().err == f"lbrx: {text}\n"
    assert not folder.exists()


def test_apply_does_not_replace_its_source_or_another_file(clips, capsys, tmp_path):
    link = tmp_path / "link.mov"
    link.symlink_to(clips["a"])
    other = tmp_path / "other.mov"
    other.write_bytes(b"kept")
    assert main(["video", "apply", "any.metal", str(clips["a"]), str(other)]) == 1
    assert f"{other} exists: add --force to replace it" in capsys.readouterr().err
    assert other.read_bytes() == b"kept"
    before = clips["a"].read_bytes()
    for out in (clips["a"], link):
        assert main(["video", "apply", "any.metal", str(clips["a"]), str(out)]) == 1
        assert f"{out} is the clip that is read" in capsys.readouterr().err
    assert clips["a"].read_bytes() == before


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--start", "10"], "has 10 frames, none of them from frame 10 on: give other places"),
        (["--start", "5s"], "has 10 frames, none of them from frame 10 on"),
        (["--start", "4", "--stop", "4"], "none of them from frame 4 on and before frame 4"),
        (["--start", "-11"], "--start=-11: "),
        (["--start", "1e999s"], "'1e999s' is not a place: give a frame such as 120, or 5.0s"),
        (["--stop", "nans"], "'nans' is not a place: give a frame such as 120, or 5.0s"),
        (["--frames", "0"], "--frames 0: give 1 or more"),
        (["--step", "0"], "--step 0: give 1 or more"),
    ],
)
@pytest.mark.parametrize("part", ["frames", "convert", "apply"])
def test_ranges_without_frames(clips, capsys, tmp_path, part, given, text):
    """They are mistakes, and leave no file."""
    kernel = tmp_path / "gain.metal"
    kernel.write_text(
        "kernel void same(device const float* frame, device float* result, uint i "
        "[[thread_position_in_grid]]) { result[i] = frame[i]; }"
    )
    words = [part, *([kernel] if part == "apply" else []), clips["c"], tmp_path / "out.mov"]
    assert main(["video", *map(str, words), *given]) == 1
    assert text in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["gain.metal"]


@pytest.mark.parametrize(
    ("given", "out", "codec", "size", "frames", "rate"),
    [
        ([], "o.mp4", "h264", (48, 64), 10, 24),
        ([], "o.mov", "prores", (48, 64), 10, 24),
        (["--codec", "hevc"], "o.mp4", "hevc", (48, 64), 10, 24),
        (["--size", "24x32", "--start", "2", "--frames", "3"], "o.mp4", "h264", (24, 32), 3, 24),
        (["--stop", "0.25s", "--step", "2"], "o.mov", "prores", (48, 64), 3, 24),
        (["--rate", "23.976"], "o.mov", "prores", (48, 64), 10, Fraction(24000, 1001)),
    ],
)
def test_convert(clips, capsys, tmp_path, given, out, codec, size, frames, rate):
    """The audio is copied with the whole clip, and left out with a part of it or another rate."""
    path = tmp_path / out
    text = run(capsys, "convert", clips["a"], path, *given)
    parts = {"--start", "--frames", "--stop", "--step", "--rate"} & set(given)
    assert text.startswith(f"{path}: {frames} frames{', without the audio' if parts else ''}, ")
    with lbrx.video.open(path) as clip, lbrx.video.open(clips["a"]) as source:
        facts = (clip.facts.codec, clip.size, len(clip), clip.rate)
        assert facts == (codec, size, frames, rate)
        assert len(clip.facts.audio) == (0 if parts else 1)
        first = int(given[given.index("--start") + 1]) if "--start" in given else 0
        wanted = source.frame(first, size=size, device="cpu").numpy()
        found = clip.frame(0, device="cpu").numpy()
    assert -10 * np.log10(((wanted - found) ** 2).mean()) > 20


@pytest.mark.parametrize(
    ("part", "given", "text"),
    [
        ("convert", ["--rate", "1e400"], "--rate 1e400: give a number such as 25, 23.976"),
        ("convert", ["--rate", "1e999999999"], "--rate 1e999999999: give a number such as 25"),
        ("convert", ["--rate", "1e-9"], "rate=.*: give a number of frames in a second from 1/1"),
        ("convert", ["--rate", f"1{'0' * 400}/3"], "rate=1000.*: give a number of frames"),
        ("convert", ["--size", f"{'9' * 5000}x1"], "--size 999.*: give height x width"),
        (
            "frames",
            ["--size", "3000000x1", "--frames", "1"],
            "a PNG of 1 x 3000000 pixels: Invalid argument",
        ),
    ],
)
def test_numbers_beyond_all_use(clips, capsys, tmp_path, part, given, text):
    assert main(["video", part, str(clips["c"]), str(tmp_path / "out.mov"), *given]) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(f"lbrx: .*{text}.*\n", error), error
    assert not (tmp_path / "out.mov").is_file()


def test_convert_keeps_alpha_where_it_can(capsys, tmp_path):
    frames = source_frames(2, "yuva444p10le")
    source = write_clip(
        tmp_path / "a.mov", "prores_ks", frames, "yuva444p10le", options={"profile": "4"}
    )
    for given, form in ((["--profile", "4444"], "yuva444p12le"), ([], "yuv422p10le")):
        run(capsys, "convert", source, tmp_path / "b.mov", *given, "--force", "--no-audio")
        with lbrx.video.open(tmp_path / "b.mov") as clip:
            assert clip.facts.pixel_format == form


def test_convert_of_sizes_that_a_codec_lacks(clips, capsys, tmp_path):
    given = ["convert", str(clips["a"]), str(tmp_path / "b.mp4"), "--size", "25x32"]
    assert main(["video", *given]) == 1
    assert "25 x 32 pixels: yuv420p needs an even height" in capsys.readouterr().err


def filtered(name, first, second):
    """The values that a filter of FFmpeg notes for each frame."""
    graph = av.filter.Graph()
    rows = []
    with av.open(str(first)) as a, av.open(str(second)) as b:
        inputs = [graph.add_buffer(template=file.streams.video[0]) for file in (a, b)]
        node, sink = graph.add(name), graph.add("buffersink")
        for i, source in enumerate(inputs):
            source.link_to(node, 0, i)
        node.link_to(sink)
        graph.configure()
        for pair in zip(a.decode(video=0), b.decode(video=0), strict=True):
            for source, frame in zip(inputs, pair, strict=True):
                source.push(frame)
            rows.append(sink.pull().metadata)
    return rows


def test_compare_as_ffmpeg_does(clips):
    with lbrx.video.open(clips["a"]) as first, lbrx.video.open(clips["b"]) as second:
        found = compare(first, second)
    assert found.frames == (10, 10)
    similar = filtered("ssim", clips["a"], clips["b"])
    errors = filtered("psnr", clips["a"], clips["b"])
    for name in "YUV":
        theirs = np.mean([float(row[f"lavfi.ssim.{name}"]) for row in similar])
        assert found.ssim[name] == pytest.approx(theirs, abs=2e-4)
        error = np.mean([float(row[f"lavfi.psnr.mse.{name.lower()}"]) for row in errors])
        assert found.psnr[name] == pytest.approx(10 * np.log10(1023**2 / error), abs=0.02)
    planes = [
        np.concatenate([p.ravel() for f in decoded_planes(clips[n]) for p in f]) for n in "ab"
    ]
    error = ((planes[0].astype(float) - planes[1]) ** 2).mean()
    assert found.psnr["all"] == pytest.approx(10 * np.log10(1023**2 / error), abs=0.01)


def test_compare(clips, capsys, tmp_path):
    same = json.loads(run(capsys, "compare", clips["a"], clips["a"], "--json"))
    assert same["matrices"] == ["bt709", "bt709"]
    assert same["psnr"] == {"Y": None, "U": None, "V": None, "all": None}
    assert same["ssim"]["all"] == pytest.approx(1)
    text = run(capsys, "compare", clips["a"], clips["c"])
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["R", "G", "B", "all", "10"]
    tagged = write_clip(
        tmp_path / "c.mp4", "libx264", source_frames(10, "yuv420p"), "yuv420p", color=(1, 1, 6, 1)
    )
    assert main(["video", "compare", str(clips["c"]), str(tagged), "--json"]) == 0
    told = capsys.readouterr()
    assert "with matrix bt709, " in told.err
    assert "with bt601: equal codes are different colors" in told.err
    assert json.loads(told.out)["matrices"] == ["bt709", "bt601"]
    with lbrx.video.writer(tmp_path / "small.mov", rate=24) as out:
        out.write(lbrx.zeros((3, HEIGHT // 2, WIDTH)))
    assert main(["video", "compare", str(clips["a"]), str(tmp_path / "small.mov")]) == 1
    assert "resize one of them first" in capsys.readouterr().err
