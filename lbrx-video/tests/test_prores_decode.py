"""ProRes decoded by kernels has the bits of FFmpeg's decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from device_memory import GPU, MACOS_PAGES
from prores_material import Clip, encoded, reference, with_byte, with_slices

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays.storage.mapped import FileMapping
from lbrx.errors import FormatError, SettingError
from lbrx_video.prores import decode, decoder
from lbrx_video.prores.batch import Batch

VARIANTS = ["serial", "blocks"]
ALPHA = "yuva444p10le"
CLIPS = [
    Clip("apco", 0, frames=2),
    Clip("apcs", 1, size=(33, 150)),
    Clip("apcn", 2, size=(16, 16), options={"mbs_per_slice": "1"}),
    Clip("apch", 3, size=(50, 307), source="extreme"),
    Clip("apch", 3, size=(41, 71), options={"mbs_per_slice": "2", "quant_mat": "proxy"}),
    Clip("apch", 3, size=(70, 90), interlaced=True, frames=2),
    Clip("apch", 3, size=(35, 90), interlaced=True, top_first=True),
    Clip("apch", 3, size=(32, 64), source="flat"),
    Clip("ap4h", 4, "yuv444p10le", size=(1, 1)),
    Clip("ap4h", 4, ALPHA, size=(37, 145), options={"alpha_bits": "16"}, frames=2),
    Clip("ap4h", 4, ALPHA, options={"alpha_bits": "8"}, interlaced=True),
    Clip("ap4x", 5, "yuv444p10le", size=(50, 307), source="extreme"),
    Clip("apch", 3, size=(40, 72), encoder="prores_aw"),
]
DEPTHS = [  # the depth follows the code of the stream, chroma follows the frame
    Clip("ap4h", 3, size=(37, 145)),
    Clip("apch", 4, ALPHA, size=(37, 145), options={"alpha_bits": "16"}),
    Clip("apch", 4, ALPHA, size=(37, 145), options={"alpha_bits": "8"}),
]


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both variants; GPUs have no serial one."""
    monkeypatch.setattr(decoder, "variant", lambda info: request.param)
    return str(request.param)


def check(packets: Sequence[bytes], codec: str) -> None:
    planes = decode(packets, codec=codec)
    expected = reference(packets, codec)
    assert len(planes.tensors) == len(expected)
    for tensor, wanted in zip(planes.tensors, expected, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), wanted)


@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_same_bits(clip: Clip, variant: str) -> None:
    check(encoded(clip), clip.codec)


@pytest.mark.full
@pytest.mark.parametrize("clip", DEPTHS, ids=str)
def test_other_depths(clip: Clip, variant: str) -> None:
    check(encoded(clip), clip.codec)


@pytest.mark.full
@pytest.mark.parametrize("width", range(1, 160, 13))
@pytest.mark.parametrize("interlaced", [False, True])
def test_sizes(width: int, interlaced: bool, variant: str) -> None:
    """Right and lower edges at every place within a slice of every width."""
    for log2, height in enumerate((1, 15, 34, 63)):
        options = {"mbs_per_slice": str(1 << log2)}
        clip = Clip("apch", 3, size=(height, width), interlaced=interlaced, options=options)
        check(encoded(clip), "apch")


def test_quantization_matrices(rng: np.random.Generator, variant: str) -> None:
    """Matrices of the frame's own, and frames without one or both."""
    (packet,) = encoded(Clip("apch", 3))
    weights = rng.integers(1, 64, 128).astype(np.uint8).tobytes()
    packets = [packet[:28] + weights + packet[156:]]
    packets += [with_byte(packets[0], 27, flags) for flags in (0, 1, 2)]
    check(packets, "apch")


def test_slices_without_chroma(variant: str) -> None:
    """Chroma of such slices is gray."""
    for codec, profile, pixels in (("apch", 3, "yuv422p10le"), ("ap4h", 4, "yuv444p10le")):
        (packet,) = encoded(Clip(codec, profile, pixels, size=(48, 200)))

        def luma_only(data: bytes) -> bytes:
            length, luma = data[0] >> 3, int.from_bytes(data[2:4], "big")
            return data[:4] + bytes(length - 4) + data[length : length + luma]

        check([with_slices(packet, 3 * 3, luma_only)], codec)


