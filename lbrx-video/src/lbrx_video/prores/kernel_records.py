"""What kernels are told about a batch of frames, their pictures and slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.kernels import (
    UCHAR,
    UINT,
    Bool,
    Constants,
    Record,
    UInt,
    ULong,
    dtype_of,
)

COEFFICIENTS = 64  # of a block


class ProresConstants(Constants, header="prores_slice"):
    """The format of all frames of a batch."""

    HAS_12_BITS: Bool  # or 10
    IS_444: Bool  # or 4:2:2


class ProresBatchRecord(Record, header="prores_slice"):
    """Frames of one size."""

    width: UInt  # in pixels
    height: UInt
    chroma_width: UInt  # in samples
    slices: UInt  # of all frames


class ProresPictureRecord(Record, header="prores_slice"):
    """A frame, or a field of one."""

    frame: UInt
    first_row: UInt  # 1 for the lower field
    row_step: UInt  # 2 for fields
    interlaced: UInt  # 1 for fields
    alpha_bits: UInt  # 0, 8 or 16
    padding: Annotated[Sequence[int], UINT[3]]  # to a multiple of 16 bytes
    quantization: Annotated[Sequence[int], UCHAR[2, COEFFICIENTS]]  # weights of luma, of chroma


class ProresSliceRecord(Record, header="prores_slice"):
    """Neighbouring macroblocks of a row of a picture, and where their bytes are."""

    offset: ULong  # of its bytes
    size: UInt  # in bytes
    picture: UInt
    column: UInt  # in macroblocks
    row: UInt  # in macroblocks
    log2_macroblocks: UInt
    before: UInt  # macroblocks of the slices before it


PICTURE, SLICE = dtype_of(ProresPictureRecord), dtype_of(ProresSliceRecord)

Records = NDArray[np.void]
