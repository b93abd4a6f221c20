"""Picture headers and slice tables of ProRes packets, parsed and checked.

A kernel gets one record for each picture and one for each slice. Everything that a record says has
been compared with the packet's length, so a kernel never reads outside of the packet's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.errors import FormatError
from lbrx_video.prores.frame_header import Bytes, FieldOrder, FrameHeader, wrong_frame
from lbrx_video.prores.kernel_records import PICTURE, SLICE, Records

PICTURE_HEADER = 8  # bytes, the least
SMALLEST_SLICE = 6  # bytes: its header without the optional size of the third component
WIDEST_SLICE = 3  # log2 of macroblocks


@dataclass(frozen=True)
class SliceLayout:
    """Where the slices of a picture lie, in macroblocks."""

    columns: NDArray[np.uint32]
    rows: NDArray[np.uint32]
    log2_widths: NDArray[np.uint32]


@lru_cache(maxsize=64)
def slice_layout(columns: int, rows: int, log2_widest: int) -> SliceLayout:
    """Slices of a row have the largest width as long as it fits, then its halves."""
    widths: list[int] = []
    starts: list[int] = []
    at, log2 = 0, log2_widest
    while at < columns:
        while 1 << log2 > columns - at:
            log2 -= 1
        starts.append(at)
        widths.append(log2)
        at += 1 << log2
    return SliceLayout(
        np.tile(np.array(starts, np.uint32), rows),
        np.repeat(np.arange(rows, dtype=np.uint32), len(starts)),
        np.tile(np.array(widths, np.uint32), rows),
    )


def read_pictures(
    packet: Bytes, header: FrameHeader, index: int, alpha: bool, frame: int
) -> tuple[Records, Records]:
    """The records of a frame's pictures and of their slices.

    The slices' offsets are relative to the packet, and their pictures are numbered from 0.
    index: the frame's place in its batch; `frame` is its number, for errors.
    alpha: False decodes no alpha plane.
    """
    count = 1 if header.is_progressive else 2
    pictures = np.zeros(count, PICTURE)
    pictures["frame"] = index
    pictures["row_step"] = count
    pictures["interlaced"] = count - 1
    pictures["alpha_bits"] = header.alpha_bits if alpha else 0
    pictures["quantization"][:, 0] = np.frombuffer(header.luma_quantization, np.uint8)
    pictures["quantization"][:, 1] = np.frombuffer(header.chroma_quantization, np.uint8)
    if not header.is_progressive:
        pictures["first_row"] = (0, 1) if header.field_order is FieldOrder.TOP_FIRST else (1, 0)
    start, slices = header.pictures_at, []
    for picture in range(count):
        records, size = _read_slices(packet, header, frame, picture, start)
        records["picture"] = picture
        slices.append(records)
        start += size
    return pictures, np.concatenate(slices)


def _read_slices(
    packet: Bytes, header: FrameHeader, frame: int, picture: int, start: int
) -> tuple[Records, int]:
    """The slices of the picture that starts at a byte of the packet, and the picture's size."""
    left = len(packet) - start
    if left < PICTURE_HEADER:
        raise wrong_frame(
            frame, f"picture {picture} is missing: the packet ends at {len(packet)} bytes"
        )
    fixed = packet[start : start + PICTURE_HEADER].tobytes()
    header_size, size = fixed[0] >> 3, int.from_bytes(fixed[1:5], "big")
    log2_width, log2_height = fixed[7] >> 4, fixed[7] & 15
    if header_size < PICTURE_HEADER or max(header_size, size) > left:
        raise wrong_frame(
            frame,
            f"picture {picture} of {size} bytes with a header of {header_size} does not fit the "
            f"{left} bytes that are left",
        )
    if log2_width > WIDEST_SLICE or log2_height:
        raise wrong_frame(
            frame,
            f"slices of {1 << log2_width} x {1 << log2_height} macroblocks do not exist: they are "
            "1, 2, 4 or 8 wide and 1 high",
        )
    layout = slice_layout(header.macroblock_columns, header.macroblock_rows, log2_width)
    count = len(layout.rows)
    table = start + header_size
    data = table + 2 * count
    if data > len(packet):
        raise wrong_frame(frame, f"the table of {count} slices of picture {picture} is cut short")
    sizes = packet[table:data].view(">u2").astype(np.uint32)
    ends = data + np.cumsum(sizes, dtype=np.uint64)
    records = np.zeros(count, SLICE)
    records["offset"] = ends - sizes
    records["size"] = sizes
    records["column"], records["row"] = layout.columns, layout.rows
    records["log2_macroblocks"] = layout.log2_widths
    _check_slices(records, ends, frame, picture, len(packet))
    return records, size


def _check_slices(
    records: Records, ends: NDArray[np.uint64], frame: int, picture: int, length: int
) -> None:
    wrong = (records["size"] < SMALLEST_SLICE) | (ends > length)
    if not wrong.any():
        return
    first = int(np.argmax(wrong))
    raise FormatError(
        f"frame {frame}, picture {picture}, slice {first}: its {records['size'][first]} bytes end "
        f"at {ends[first]} of a packet of {length}: the packet is damaged or cut short"
    )
