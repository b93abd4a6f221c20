"""What Apple's debug layer refuses. Pure functions of plain values; each raises ValidationError.

They are always active: they keep memory safe, and raise at the call that is wrong. Apple's layer is
optional, and ends the process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from softmetal.errors import ValidationError
from softmetal.types import (
    MAX_BUFFERS,
    MAX_THREADGROUP_ARGUMENTS,
    MAX_THREADS,
    SIMD_WIDTH,
    Argument,
)

MAX_THREADGROUP_MEMORY = 32768
MAX_INLINE_BYTES = 4096
MAX_GRID = (1 << 32) - 1
MAX_EVENT_VALUE = (1 << 64) - 1

SHARED, MANAGED, PRIVATE = range(3)  # MTLStorageMode
HEAP_STORAGE = frozenset((SHARED, PRIVATE))
_STORAGE = ("shared", "managed", "private", "memoryless")

Size3 = tuple[int, int, int]


class Binding(NamedTuple):
    """What is bound to a buffer index of an encoder."""

    address: int = 0  # 0: nothing
    length: int = 0  # bytes from the address on
    inline: bool = False  # set by setBytes: kernels may only read it


def check_view(length: int, limit: int) -> None:
    if not 0 <= length <= limit:
        raise ValidationError(
            f"a view of {length} bytes does not fit the buffer's {limit}: ask for at most {limit}"
        )


def check_element(index: int) -> int:
    if index < 0:
        raise ValidationError(f"index {index} of memory of unknown length: pass 0 or more")
    return index


def check_slice(part: slice) -> tuple[int, int]:
    """Start and stop."""
    if part.stop is None or part.step not in (None, 1):
        raise ValidationError(
            f"a slice [{part.start}:{part.stop}:{part.step}] of memory of unknown length: give its "
            "end and no step, or use as_buffer(count)"
        )
    start, stop = check_element(part.start or 0), check_element(part.stop)
    return start, max(start, stop)


def check_elements(values: Sequence[object], count: int) -> None:
    if len(values) != count:
        raise ValidationError(f"{len(values)} values for {count} bytes: a slice keeps its length")
    for value in values:
        if not isinstance(value, bytes | bytearray) or len(value) != 1:
            raise ValidationError(
                f"{value!r} is not a byte string of length 1: assign such, or write through "
                "as_buffer(count)"
            )


def check_buffer_index(index: int, limit: int = MAX_BUFFERS) -> None:
    if not 0 <= index < limit:
        raise ValidationError(
            f"buffer index {index} is out of range: a kernel has the indices 0 to {limit - 1}"
        )


def check_buffer(buffer: object, what: str) -> None:
    if buffer is None:
        raise ValidationError(
            f"{what}: no buffer (None): pass one; a device returns None if it has too little memory"
        )


def check_length(length: int) -> None:
    if length < 1:
        raise ValidationError(f"a length of {length} bytes: pass at least 1")


def check_storage(mode: int, allowed: Collection[int], what: str) -> None:
    if mode not in allowed:
        given = _STORAGE[mode] if mode < len(_STORAGE) else f"{mode}, which is none,"
        known = " or ".join(_STORAGE[each] for each in sorted(allowed))
        raise ValidationError(f"storage mode {given} for {what}: pass {known}")


def check_cpu_visible(mode: int, label: str | None) -> None:
    if mode == PRIVATE:
        name = f" {label!r}" if label else ""
        raise ValidationError(
            f"the contents of buffer{name} are private to the device: make it with storage mode "
            "shared, or copy it to a shared buffer with a blit encoder"
        )


def check_managed(mode: int, what: str) -> None:
    if mode != MANAGED:
        raise ValidationError(
            f"{what} of a resource with storage mode {_STORAGE[mode]}: it is for managed ones, "
            "leave it out"
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


def check_threadgroup_length(length: int, index: int, limit: int) -> None:
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
    if length > limit:
        raise ValidationError(
            f"threadgroup memory of {length} bytes at index {index} exceeds the device's {limit} "
            "(maxThreadgroupMemoryLength): use smaller tiles"
        )


def check_threadgroup_total(static: int, dynamic: Sequence[int], kernel: str, limit: int) -> None:
    total = static + sum(dynamic)
    if total > limit:
        raise ValidationError(
            f"kernel `{kernel}` would use {total} bytes of threadgroup memory ({static} static "
            f"and {total - static} set): the device has {limit} (maxThreadgroupMemoryLength), "
            f"use {total - limit} less"
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


def check_simd_multiple(size: Size3, kernel: str) -> None:
    threads = size[0] * size[1] * size[2]
    if threads % SIMD_WIDTH:
        raise ValidationError(
            f"threadgroup of {threads} threads for kernel `{kernel}`, whose pipeline was promised "
            f"multiples of {SIMD_WIDTH}: pass {-(-threads // SIMD_WIDTH) * SIMD_WIDTH}, or make it "
            "without setThreadGroupSizeIsMultipleOfThreadExecutionWidth_"
        )


def check_grid(size: Size3) -> None:
    if not all(0 < side <= MAX_GRID for side in size):
        raise ValidationError(
            f"grid of {' x '.join(map(str, size))} threads: each side must be 1 to {MAX_GRID}, "
            "leave the dispatch out where there is nothing to do"
        )


def check_buffers(arguments: Sequence[Argument], bindings: Sequence[Binding], kernel: str) -> None:
    """Every buffer argument has memory that is long enough, aligned, and writable if written."""
    for a in arguments:
        if a.kind != "buffer":
            continue
        bound = bindings[a.index] if a.index < len(bindings) else Binding()
        what = f"buffer argument `{a.name}` ({a.type}) of kernel `{kernel}` at index {a.index}"
        if not bound.address:
            raise ValidationError(
                f"{what} has nothing bound: call setBuffer_offset_atIndex_(buffer, 0, {a.index}) "
                "before the dispatch"
            )
        if bound.length < a.size:
            raise ValidationError(
                f"{what} needs {a.size} bytes and has {bound.length} from its offset to the end: "
                f"bind {a.size} or more"
            )
        if bound.address % a.alignment:
            raise ValidationError(
                f"{what} starts {bound.address % a.alignment} bytes after a multiple of "
                f"{a.alignment}, its alignment: pass an offset that is a multiple of {a.alignment}"
            )
        if bound.inline and a.writable:
            raise ValidationError(
                f"{what} may be written, and what setBytes binds is read-only: bind a buffer, or "
                "declare the argument `constant` or `device const`"
            )


def check_scratch(
    arguments: Sequence[Argument], lengths: Sequence[int], kernel: str, emptied: int = 0
) -> None:
    """Every threadgroup argument has its memory.

    llama.cpp sets 0 where a kernel never uses its argument: `emptied` has a bit for each of these.
    """
    for a in arguments:
        if a.kind != "threadgroup":
            continue
        length = lengths[a.index] if a.index < len(lengths) else 0
        if length < a.size and not (length == 0 and emptied >> a.index & 1):
            raise ValidationError(
                f"threadgroup argument `{a.name}` ({a.type}) of kernel `{kernel}` at index "
                f"{a.index} needs {a.size} bytes or more and has {length}: call "
                f"setThreadgroupMemoryLength_atIndex_(length, {a.index}) before the dispatch"
            )


def check_indirect(offset: int, size: int, length: int) -> None:
    if offset % 4:
        raise ValidationError(
            f"indirect buffer offset {offset} is not a multiple of 4: pass {offset // 4 * 4}"
        )
    check_range(offset, size, length, "the indirect arguments at bytes")


# DEVIATION: copies and fills of any offset and size are accepted, as Apple's own GPUs do; Apple
# documents multiples of 4 bytes for macOS.
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


def check_inherited(inherits: bool, what: str, remedy: str) -> None:
    if inherits:
        raise ValidationError(
            f"this indirect command buffer inherits its {what} from the encoder that executes it: "
            f"make it from a descriptor after {remedy}"
        )


def check_command_type(types: int, wanted: int) -> None:
    if not types & wanted:
        raise ValidationError(
            f"a command of type {wanted} in an indirect command buffer for types {types}: "
            f"make it from a descriptor after setCommandTypes_({types | wanted})"
        )


def check_indirect_size(count: int, bindings: int) -> None:
    if count < 1:
        raise ValidationError(f"an indirect command buffer of {count} commands: pass at least 1")
    if not 0 <= bindings <= MAX_BUFFERS:
        raise ValidationError(f"maxKernelBufferBindCount of {bindings}: pass 0 to {MAX_BUFFERS}")


def check_indirect_index(index: int, limit: int) -> None:
    if not 0 <= index < limit:
        raise ValidationError(
            f"buffer index {index} is out of range for an indirect command buffer with "
            f"maxKernelBufferBindCount {limit}: pass 0 to {limit - 1}, or make it with "
            f"setMaxKernelBufferBindCount_({index + 1})"
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


def check_heap_options(heap: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Of (storage mode, CPU cache mode)."""
    if heap != wanted:
        raise ValidationError(
            f"a buffer with storage mode {wanted[0]} and CPU cache mode {wanted[1]} cannot live in "
            f"a heap with storage mode {heap[0]} and CPU cache mode {heap[1]}: "
            "pass the heap's own resourceOptions()"
        )


