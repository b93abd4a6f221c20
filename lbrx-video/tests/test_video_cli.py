"""lbrx video: info, frames, apply and compare; PSNR and SSIM against FFmpeg's filters."""

from __future__ import annotations

import json

import av
import numpy as np
import pytest
from clip_files import HEIGHT, WIDTH, decoded_planes, source_frames, write_clip

import lbrx
import lbrx.video
from lbrx.cli import main
from lbrx.video.metrics import compare
from lbrx.video.pictures import save_picture

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


def test_info(clips, capsys):
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
    facts = json.loads(run(capsys, "info", clips["a"], "--json"))
    assert (facts["height"], facts["rate"], facts["color"]["matrix"]) == (48, 24.0, 1)


def test_frames(clips, capsys, tmp_path):
    text = run(capsys, "frames", clips["a"], tmp_path / "out", "--start", "2", "--step", "3")
    assert text == f"{tmp_path / 'out'}: 3 pictures\n"
    with lbrx.video.open(clips["a"]) as clip:
        wanted = np.clip(clip.frame(5, device="cpu").numpy(), 0, 1) * 255
    with av.open(str(tmp_path / "out" / "000001.png")) as file:
        picture = next(file.decode(video=0)).to_ndarray(format="rgb24")
    assert np.abs(np.moveaxis(picture, -1, 0) - wanted).max() <= 0.5 + 1e-3
    again = ["video", "frames", str(clips["a"]), str(tmp_path / "out"), "--stop", "1"]
    assert main(again) == 1
    assert "000000.png exists: add --force to replace it" in capsys.readouterr().err
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
        (missing, folder, f"{missing}: No such file or directory"),
        (tmp_path, folder, f"{tmp_path}: Is a directory"),
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
    assert same["psnr"] == {"Y": None, "U": None, "V": None, "all": None}
    assert same["ssim"]["all"] == pytest.approx(1)
    text = run(capsys, "compare", clips["a"], clips["c"])
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["R", "G", "B", "all", "10"]
    with lbrx.video.writer(tmp_path / "small.mov", rate=24) as out:
        out.write(lbrx.zeros((3, HEIGHT // 2, WIDTH)))
    assert main(["video", "compare", str(clips["a"]), str(tmp_path / "small.mov")]) == 1
    assert "scale one of them first" in capsys.readouterr().err
