"""The packets of a call, parsed: one memory that kernels read, and records of what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.errors import FormatError
from lbrx.extension.kernels import Buffer, Context
from lbrx.extension.tensors import mapping_of
from lbrx_video.prores.frame_header import Bytes, FrameHeader, read_header
from lbrx_video.prores.kernel_records import Records
from lbrx_video.prores.slice_table import read_pictures

Packet = bytes | bytearray | memoryview | NDArray[np.uint8]

READ_AHEAD = 8  # bytes that kernels may read beyond a packet
COMPONENTS = ("Y", "Cb", "Cr", "alpha")
BAD_HEADER = 1  # a state of prores_slice.h


@dataclass(frozen=True)
class Batch:
    """Frames of one size and chroma format."""

    header: FrameHeader  # of the first frame
    has_alpha: bool
    data: Buffer  # contains all packets
    pictures: Records
    slices: Records
    first_frame: int

    @classmethod
    def read(cls, gpu: Context, packets: Sequence[Packet], alpha: bool, first_frame: int) -> Batch:
        """Parse and check the packets' headers and tables, then bring the packets to the device."""
        views = [np.frombuffer(packet, np.uint8) for packet in packets]
        headers = [read_header(view, first_frame + i) for i, view in enumerate(views)]
        for number, header in enumerate(headers):
            _check_same(headers[0], header, first_frame + number, alpha)
        has_alpha = alpha and headers[0].alpha_bits > 0
        found = [
            read_pictures(view, header, i, has_alpha, first_frame + i)
            for i, (view, header) in enumerate(zip(views, headers, strict=True))
        ]
        data, places = _on_device(gpu, views)
        count = 0
        for (pictures, slices), place in zip(found, places, strict=True):
            slices["offset"] += np.uint64(place)
            slices["picture"] += np.uint32(count)
            count += len(pictures)
        slices = np.concatenate([slices for _, slices in found])
        macroblocks = 1 << slices["log2_macroblocks"]
        slices["before"] = np.cumsum(macroblocks) - macroblocks
        pictures = np.concatenate([pictures for pictures, _ in found])
        return cls(headers[0], has_alpha, data, pictures, slices, first_frame)

    @property
    def macroblocks(self) -> int:
        """Of all slices."""
        last = self.slices[-1]
        return int(last["before"]) + (1 << int(last["log2_macroblocks"]))

    def damage(self, states: NDArray[np.uint32]) -> FormatError | None:
        """The error for the states that kernels wrote, one for each component of each slice; None
        if all are intact."""
        wrong = np.flatnonzero(states)
        if not len(wrong):
            return None
        place, component = divmod(int(wrong[0]), len(COMPONENTS))
        record = self.slices[place]
        number = place - int(np.argmax(self.slices["picture"] == record["picture"]))
        picture = self.pictures[record["picture"]]
        field = (
            f", {('top', 'bottom')[picture['first_row']]} field" if picture["interlaced"] else ""
        )
        what = "header" if states[wrong[0]] & BAD_HEADER else f"{COMPONENTS[component]} codes"
        count = len(np.unique(wrong // len(COMPONENTS)))
        others = f", and {count - 1} more slices of the batch are damaged" if count > 1 else ""
        return FormatError(
            f"frame {self.first_frame + picture['frame']}{field}, slice {number} (at macroblock "
            f"column {record['column']}, row {record['row']}): its {what} cannot be decoded"
            f"{others}: the file is damaged, get another copy"
        )


def _check_same(first: FrameHeader, header: FrameHeader, frame: int, alpha: bool) -> None:
    names = {"width": "width", "height": "height", "chroma_444": "4:4:4 chroma"}
    if alpha:
        names["has_alpha"] = "alpha"
    for fact, name in names.items():
        was, now = getattr(first, fact), getattr(header, fact)
        if was != now:
            raise FormatError(
                f"frame {frame} differs from the first one in {name} ({now}, not {was}): decode "
                "frames of one format in one call"
            )


def _on_device(gpu: Context, views: Sequence[Bytes]) -> tuple[Buffer, list[int]]:
    """A buffer with all packets, and where each starts in it."""
    shared = _shared(gpu, views)
    if shared is not None:
        return shared
    *places, end = (int(place) for place in np.cumsum([0, *(len(view) for view in views)]))
    length = -(-(end + READ_AHEAD) // 8) * 8
    # Where the host sees the device's memory, the packets are copied there directly.
    buffer = gpu.host_buffer(length, "video") if gpu.info.unified_memory else None
    data = np.empty(length, np.uint8) if buffer is None else buffer.unsynchronised()
    for view, place in zip(views, places, strict=True):
        data[place : place + len(view)] = view
    data[end:] = 0
    return gpu.upload(data, "video") if buffer is None else buffer, places


def _shared(gpu: Context, views: Sequence[Bytes]) -> tuple[Buffer, list[int]] | None:
    """The pages of the mapped file that all packets are in; None if there is no such file, or the
    device cannot use its memory, or a packet ends with it."""
    mapping = mapping_of(views[0])
    if mapping is None or any(mapping_of(view) is not mapping for view in views[1:]):
        return None
    whole = np.frombuffer(mapping, np.uint8)
    places = [view.ctypes.data - whole.ctypes.data for view in views]
    ends = [place + len(view) for place, view in zip(places, views, strict=True)]
    buffer = gpu.share(whole) if max(ends) + READ_AHEAD <= len(whole) else None
    return (buffer, places) if buffer is not None else None