def check_heap_type(placement: bool, placed: bool) -> None:
    if placement and not placed:
        raise ValidationError(
            "a placement heap finds no room by itself: call newBufferWithLength_options_offset_"
        )
    if placed and not placement:
        raise ValidationError(
            "an automatic heap places buffers itself: call newBufferWithLength_options_, or make "
            "the heap with setType_(MTLHeapTypePlacement)"
        )


def check_heap_offset(offset: int, alignment: int) -> None:
    if offset % alignment:
        raise ValidationError(
            f"heap offset {offset} is not a multiple of {alignment}, the alignment that "
            f"heapBufferSizeAndAlignWithLength_options_ gives: pass "
            f"{-(-offset // alignment) * alignment}"
        )


def check_event_value(value: int) -> None:
    if not 0 <= value <= MAX_EVENT_VALUE:
        raise ValidationError(f"event value {value}: pass 0 to {MAX_EVENT_VALUE}")


def check_signal(value: int, reached: int) -> None:
    check_event_value(value)
    if value < reached:
        raise ValidationError(
            f"signalling {value} would take an event back from {reached}: pass {reached} or more, "
            "or make a new event"
        )


def check_fence(updated: bool, here: bool) -> None:
    if not updated:
        raise ValidationError(
            "waiting for a fence that nothing has updated orders nothing: call updateFence_ in the "
            "encoder that must come first, before this one is encoded"
        )
    if here:
        raise ValidationError(
            "waiting for a fence that this same encoder has updated: call waitForFence_ first"
        )


def released_text(names: Sequence[str], when: str) -> str:
    listed = ", ".join(dict.fromkeys(names))
    return (
        f"the program released buffer {listed} before {when}, and a command buffer with unretained "
        "references uses it: keep it until the work is done, or use commandBuffer()"
    )


def check_alive(released: Sequence[str], when: str) -> None:
    if released:
        raise ValidationError(released_text(released, when))


def check_max_threads(wanted: int) -> None:
    if not 0 <= wanted <= MAX_THREADS:
        raise ValidationError(
            f"maxTotalThreadsPerThreadgroup of {wanted}: pass 1 to {MAX_THREADS}, or 0 for any"
        )
