"""Decodes ProRes packets on the metal device, with the same bits as FFmpeg's decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lbrx.extension.errors import FormatError, SettingError
from lbrx.extension.kernels import Buffer, Context, DeviceInfo, buffer_of, context, empty
from lbrx.extension.operations import Spec
from lbrx.extension.tensors import Array, Tensor
from lbrx.extension.tensors import dtypes as dt
from lbrx_video.color import Color
from lbrx_video.pixel_formats import PixelFormat, find
from lbrx_video.planes import Planes
from lbrx_video.prores.batch import COMPONENTS, Batch, Packet
from lbrx_video.prores.code_tables import code_tables, scans
from lbrx_video.prores.frame_header import FrameHeader
from lbrx_video.prores.kernel_records import ProresBatchRecord, ProresConstants

DEPTHS = {"apco": 10, "apcs": 10, "apcn": 10, "apch": 10, "ap4h": 12, "ap4x": 12}
"""Bits of a sample by the stream's four-character code, as FFmpeg decodes it."""

BLOCK_BYTES = 128  # coefficients of a block
GROUP_BLOCKS = 16  # blocks that a threadgroup transforms
LANES = 8  # threads for a block
CLEAR_BYTES, CLEAR_GROUP = 16, 256  # of a thread, and threads
CODE_GROUP = 32  # threads


def decode(
    packets: Sequence[Packet], *, codec: str, alpha: bool = True, first_frame: int = 0
) -> Planes:
    """The planes of ProRes frames, on the metal device: one frame for each packet.

    packets: the bytes of the frames. If they are views of one mapped file whose memory the device
        can use, kernels read the file's pages; otherwise the bytes are copied once.
    codec: the stream's four-character code, which decides about the depth: 10 bits for apco, apcs,
        apcn and apch (422), 12 bits for ap4h and ap4x (4444).
    alpha: False leaves an alpha plane out.
    first_frame: the number of the first packet's frame, for errors.

    All frames must have one size and one chroma format. Raises FormatError if they do not, or if a
    header or a table of slices is damaged. Damage within a slice is found by the kernels: the
    samples of that slice are then arbitrary, all others are right, and the next wait for a result
    raises FormatError once, with the numbers of the frame and the slice.

    >>> planes = lbrx.video.prores.decode(packets, codec="apch")
    >>> y, cb, cr = planes.tensors
    """
    if codec not in DEPTHS:
        raise SettingError(f"codec {codec!r} is not ProRes: give one of {', '.join(DEPTHS)}")
    if not packets:
        raise FormatError("there are no packets to decode: give one or more")
    gpu = context()
    batch = Batch.read(gpu, packets, alpha, first_frame)
    header = batch.header
    form = _pixel_format(header, DEPTHS[codec], batch.has_alpha)
    shapes = [form.plane_shape(p, header.height, header.width) for p in range(form.planes)]
    arrays = [empty(gpu, Spec((len(packets), *shape), dt.uint16)) for shape in shapes]
    job = _job(gpu, batch, form.depth, arrays)
    VARIANTS[variant(gpu.info)](gpu, job)
    color = Color(header.primaries, header.transfer, header.matrix)
    tensors = tuple(Tensor(array) for array in arrays)
    return Planes(tensors, form, header.height, header.width, color)


def _pixel_format(header: FrameHeader, depth: int, alpha: bool) -> PixelFormat:
    chroma = "444" if header.chroma_444 else "422"
    return find(f"yuv{'a' if alpha else ''}{chroma}p{depth}le")


@dataclass(frozen=True)
class DecodeJob:
    """What the kernels of a call work on."""

    batch: Batch
    depth: int
    slices: Buffer
    pictures: Buffer
    tables: Buffer
    scans: Buffer
    planes: tuple[Buffer, ...]  # four; the last one is a stand-in if there is no alpha
    states: Buffer

    @property
    def count(self) -> int:
        """Of slices."""
        return len(self.batch.slices)

    @property
    def constants(self) -> ProresConstants:
        """The function constants of the kernels."""
        return ProresConstants(HAS_12_BITS=self.depth == 12, IS_444=self.batch.header.chroma_444)

    @property
    def chroma_columns(self) -> int:
        """Columns of blocks of a chroma component in a macroblock."""
        return 2 if self.batch.header.chroma_444 else 1

    @property
    def inputs(self) -> list[Buffer | bytes]:
        """The first arguments of the kernels."""
        header = self.batch.header
        batch = ProresBatchRecord(
            width=header.width,
            height=header.height,
            chroma_width=header.chroma_width,
            slices=self.count,
        )
        return [self.batch.data, self.slices, self.pictures, batch]

    def check(self) -> Exception | None:
        """The error for damaged slices, called when the kernels have ended."""
        return self.batch.damage(self.states.unsynchronised().view(np.uint32))


def _job(gpu: Context, batch: Batch, depth: int, arrays: Sequence[Array]) -> DecodeJob:
    planes = [buffer_of(array) for array in arrays]
    return DecodeJob(
        batch,
        depth,
        gpu.upload(batch.slices.view(np.uint8), "video"),
        gpu.upload(batch.pictures.view(np.uint8), "video"),
        gpu.upload(code_tables(), "video"),
        gpu.upload(scans(), "video"),
        (*planes, *planes[:1] * (len(COMPONENTS) - len(planes))),
        gpu.host_buffer(len(batch.slices) * len(COMPONENTS) * 4, "video"),
    )


def variant(info: DeviceInfo) -> str:
    """The variant for a device."""
    return "blocks" if info.simd_hardware else "serial"


def _serial(gpu: Context, job: DecodeJob) -> None:
    """One thread per slice, for CPUs."""
    gpu.queue.dispatch(
        gpu.shaders.pipeline("prores_serial", "prores_slices", job.constants, safe_math=True),
        [*job.inputs, job.tables, job.scans, *job.planes, job.states],
        (-(-job.count // 2), 1, 1),
        (1, 1, 1),
        kernel="prores",
        variant="serial",
        check=job.check,
    )


def _blocks(gpu: Context, job: DecodeJob) -> None:
    """One thread per component of a slice for its codes, then eight threads per block."""
    blocks = job.batch.macroblocks * (4 + 4 * job.chroma_columns)
    coefficients = gpu.buffer(blocks * BLOCK_BYTES, "video")
    components = len(COMPONENTS)

    def dispatch(
        name: str,
        arguments: Sequence[Buffer | bytes],
        grid: tuple[int, int, int],
        group: tuple[int, int, int],
        check: Callable[[], Exception | None] | None = None,
    ) -> None:
        gpu.queue.dispatch(
            gpu.shaders.pipeline("prores", name, job.constants, safe_math=True),
            *(arguments, grid, group),
            kernel=name,
            variant="blocks",
            check=check,
        )

    units = blocks * BLOCK_BYTES // CLEAR_BYTES
    dispatch("prores_clear", [coefficients], (units, 1, 1), (CLEAR_GROUP, 1, 1))
    codes = [*job.inputs, job.tables, job.scans, coefficients, job.planes[-1], job.states]
    dispatch("prores_codes", codes, (job.count, components, 1), (CODE_GROUP, 1, 1), job.check)
    threads = GROUP_BLOCKS * LANES
    parts = 2 + 2 * job.chroma_columns  # threadgroups of a slice
    samples = [*job.inputs, coefficients, *job.planes[:3]]
    dispatch("prores_blocks", samples, (threads, job.count, parts), (threads, 1, 1))


VARIANTS: dict[str, Callable[[Context, DecodeJob], None]] = {"serial": _serial, "blocks": _blocks}
