"""Frame headers of ProRes packets (SMPTE RDD 36), parsed and checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.errors import FormatError

Bytes = NDArray[np.uint8]

IDENTIFIER = b"icpf"
PREFIX = 8  # bytes before the header: the frame's size and its identifier
FIXED = 20  # bytes of the header before the quantization matrices
MATRIX = 64  # bytes
FLAT = bytes([4]) * MATRIX  # the matrix of luma in frames without one
ALPHA_BITS = (0, 8, 16)
MAX_SIDE = 16384  # pixels: the decoder's own limit, far above any camera's


class FieldOrder(IntEnum):
    """How a frame is stored: as one picture, or as two fields, the earlier one first."""

    PROGRESSIVE = 0
    TOP_FIRST = 1
    BOTTOM_FIRST = 2


@dataclass(frozen=True)
class FrameHeader:
    """The facts of a frame. `primaries`, `transfer` and `matrix` are codes of ITU-T H.273."""

    width: int
    height: int
    chroma_444: bool
    field_order: FieldOrder
    primaries: int
    transfer: int
    matrix: int
    alpha_bits: int  # 0 without an alpha plane
    luma_quantization: bytes  # 64 weights, row by row
    chroma_quantization: bytes
    pictures_at: int  # byte of the packet at which the first picture starts

    @property
    def chroma_width(self) -> int:
        return self.width if self.chroma_444 else (self.width + 1) // 2

    @property
    def has_alpha(self) -> bool:
        return self.alpha_bits > 0

    @property
    def macroblock_columns(self) -> int:
        return (self.width + 15) // 16

    @property
    def macroblock_rows(self) -> int:
        """Rows of macroblocks of one picture, which is a field of an interlaced frame."""
        return (self.height + 15) // 16 if self.is_progressive else (self.height + 31) // 32

    @property
    def is_progressive(self) -> bool:
        return self.field_order is FieldOrder.PROGRESSIVE


def read_header(packet: Bytes | bytes, frame: int = 0) -> FrameHeader:
    """The header of a packet. `frame` is its number, for errors.

    Raises FormatError if the packet is not a ProRes frame, or its header is cut short or has
    values that the format does not define.
    """
    data = bytes(packet[: PREFIX + FIXED + 2 * MATRIX])
    if len(data) < PREFIX + FIXED or data[4:8] != IDENTIFIER:
        raise FormatError(
            f"frame {frame} of {len(packet)} bytes is not a ProRes frame: it does not start with "
            "its size and 'icpf'; give the packets of a ProRes stream"
        )
    header = data[PREFIX:]
    size = int.from_bytes(header[0:2], "big")
    version = int.from_bytes(header[2:4], "big")
    if version > 1:
        raise wrong_frame(frame, f"header version {version} is not 0 or 1")
    if not FIXED <= size <= len(packet) - PREFIX:
        raise wrong_frame(frame, f"a header of {size} bytes does not fit {len(packet)} bytes")
    width, height = (int.from_bytes(header[i : i + 2], "big") for i in (8, 10))
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise wrong_frame(frame, f"{width} x {height} pixels are not within 1 to {MAX_SIDE}")
    chroma, order, alpha = header[12] >> 6, header[12] >> 2 & 3, header[17] & 15
    if chroma < 2:
        raise wrong_frame(frame, f"chroma format {chroma} is neither 2 (4:2:2) nor 3 (4:4:4)")
    if order > FieldOrder.BOTTOM_FIRST:
        raise wrong_frame(frame, f"interlace mode {order} is not 0, 1 or 2")
    if alpha >= len(ALPHA_BITS):
        raise wrong_frame(frame, f"alpha type {alpha} is not 0, 1 or 2")
    luma, colour = _matrices(header, size, frame)
    return FrameHeader(
        *(width, height, chroma == 3, FieldOrder(order), header[14], header[15], header[16]),
        *(ALPHA_BITS[alpha], luma, colour, PREFIX + size),
    )


def _matrices(header: bytes, size: int, frame: int) -> tuple[bytes, bytes]:
    """The quantization matrices of luma and chroma. Without its own, luma's is flat and chroma's
    is that of luma."""
    at, found = FIXED, FLAT
    matrices = []
    for flag in (2, 1):
        if header[19] & flag:
            if at + MATRIX > min(size, len(header)):
                raise wrong_frame(
                    frame, f"a header of {size} bytes ends within a quantization matrix"
                )
            found = header[at : at + MATRIX]
            at += MATRIX
        matrices.append(found)
    return matrices[0], matrices[1]


def wrong_frame(frame: int, what: str) -> FormatError:
    """The error for a packet that says what the format does not allow."""
    return FormatError(f"frame {frame}: {what}: the packet is damaged or not ProRes")
