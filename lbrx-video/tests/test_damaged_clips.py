"""Damaged, unfinished and unusual clips: the frames before the damage, then lbrx's own error."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import av
import numpy as np
import pytest
from clip_files import HEIGHT, RATE, WIDTH, source_frames, write_clip
from seeds import generator

import lbrx
import lbrx.video
from lbrx.cli import main
from lbrx_video.completeness import unfinished

COUNT = 10
CLIPS = {
    "a.mov": ("prores_ks", "yuv422p10le", {"profile": "3"}),
    "b.mov": ("prores_ks", "yuva444p10le", {"profile": "4"}),
    "c.mp4": ("libx264", "yuv420p", {}),
    "d.mkv": ("ffv1", "yuv422p10le", {}),
    "e.mkv": ("prores_ks", "yuv422p10le", {"profile": "0"}),
}


@pytest.fixture(autouse=True)
def quiet() -> None:
    av.logging.set_level(None)  # FFmpeg reports what is damaged


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    made = {}
    for name, (codec, form, options) in CLIPS.items():
        frames = source_frames(COUNT, form)
        plain = write_clip(
            folder / name, codec, frames, form, options=options, audio=name != "c.mp4"
        )
        made[name] = with_metadata(plain)
    return made


def with_metadata(path):
    """The file with titles and languages, of the container and of its tracks."""
    new = path.with_stem(f"{path.stem}_named")
    with av.open(str(path)) as source, av.open(str(new), "w") as file:
        file.metadata.update(
            {"title": "Gruesse", "artist": "somebody", "comment": "of a few words"}
        )
        streams = [file.add_stream_from_template(stream) for stream in source.streams]
        for stream in streams:
            stream.metadata.update({"language": "deu", "title": "Spur"})
        for packet in source.demux():
            if packet.dts is not None:
                packet.stream = streams[packet.stream.index]
                file.mux(packet)
    return new


def changed(path, folder, old, new):
    """A copy in which some bytes are others."""
    data = path.read_bytes()
    assert old in data
    target = folder / path.name
    target.write_bytes(data.replace(old, new))
    return target


def frames_of(path, device="cpu", **given):
    """The frames before the error, and its text; None if there is none."""
    found, problem = [], None
    with lbrx.video.open(path, decoder=given.pop("decoder", "auto")) as clip:
        try:
            for batch in clip.batches(4, device=device, **given):
                found += list(batch.numpy())
        except lbrx.FormatError as error:
            problem = str(error)
    return found, problem


# ---- unusual, not damaged ----


@pytest.mark.parametrize("name", ["a.mov", "d.mkv"])
def test_metadata_in_other_encodings(clips, tmp_path, name):
    path = changed(clips[name], tmp_path, b"Gruesse", b"Gr\xfc\xdfe \xff")
    assert frames_of(path)[1] is None
    with lbrx.video.open(path) as clip, lbrx.video.writer(tmp_path / "n.mov", like=clip) as out:
        out.write(clip.frame(5, device="cpu"))


def test_audio_of_an_unknown_codec(clips, tmp_path, capsys):
    path = changed(clips["d.mkv"], tmp_path, b"A_PCM/INT/LIT", b"A_XYZ/INT/LIT")
    with lbrx.video.open(path) as clip:
        assert [track.codec for track in clip.facts.audio] == ["unknown"]
        with (
            pytest.raises(lbrx.LbrxError, match=r"d_named.mkv: .* audio track 0: give audio=False"),
            lbrx.video.writer(tmp_path / "n.mov", like=clip) as out,
        ):
            out.write(clip.frame(0, device="cpu"))
    assert main(["video", "info", str(path)]) == 0
    assert "audio      a codec that FFmpeg does not know" in capsys.readouterr().out


def test_codes_that_are_not_ascii(clips, tmp_path):
    path = changed(clips["c.mp4"], tmp_path, b"avc1", b"avc\xe9")
    with contextlib.suppress(lbrx.FormatError), lbrx.video.open(path) as clip:
        assert clip.facts.tag == ""


# ---- Matroska ----


def matroska(path, codec, form, *, live=False, stop=None, count=60):
    """A Matroska file, or what its writer has written after some frames."""
    options = {"cluster_time_limit": "100", "flush_packets": "1", "live": str(int(live))}
    growing = path.with_suffix(".growing")
    with av.open(str(growing), "w", format="matroska", options=options) as file:
        stream = file.add_stream(codec, rate=RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, form
        for number, frame in enumerate(source_frames(count, form)):
            frame.pts = number
            file.mux(stream.encode(frame))
            if number == stop:
                path.write_bytes(growing.read_bytes())
        file.mux(stream.encode())
    if stop is None:
        path.write_bytes(growing.read_bytes())
    return path


@pytest.mark.parametrize("decoder", ["software", "kernels"])
@pytest.mark.parametrize(
    ("live", "stop", "part", "text"),
    [
        (False, None, 1, None),
        (True, None, 1, None),
        (False, 50, 1, "has not been finished by its writer"),
        (False, None, 0.5, "bytes at its end"),
        (True, None, 0.5, "bytes at its end"),
    ],
)
def test_half_written_matroska(tmp_path, decoder, live, stop, part, text):
    """Streams have no sizes, and are whole where an element ends. The kernels copy the packets of
    these files, since they have no table of them."""
    path = matroska(tmp_path / "a.mkv", "prores_ks", "yuv422p10le", live=live, stop=stop)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    device = "metal" if decoder == "kernels" else "cpu"
    found, problem = frames_of(path, device, decoder=decoder, size=(8, 8))
    if text is None:
        assert (len(found), problem) == (60, None)
        return
    assert 4 < len(found) < 60
    assert f"{path}: video stream 0 is truncated: the file" in problem
    assert text in problem
    assert f"frame {len(found)} would be next" in problem
    with lbrx.video.open(path, decoder=decoder) as clip:
        assert len(list(clip.batches(1, 0, 4, device=device, size=(8, 8)))) == 4  # before the end


def test_every_cut_of_a_stream_within_an_element_is_found(tmp_path):
    path = matroska(tmp_path / "a.mkv", "ffv1", "yuv420p", live=True, count=8)
    data, cut = path.read_bytes(), tmp_path / "cut.mkv"
    whole = 0
    for length in range(len(data) - 90, len(data)):
        cut.write_bytes(data[:length])
        whole += unfinished(cut) is None
    assert unfinished(path) is None
    assert whole <= 2  # where an element ends


# ---- fragmented MP4 ----


@pytest.mark.parametrize("first", ["+empty_moov", ""], ids=["no frames", "some frames"])
def test_every_cut_of_fragments_within_a_box_is_found(tmp_path, first):
    """first: whether the header has the frames before the first fragment, and counts them."""
    path, cut = tmp_path / "a.mp4", tmp_path / "cut.mp4"
    with av.open(str(path), "w", options={"movflags": f"frag_every_frame{first}"}) as file:
        stream = file.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for frame in source_frames(12, "yuv420p"):
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    found, problem = frames_of(path, size=(8, 8))
    assert (len(found), problem) == (12, None)
    data = path.read_bytes()
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + int.from_bytes(data[ends[-1] :][:4], "big"))
    middle = ends[len(ends) // 2]
    for end, whole in [(middle, True), *((middle + n, False) for n in (-1, 1, 4, 9, 20))]:
        cut.write_bytes(data[:end])
        found, problem = frames_of(cut, size=(8, 8))
        assert 3 <= len(found) < 12
        if whole:
            assert problem is None
        else:
            assert f"{cut}: video stream 0 is truncated: the file" in problem


# ---- ProRes by kernels ----


@pytest.mark.parametrize(
    ("prefetch", "start", "step", "least"), [(2, 0, 1, 6), (0, 0, 1, 6), (2, 2, 2, 2)]
)
def test_damaged_slices(clips, tmp_path, prefetch, start, step, least):
    """The same frames before the error as by FFmpeg, also where a thread decodes."""
    with av.open(str(clips["a.mov"])) as file:
        entries = [(e.pos, e.size) for e in file.streams.video[0].index_entries]
    data = bytearray(clips["a.mov"].read_bytes())
    for number in (6, 7):
        begin, size = entries[number]
        data[begin + size // 2 : begin + size // 2 + 60] = bytes(60)  # zeros are no code
    path = tmp_path / "a.mov"
    path.write_bytes(data)
    given = {"prefetch": prefetch, "start": start, "step": step}
    found, problem = frames_of(path, "metal", decoder="kernels", **given)
    whole, nothing = frames_of(clips["a.mov"], "metal", decoder="kernels", **given)
    assert nothing is None
    assert len(found) == least
    np.testing.assert_array_equal(found, whole[:least])
    assert problem.startswith(f"{path}: frame 6, slice ")
    theirs, _ = frames_of(path, decoder="software", **given)
    assert len(theirs) == least


# ---- seeded damage ----


def damaged(data, rng):
    """Other, missing or more bytes, most of them in headers, or the first part of a file."""
    made = bytearray(data)
    header = data.find(b"moov") if b"moov" in data else 0
    if not rng.integers(4):
        header = 0
    end = min(header + 1500, len(data)) if rng.integers(3) else len(data)
    at = int(rng.integers(header, end))
    match rng.integers(6):
        case 0:
            return data[: rng.integers(1, len(data))]
        case 1:
            del made[at : at + int(rng.integers(1, 64))]
        case 2:
            made[at:at] = rng.bytes(int(rng.integers(1, 32)))
        case _:
            for _ in range(rng.integers(1, 9)):
                made[rng.integers(header, end)] = rng.integers(256)
    return bytes(made)


@contextlib.contextmanager
def own_error(path):
    problem = None
    try:
        yield
    except (lbrx.LbrxError, IndexError) as error:
        problem = str(error)
    assert problem is None or str(path) in problem


def use(path, folder, rng):
    """All ways to read a clip. Small ones only: a damaged header may ask for gigabytes."""
    with lbrx.video.open(path) as clip:
        repr(clip), str(clip.facts)
        if clip.facts.height * clip.facts.width > 1 << 20 or (clip.facts.frames or 0) > 10_000:
            return
        ways = [
            lambda: list(clip.batches(4, device="cpu")),
            lambda: [batch.numpy() for batch in clip.batches(3, device="metal")],
            lambda: list(clip.batches(2, 3, None, 2, device="cpu")),
            lambda: list(clip.batches(2, 0.1, 0.3, device="cpu")),
            lambda: clip.frame(-1, device="cpu").numpy(),
            lambda: copied(clip, folder),
        ]
        for way in [ways[i] for i in rng.permutation(len(ways))[:2]]:
            with own_error(folder):  # with the path of the clip, or of the file that is written
                way()


def copied(clip, folder):
    with lbrx.video.writer(folder / "copy.mov", like=clip, encoder="software") as out:
        for batch in clip.batches(4, device="cpu"):
            out.write(batch)


def attack(clips, folder, rng, rounds):
    """Returns how many of the damaged clips could be opened."""
    opened = 0
    for _ in range(rounds):
        name = list(CLIPS)[rng.integers(len(CLIPS))]
        path = folder / name
        path.write_bytes(damaged(clips[name].read_bytes(), rng))
        with own_error(path):
            use(path, folder, rng)
            opened += 1
    return opened


def test_fuzz(clips, tmp_path):
    assert attack(clips, tmp_path, generator(40), 15) > 3


@pytest.mark.full
def test_fuzz_more(clips, tmp_path):
    rounds = int(os.environ.get("FUZZ_ROUNDS", "1000"))
    assert attack(clips, tmp_path, generator(41), rounds) > rounds // 4


@pytest.mark.parametrize("part", ["info", "frames", "convert", "compare"])
def test_the_command_line_shows_no_traceback(clips, tmp_path, capsys, part):
    data = clips["a.mov"].read_bytes()
    path = Path(tmp_path / "a.mov")
    path.write_bytes(data[: len(data) // 3] if part == "info" else data.replace(b"icpf", b"icpg"))
    if part == "info":
        path.write_bytes(data[data.find(b"moov") :])
    rest = {"frames": ["new"], "convert": ["new.mov"], "compare": ["a.mov"]}.get(part, [])
    given = [str(tmp_path / name) for name in rest]
    assert main(["video", part, str(path), *given]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"lbrx: {path}: ")
    assert "Traceback" not in told
    assert [file.name for file in tmp_path.iterdir()] == ["a.mov"]


PLAYLISTS = {
    "HLS": (
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:0.4,\n"
        "{other}\n#EXT-X-ENDLIST\n"
    ),
    "concat": "ffconcat version 1.0\nfile beside.ts\n",
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_playlists_read_no_other_files(kind, tmp_path):
    frames = source_frames(COUNT, "yuv420p")
    other = write_clip(tmp_path / "other.ts", "mpeg2video", frames, "yuv420p")
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "beside.ts").write_bytes(other.read_bytes())
    clip = folder / "clip.m3u8"
    clip.write_text(PLAYLISTS[kind].format(other=other))
    with pytest.raises(lbrx.FormatError, match=r"clip\.m3u8"):
        lbrx.video.open(clip)
