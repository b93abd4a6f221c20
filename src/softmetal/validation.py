"""What Apple's debug layer refuses. Pure functions of plain values; each raises ValidationError.

Always on: they keep memory safe and turn nonsense into an error where it was written.
"""

from __future__ import annotations

from collections.abc import Sequence

from softmetal.errors import ValidationError
from softmetal.types import (
    MAX_BUFFERS,
    MAX_THREADGROUP_ARGUMENTS,
    MAX_THREADS,
    Argument,
)

MAX_THREADGROUP_MEMORY = 32768
MAX_INLINE_BYTES = 4096
MAX_GRID = (1 << 32) - 1

Size3 = tuple[int, int, int]


def check_view(length: int, limit: int) -> None:
    if not 0 <= length <= limit:
        raise ValidationError(
            f"a view of {length} bytes does not fit the buffer's {limit}: ask for at most {limit}"
        )


def check_buffer_index(index: int, limit: int = MAX_BUFFERS) -> None:
    if not 0 <= index < limit:
        raise ValidationError(
            f"buffer index {index} is out of range: a kernel has the indices 0 to {limit - 1}"
        )


def check_offset(offset: int, length: int) -> None:
    if not 0 <= offset < length:
        raise ValidationError(
            f"offset {offset} is outside a buffer of {length} bytes: pass 0 to {length - 1}"
        )


def check_range(start: int, count: int, limit: int, what: str) -> None:
    """[start, start + count) must lie within [0, limit)."""
    if start < 0 or count < 0 or start + count > limit:
        raise ValidationError(
            f"{what} {start} to {start + count} is out of range: there are {limit}"
        )


def check_inline_bytes(length: int, given: int) -> None:
    if not 0 < length <= MAX_INLINE_BYTES:
        raise ValidationError(
            f"setBytes of {length} bytes: pass 1 to {MAX_INLINE_BYTES} bytes, use a buffer for more"
        )
    if given < length:
        raise ValidationError(
            f"setBytes of {length} bytes from data of only {given}: pass length={given}"
        )


def check_threadgroup_length(length: int, index: int) -> None:
    if not 0 <= index < MAX_THREADGROUP_ARGUMENTS:
        raise ValidationError(
            f"threadgroup memory index {index} is out of range: "
            f"there are 0 to {MAX_THREADGROUP_ARGUMENTS - 1}"
        )
    if length < 0 or length % 16:
        raise ValidationError(
            f"threadgroup memory of {length} bytes at index {index} is not a multiple of 16: "
            f"pass {max(0, -(-length // 16) * 16)}"
        )
    if length > MAX_THREADGROUP_MEMORY:
        raise ValidationError(
            f"threadgroup memory of {length} bytes at index {index} exceeds the device's "
            f"{MAX_THREADGROUP_MEMORY}"
        )


def check_threadgroup_total(static: int, dynamic: Sequence[int], kernel: str) -> None:
    total = static + sum(dynamic)
    if total > MAX_THREADGROUP_MEMORY:
        raise ValidationError(
            f"kernel `{kernel}` would use {total} bytes of threadgroup memory ({static} of its own "
            f"and {total - static} set): the device has {MAX_THREADGROUP_MEMORY}"
        )


def check_threadgroup(size: Size3, limit: int, kernel: str, required: Size3 = (0, 0, 0)) -> None:
    width, height, depth = size
    if min(size) < 1:
        raise ValidationError(
            f"threadgroup of {width} x {height} x {depth} for kernel `{kernel}` has an empty side: "
            "pass at least 1 for each"
        )
    threads = width * height * depth
    if threads > limit:
        raise ValidationError(
            f"threadgroup of {threads} threads ({width} x {height} x {depth}) exceeds {limit} "
            f"for kernel `{kernel}`: pass at most {limit} (maxTotalThreadsPerThreadgroup)"
        )
    if any(required) and size != required:
        raise ValidationError(
            f"threadgroup of {size} for kernel `{kernel}`: its pipeline requires {required}"
        )


def check_grid(size: Size3) -> None:
    if not all(0 <= side <= MAX_GRID for side in size):
        raise ValidationError(
            f"grid of {' x '.join(map(str, size))} threads: each side must be 0 to {MAX_GRID}"
        )


def check_arguments(
    arguments: Sequence[Argument],
    buffers: Sequence[int],
    threadgroup: Sequence[int],
    kernel: str,
) -> None:
    """Every argument of the kernel must have something bound."""
    for argument in arguments:
        bound = buffers if argument.kind == "buffer" else threadgroup
        if argument.index < len(bound) and bound[argument.index]:
            continue
        if argument.kind == "buffer":
            remedy = f"setBuffer_offset_atIndex_(buffer, 0, {argument.index})"
        else:
            remedy = f"setThreadgroupMemoryLength_atIndex_(length, {argument.index})"
        raise ValidationError(
            f"kernel `{kernel}` needs its {argument.kind} argument `{argument.name}` "
            f"({argument.type}) at index {argument.index}: call {remedy} before the dispatch"
        )


def check_indirect(offset: int, size: int, length: int) -> None:
    if offset % 4:
        raise ValidationError(f"indirect buffer offset {offset} is not a multiple of 4")
    check_range(offset, size, length, "the indirect arguments at bytes")


def check_copy(source: int, source_length: int, to: int, to_length: int, size: int) -> None:
    if size < 0:
        raise ValidationError(f"a copy of {size} bytes: pass a size of 0 or more")
    check_range(source, size, source_length, "copying from bytes")
    check_range(to, size, to_length, "copying to bytes")


def check_fill(value: int) -> None:
    if not 0 <= value <= 255:
        raise ValidationError(f"fill value {value} is not a byte: pass 0 to 255")


def check_open(ended: bool, what: str) -> None:
    if ended:
        raise ValidationError(f"{what} after endEncoding: make a new encoder")


def check_pipeline(kernel: int, what: str) -> None:
    if not kernel:
        raise ValidationError(f"{what} without a pipeline: call setComputePipelineState_ first")


def check_indirect_pipeline(supported: bool, kernel: str) -> None:
    if not supported:
        raise ValidationError(
            f"the pipeline of kernel `{kernel}` cannot be used in an indirect command buffer: "
            "make it from a descriptor after setSupportIndirectCommandBuffers_(True)"
        )


def check_uncommitted(committed: bool, what: str) -> None:
    if committed:
        raise ValidationError(f"{what} after commit: make a new command buffer from the queue")


def check_committed(committed: bool, what: str) -> None:
    if not committed:
        raise ValidationError(f"{what} before commit would never end: call commit() first")


def check_no_encoder(open_encoder: bool, what: str) -> None:
    if open_encoder:
        raise ValidationError(f"{what} while an encoder is open: call its endEncoding() first")


def check_heap_options(heap: int, wanted: int) -> None:
    if heap != wanted:
        raise ValidationError(
            f"a buffer with storage mode {wanted} cannot live in a heap with storage mode {heap}: "
            "pass the heap's own resourceOptions()"
        )


def check_max_threads(wanted: int) -> None:
    if not 0 <= wanted <= MAX_THREADS:
        raise ValidationError(
            f"maxTotalThreadsPerThreadgroup of {wanted}: pass 1 to {MAX_THREADS}, or 0 for any"
        )
