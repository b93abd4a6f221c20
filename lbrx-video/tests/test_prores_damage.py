"""Damaged ProRes packets: errors that name the frame and the slice, and no access out of bounds."""

from __future__ import annotations

import os

import numpy as np
import pytest
from device_memory import GPU
from prores_material import Clip, av, encoded, reference, with_byte, with_slices
from seeds import derived

import softmetal
from lbrx.errors import FormatError
from lbrx_video.prores import FieldOrder, decode, decoder, read_header

CLIPS = [
    Clip("apch", 3, size=(40, 200)),
    Clip("ap4h", 4, "yuva444p10le", size=(40, 200)),
    Clip("apch", 3, size=(48, 200), interlaced=True),
]
PICTURE = 156  # byte at which the first picture starts


@pytest.fixture(autouse=True)
def quiet() -> None:
    av.logging.set_level(None)  # FFmpeg reports each damaged slice


@pytest.fixture(scope="module")
def packet() -> bytes:
    return encoded(CLIPS[0])[0]


def changed(packet: bytes, at: int, *values: int) -> bytes:
    return packet[:at] + bytes(values) + packet[at + len(values) :]


HEADERS = {
    "identifier": (4, b"icpg", "frame 7 of .* bytes is not a ProRes frame"),
    "version": (10, b"\0\2", "frame 7: header version 2"),
    "header too long": (8, b"\xff\xff", "a header of 65535 bytes does not fit"),
    "header too short": (8, b"\0\x13", "a header of 19 bytes does not fit"),
    "matrix cut": (8, b"\0\x60", "ends within a quantization matrix"),
    "no width": (16, b"\0\0", "0 x 40 pixels"),
    "no height": (18, b"\0\0", "200 x 0 pixels"),
    "too wide": (16, b"\xff\xff", "65535 x 40 pixels are not within 1 to 16384"),
    "chroma": (20, b"\x40", "chroma format 1"),
    "interlace": (20, b"\x8c", "interlace mode 3"),
    "alpha": (25, b"\3", "alpha type 3"),
    "picture header": (PICTURE, b"\x38", "with a header of 7"),
    "picture size": (PICTURE + 1, b"\xff\xff\xff\xff", "picture 0 of 4294967295 bytes"),
    "slice width": (PICTURE + 7, b"\x40", "slices of 16 x 1 macroblocks"),
    "slice height": (PICTURE + 7, b"\x31", "slices of 8 x 2 macroblocks"),
    "slice too short": (PICTURE + 8, b"\0\5", "frame 7, picture 0, slice 0: its 5 bytes"),
    "slice too long": (PICTURE + 10, b"\xff\xff", "frame 7, picture 0, slice 1: its 65535 bytes"),
    "second field": (20, b"\x84", "picture 1 is missing"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_headers(packet: bytes, what: str) -> None:
    at, value, message = HEADERS[what]
    with pytest.raises(FormatError, match=message):
        decode([changed(packet, at, *value)], codec="apch", first_frame=7)


def test_cut_packets(packet: bytes) -> None:
    """Every length is refused, since the last slice ends with the packet."""
    for length in [*range(0, 200, 7), *range(200, len(packet), 97), len(packet) - 1]:
        with pytest.raises(FormatError, match="frame 0"):
            decode([packet[:length]], codec="apch")


def test_header_facts(packet: bytes) -> None:
    header = read_header(packet)
    assert (header.width, header.height, header.chroma_width) == (200, 40, 100)
    assert (header.chroma_444, header.alpha_bits) == (False, 0)
    assert header.field_order is FieldOrder.PROGRESSIVE
    assert header.pictures_at == PICTURE
    assert read_header(with_byte(packet, 20, 0x84)).field_order is FieldOrder.TOP_FIRST


@pytest.mark.parametrize("variant", ["serial", "blocks"])
def test_damaged_slice(packet: bytes, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the first damaged slice, and the other slices are decoded."""
    monkeypatch.setattr(decoder, "variant", lambda info: variant)
    slices = iter(range(9))

    def no_codes(data: bytes) -> bytes:  # 32 zeros are no code
        return data[:6] + bytes(len(data) - 6) if next(slices) in (4, 6) else data

    damaged = with_slices(packet, 9, no_codes)
    planes = decode([packet, damaged], codec="apch", first_frame=30)
    message = r"frame 31, slice 4 \(at macroblock column 8, row 1\): its Y codes .* 1 more slices"
    with pytest.raises(FormatError, match=message):
        planes.tensors[0].numpy()
    for tensor, wanted in zip(planes.tensors, reference([packet], "apch"), strict=True):
        whole, other = tensor.numpy()
        np.testing.assert_array_equal(whole, wanted[0])
        np.testing.assert_array_equal(other[:16], wanted[0, :16])


@pytest.mark.parametrize("variant", ["serial", "blocks"])
def test_slice_headers(packet: bytes, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that do not fit the slice."""
    monkeypatch.setattr(decoder, "variant", lambda info: variant)
    for at, value in ((0, 0), (0, 255), (2, 255), (4, 255)):
        damaged = with_slices(packet, 9, lambda data, at=at, v=value: changed(data, at, v))
        with pytest.raises(FormatError, match=r"slice 0 .*: its header cannot be decoded"):
            decode([damaged], codec="apch").tensors[0].numpy()


def damaged(packet: bytes, rng: np.random.Generator) -> bytes:
    """A packet with a few other bytes, more of them behind the headers."""
    data = bytearray(packet)
    first = 170 if rng.integers(3) else 8
    for _ in range(rng.integers(1, 5)):
        data[rng.integers(first, len(data))] = rng.integers(256)
    return bytes(data)


def attack(clip: Clip, rng: np.random.Generator, rounds: int) -> int:
    """Decode damaged packets; what is not refused has FFmpeg's bits. Returns how many that are."""
    (whole,) = encoded(clip)
    accepted = 0
    for _ in range(rounds):
        packet = damaged(whole, rng)
        try:
            planes = [tensor.numpy() for tensor in decode([packet], codec=clip.codec).tensors]
        except FormatError:
            continue
        accepted += 1
        for plane, wanted in zip(planes, reference([packet], clip.codec), strict=True):
            np.testing.assert_array_equal(plane, wanted)
    return accepted


@pytest.mark.parametrize("variant", ["serial", "blocks"])
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_fuzz(clip: Clip, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "variant", lambda info: variant)
    rng = np.random.default_rng(derived(f"prores {clip} {variant}"))
    assert attack(clip, rng, 40) > 0


@pytest.mark.skipif(GPU, reason="checks are of the software device")
@pytest.mark.full
@pytest.mark.parametrize("variant", ["serial", "blocks"])
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_fuzz_checked(clip: Clip, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No access out of bounds."""
    monkeypatch.setattr(decoder, "variant", lambda info: variant)
    rng = np.random.default_rng(derived(f"prores checked {clip} {variant}"))
    with softmetal.checking("bounds"):
        assert attack(clip, rng, int(os.environ.get("FUZZ_ROUNDS", "100"))) > 0