def test_alpha_left_out(variant: str) -> None:
    packets = encoded(Clip("ap4h", 4, ALPHA))
    planes = decode(packets, codec="ap4h", alpha=False)
    assert planes.format.name == "yuv444p12le"
    for tensor, wanted in zip(planes.tensors, reference(packets, "ap4h"), strict=False):
        np.testing.assert_array_equal(tensor.numpy(), wanted)


def test_mixed_frames(variant: str) -> None:
    """Progressive and interlaced frames, and both depths of alpha, in one call."""
    clips = [
        Clip("ap4h", 4, ALPHA, interlaced=interlaced, options={"alpha_bits": bits})
        for interlaced, bits in ((False, "8"), (True, "16"), (False, "16"))
    ]
    check([encoded(clip)[0] for clip in clips], "ap4h")


def test_color_of_the_header() -> None:
    (packet,) = encoded(Clip("apch", 3))
    packet = packet[:22] + bytes([9, 16, 9]) + packet[25:]
    color = decode([packet], codec="apch").color
    assert (color.primaries, color.transfer, color.matrix) == (9, 16, 9)


@pytest.mark.skipif(
    MACOS_PAGES, reason="it shares pages of 16 KiB, while Linux maps files at 4 KiB"
)
def test_mapped_file(tmp_path: Path) -> None:
    """Packets in a mapped file are read in place, unless one ends with the file."""
    packets = encoded(Clip("apch", 3, frames=3))
    path = tmp_path / "packets"
    path.write_bytes(b"before!" + b"..".join(packets))
    mapping = FileMapping.of(path, 0, path.stat().st_size)
    starts = np.cumsum([7, *(len(packet) + 2 for packet in packets)])
    views = [
        memoryview(mapping)[start : start + len(packet)]
        for start, packet in zip(starts, packets, strict=False)
    ]
    check_views(views[:2], packets[:2])
    check_views(views, packets)
    assert is_mapped(views[:2]) == metal.context().info.unified_memory
    assert not is_mapped(views)


def is_mapped(packets: Sequence[memoryview]) -> bool:
    """Whether kernels read the pages of a file."""
    batch = Batch.read(metal.context(), packets, alpha=True, first_frame=0)
    return batch.data.block.mapping is not None


def check_views(views: Sequence[memoryview], packets: Sequence[bytes]) -> None:
    for tensor, wanted in zip(
        decode(views, codec="apch").tensors, reference(packets, "apch"), strict=True
    ):
        np.testing.assert_array_equal(tensor.numpy(), wanted)


@pytest.mark.skipif(GPU, reason="checks are of the software device")
@pytest.mark.parametrize("clip", [CLIPS[10], pytest.param(CLIPS[5], marks=pytest.mark.full)])
def test_checked(clip: Clip, variant: str) -> None:
    """No access beyond a buffer and no race."""
    packets = encoded(clip)
    with softmetal.checking("bounds", "race"):
        lbrx.eval(*decode(packets, codec=clip.codec).tensors)


def test_refused() -> None:
    packets = encoded(Clip("apch", 3, frames=2))
    with pytest.raises(SettingError, match="codec 'avc1' is not ProRes: give one of apco"):
        decode(packets, codec="avc1")
    with pytest.raises(FormatError, match="no packets"):
        decode([], codec="apch")
    wider = encoded(Clip("apch", 3, size=(40, 80)))
    with pytest.raises(
        FormatError, match=r"frame 12 differs from the first one in width \(80, not 72\)"
    ):
        decode([*packets, *wider], codec="apch", first_frame=10)
    with_alpha = encoded(Clip("ap4h", 4, ALPHA))
    without = encoded(Clip("ap4h", 4, "yuv444p10le"))
    with pytest.raises(FormatError, match=r"in alpha \(False, not True\)"):
        decode([*with_alpha, *without], codec="ap4h")
    assert decode([*with_alpha, *without], codec="ap4h", alpha=False).frames == 2
