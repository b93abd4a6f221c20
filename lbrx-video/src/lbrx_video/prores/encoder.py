"""Encodes planes as ProRes packets on the metal device."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.errors import FormatError, SettingError
from lbrx.extension.kernels import UINT, Buffer, Context, buffer_of, context, packed
from lbrx.extension.tensors import Tensor
from lbrx_video.color import Color
from lbrx_video.planes import Planes
from lbrx_video.prores.code_tables import packed_books, scans
from lbrx_video.prores.frame_header import FIXED, IDENTIFIER, MATRIX, MAX_SIDE, FieldOrder
from lbrx_video.prores.kernel_records import (
    COEFFICIENTS,
    PICTURE,
    SLICE,
    ProresBatchRecord,
    ProresConstants,
    Records,
)
from lbrx_video.prores.profiles import PROFILES, Profile
from lbrx_video.prores.rate_control import chosen_scales
from lbrx_video.prores.slice_table import PICTURE_HEADER, slice_layout

CREATOR = b"lbrx"
LOG2_SLICE = 3  # macroblocks of a slice, the most there can be
MOST_BLOCKS = 32  # of a component in a slice
GROUP = 32  # threads
FORMATS = {
    (10, False): ("yuv422p10le",),
    (12, True): ("yuv444p12le", "yuva444p12le"),
}


def encode(
    planes: Planes, *, codec: str, field_order: FieldOrder = FieldOrder.PROGRESSIVE
) -> list[bytes]:
    """ProRes packets of frames, one for each: keyframes that any decoder of ProRes reads.

    planes: on the metal device; yuv422p10le for apco, apcs, apcn and apch, yuv444p12le or
        yuva444p12le for ap4h and ap4x. Alpha is stored without loss.
    codec: the profile's four-character code. A frame has at most the profile's usual size, to
        which alpha is added.
    field_order: interlaced frames are stored as two fields.

    Slices have the finest quantization that the size of the frame permits. The bits of a packet are
    the same on all devices. Raises FormatError for another pixel format or size.

    >>> packets = lbrx.video.prores.encode(planes, codec="apch")
    """
    if codec not in PROFILES:
        raise SettingError(f"codec {codec!r} is not ProRes: give one of {', '.join(PROFILES)}")
    profile = PROFILES[codec]
    wanted = FORMATS[profile.depth, profile.chroma_444]
    if planes.format.name not in wanted:
        raise FormatError(f"{codec} takes {' or '.join(wanted)}, not {planes.format.name}")
    if not (1 <= planes.width <= MAX_SIDE and 1 <= planes.height <= MAX_SIDE):
        raise FormatError(
            f"frames of {planes.width} x {planes.height} cannot be encoded: sides are 1 to "
            f"{MAX_SIDE} pixels"
        )
    if field_order is not FieldOrder.PROGRESSIVE and planes.height < 2:
        raise FormatError("a frame of one row has no second field: encode it as progressive")
    job = _Job(planes, profile, field_order)
    return job.packets(*job.run(context())) if planes.frames else []


@dataclass(frozen=True)
class _Job:
    """A call of `encode`."""

    planes: Planes
    profile: Profile
    field_order: FieldOrder

    @property
    def has_alpha(self) -> bool:
        return self.planes.format.alpha

    @property
    def fields(self) -> int:
        """Pictures of a frame."""
        return 1 if self.field_order is FieldOrder.PROGRESSIVE else 2

    @property
    def macroblock_rows(self) -> int:
        """Of a picture."""
        return -(-self.planes.height // (16 * self.fields))

    def records(self) -> tuple[Records, Records]:
        """The pictures and slices of all frames, as kernels take them."""
        count = self.planes.frames * self.fields
        pictures = np.zeros(count, PICTURE)
        pictures["frame"] = np.arange(count) // self.fields
        pictures["row_step"] = self.fields
        pictures["interlaced"] = self.fields - 1
        second = np.arange(count) % self.fields
        bottom_first = self.field_order is FieldOrder.BOTTOM_FIRST
        pictures["first_row"] = 1 - second if bottom_first else second
        for kind in range(2):
            weights = np.frombuffer(self.profile.matrix(chroma=kind == 1), np.uint8)
            pictures["quantization"][:, kind] = weights
        columns = -(-self.planes.width // 16)
        layout = slice_layout(columns, self.macroblock_rows, LOG2_SLICE)
        slices = np.zeros(count * len(layout.rows), SLICE)
        slices["picture"] = np.repeat(np.arange(count), len(layout.rows))
        slices["column"] = np.tile(layout.columns, count)
        slices["row"] = np.tile(layout.rows, count)
        slices["log2_macroblocks"] = np.tile(layout.log2_widths, count)
        macroblocks = 1 << slices["log2_macroblocks"]
        slices["before"] = np.cumsum(macroblocks) - macroblocks
        return pictures, slices

    def run(self, gpu: Context) -> tuple[NDArray[np.uint8], Records]:
        """The bytes of all slices, one behind the other, and the records that say where."""
        pictures, slices = self.records()
        count = len(slices)
        macroblocks = 1 << slices["log2_macroblocks"].astype(np.int64)
        blocks = int(macroblocks.sum()) * (12 if self.profile.chroma_444 else 8)
        coefficients, levels = (gpu.buffer(blocks * COEFFICIENTS * 2, "video") for _ in range(2))
        planes = [_buffer(tensor) for tensor in self.planes.tensors]
        first = [gpu.upload(records.view(np.uint8), "video") for records in (slices, pictures)]
        first.append(gpu.upload(scans(), "video"))
        batch = self.batch(count)
        grid = (MOST_BLOCKS, count, 3)
        self.dispatch(gpu, "prores_transform", [*first, batch, *planes[:3], coefficients], grid)
        first += [gpu.upload(packed_books(), "video"), coefficients, levels]
        sizes = gpu.host_buffer(count * 4, "video")

        def counted(scales: NDArray[np.int64]) -> NDArray[np.int64]:
            coded = gpu.upload(scales.astype(np.uint32), "video")
            self.dispatch(gpu, "prores_count", [*first, coded, sizes], (count, 1, 1))
            return np.where(scales > 0, sizes.array(np.uint32).astype(np.int64), 0)

        frames = pictures["frame"][slices["picture"]].astype(np.int64)
        budgets = np.bincount(frames, macroblocks).astype(np.int64) * self.profile.bits
        scales, bits = chosen_scales(counted, frames, budgets)
        if self.has_alpha:
            self.dispatch(
                gpu, "prores_count_alpha", [*first[:2], batch, planes[-1], sizes], (count, 1, 1)
            )
            bits += sizes.array(np.uint32)
        slices["size"] = bits // 8
        slices["offset"] = np.cumsum(slices["size"], dtype=np.uint64) - slices["size"]
        first[0] = gpu.upload(slices.view(np.uint8), "video")
        output = gpu.buffer(int(slices["size"].sum()), "video")
        coded = gpu.upload(scales.astype(np.uint32), "video")
        alpha = packed(UINT, self.has_alpha)
        last: list[Buffer | bytes] = [coded, sizes, batch, planes[-1], alpha, output]
        self.dispatch(gpu, "prores_write", [*first, *last], (count, 1, 1))
        assert (sizes.array(np.uint32) == slices["size"]).all()
        return output.array(), slices

    def batch(self, slices: int) -> ProresBatchRecord:
        return ProresBatchRecord(
            width=self.planes.width,
            height=self.planes.height,
            chroma_width=self.planes.tensors[1].shape[2],
            slices=slices,
        )

    def dispatch(
        self,
        gpu: Context,
        name: str,
        arguments: Sequence[Buffer | bytes],
        grid: tuple[int, int, int],
    ) -> None:
        constants = ProresConstants(
            HAS_12_BITS=self.profile.depth == 12, IS_444=self.profile.chroma_444
        )
        pipeline = gpu.shaders.pipeline("prores_encode", name, constants, safe_math=True)
        gpu.queue.dispatch(pipeline, arguments, grid, (GROUP, 1, 1))

    def packets(self, data: NDArray[np.uint8], slices: Records) -> list[bytes]:
        """The packets made of the slices."""
        header = self.header()
        pictures = np.split(slices, self.planes.frames * self.fields)
        packets = []
        for frame in range(self.planes.frames):
            parts = [header]
            for records in pictures[frame * self.fields : (frame + 1) * self.fields]:
                parts += _picture(data, records)
            length = 4 + sum(len(part) for part in parts)
            packets.append(b"".join([length.to_bytes(4, "big"), *parts]))
        return packets

    def header(self) -> bytes:
        """The identifier and the frame header."""
        color: Color = self.planes.color
        matrices = self.profile.matrix(chroma=False) + self.profile.matrix(chroma=True)
        chroma = 3 if self.profile.chroma_444 else 2
        fixed = struct.pack(
            ">HH4sHH8B",
            *(FIXED + 2 * MATRIX, int(self.profile.chroma_444), CREATOR),
            *(self.planes.width, self.planes.height, chroma << 6 | self.field_order << 2, 0),
            *(color.primaries, color.transfer, color.matrix, 2 * self.has_alpha, 0, 3),
        )
        return IDENTIFIER + fixed + matrices


def _picture(data: NDArray[np.uint8], slices: Records) -> list[bytes]:
    """The parts of a picture: its header, the table of its slices, and the slices."""
    table = slices["size"].astype(">u2").tobytes()
    start, size = int(slices["offset"][0]), int(slices["size"].sum())
    total = PICTURE_HEADER + len(table) + size
    # Decoders compute the number of slices; the field is too small for that of the largest frames.
    count = min(len(slices), 0xFFFF)
    fixed = struct.pack(">BIHB", PICTURE_HEADER << 3, total, count, LOG2_SLICE << 4)
    return [fixed, table, data[start : start + size].tobytes()]


def _buffer(tensor: Tensor) -> Buffer:
    """The elements of a plane in order."""
    whole = tensor.to_device("metal").contiguous()
    return buffer_of(replace(whole.array, storage=whole.storage))
