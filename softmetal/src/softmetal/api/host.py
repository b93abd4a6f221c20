"""macOS as a program's host, played under SOFTMETAL_STRICT=host.

softmetal is more lenient than a Mac in ways that no call shows: memory lives as long as Python
refers to it, pages are small, everything is resident. Here are all the rules of this mode; the
objects of the API call them where they apply, and each is silent unless the mode is on. A command
buffer with its encoders has the mode that was on when it was made.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import threading
import weakref
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from softmetal import env
from softmetal.api import enums
from softmetal.api.extents import whole
from softmetal.api.memory import Lender
from softmetal.errors import ValidationError
from softmetal.profiles import Profile

if TYPE_CHECKING:
    from softmetal.api.buffer import MTLBuffer
    from softmetal.api.icb import MTLIndirectCommandBuffer
    from softmetal.api.pipeline import MTLComputePipelineState
    from softmetal.api.queue import MTLCommandQueue

log = logging.getLogger("softmetal")

PAGE = 16 << 10  # of macOS on Apple's chips
MAX_INDIRECT_COMMANDS = 16384
FIRST_SELF_CONTAINED = 9  # GPU family whose indirect commands need no pipeline of the encoder
FAULTY_TERMS = 32767
MAX_INDIRECT_OFFSET = (1 << 32) - 1


def played() -> bool:
    # Every command buffer asks for it.
    return b"SOFTMETAL_STRICT" in env.VARIABLES and "host" in env.strict()


findings: list[str] = []
"""What went wrong where no call can fail, such as memory used after its buffer was freed."""


def report(text: str) -> None:
    findings.append(text)
    log.error("%s", text)


# ---- memory ----


def check_pages(address: int, length: int) -> None:
    """newBufferWithBytesNoCopy takes complete pages."""
    if played() and (address % PAGE or length % PAGE):
        raise ValidationError(
            f"{length} bytes at {address:#x} are not complete pages of {PAGE}: align both to "
            f"{PAGE}, or copy the data with newBufferWithBytes_length_options_"
        )


def allocated_size(length: int, page: int) -> int:
    """Bytes in complete pages."""
    page = PAGE if played() else page
    return -(-length // page) * page


def contents_owner(buffer: MTLBuffer) -> object:
    """What a view of a buffer's contents keeps alive: on a Mac not the buffer. The memory stays
    valid here, and a view that outlives its buffer is reported."""
    return _Lent(buffer) if played() else buffer


class _Lent(Lender):
    """Keeps the memory of a buffer, and tells the buffer's end which views still exist."""

    def __init__(self, buffer: MTLBuffer) -> None:
        self._memory = buffer._memory
        self._name = repr(buffer._label) if buffer._label else f"of {buffer._length} bytes"
        self._views: list[weakref.ref[ctypes.Array[ctypes.c_ubyte]]] = []
        weakref.finalize(buffer._presence(), _ended, weakref.ref(self)).atexit = False

    def lend(self, view: ctypes.Array[ctypes.c_ubyte]) -> None:
        self._views.append(weakref.ref(view))


def _ended(lent: weakref.ref[_Lent]) -> None:
    owner = lent()
    if owner is not None and any(view() is not None for view in owner._views):
        report(
            f"a view of the contents of buffer {owner._name} outlives the buffer: on a Mac this is "
            "freed memory, keep the MTLBuffer as long as the view"
        )


def check_working_set(buffers: Iterable[object], limit: int) -> None:
    """A command buffer's memory must fit the device's working set at once."""
    sizes = {id(b._memory): b._memory.length for b in buffers if hasattr(b, "_memory")}
    if (total := sum(sizes.values())) > limit:
        raise ValidationError(
            f"a command buffer uses {total} bytes and the device's working set is {limit} "
            "(recommendedMaxWorkingSetSize): use less memory in one command buffer"
        )


def check_resident(
    commands: MTLIndirectCommandBuffer, indices: range, resident: Collection[object]
) -> None:
    """Buffers that only an indirect command buffer binds must be made resident."""
    known = set(map(id, resident))
    for index in indices:
        item = commands._items.get(index)
        for buffer in map(whole, item._bound) if item is not None else ():
            if buffer is not None and not {id(buffer), id(buffer.heap())} & known:
                raise ValidationError(
                    f"indirect command {index} uses a buffer of {buffer._length} bytes that is not "
                    "resident: call useResource_usage_ on the encoder, or add it to a residency set"
                )


def check_indirect_count(count: int) -> None:
    if played() and count > MAX_INDIRECT_COMMANDS:
        raise ValidationError(
            f"an indirect command buffer of {count} commands: Apple's GPUs take "
            f"{MAX_INDIRECT_COMMANDS}, use several"
        )


def check_indirect_device(profile: Profile | None) -> None:
    """Virtual machines have no indirect command buffers that work."""
    if profile is not None and profile.virtual and played():
        raise ValidationError(
            f"an indirect command buffer on an {profile.device_name!r}: macOS ends the process "
            "there with an assertion of IOGPUMetalResource, encode the commands instead"
        )


def touched(profile: Profile | None) -> set[MTLComputePipelineState] | None:
    """For an encoder of a GPU that reaches only the pipelines of indirect commands that the encoder
    has used itself: those before Apple9. None of others."""
    old = profile is not None and profile.family < FIRST_SELF_CONTAINED
    return set() if old and played() else None


def check_touched(
    commands: MTLIndirectCommandBuffer,
    indices: range,
    touched: Collection[MTLComputePipelineState],
) -> None:
    """The pipelines of indirect commands are among those that their encoder has used."""
    for index in indices:
        item = commands._items.get(index)
        if item is None or item._grid is None or item._pipeline is None:
            continue
        if item._pipeline not in touched:
            raise ValidationError(
                f"indirect command {index} runs kernel `{item._pipeline._artifact.name}`, which "
                "the encoder has not dispatched: GPUs before Apple9 fault; set its pipeline and "
                "dispatch nothing with it first, or encode the command instead"
            )


def check_indirect_offset(offset: int) -> None:
    """Indirect commands keep 32 bits of a buffer's offset. Apple's GPUs read at the wrong address
    without an error."""
    if offset > MAX_INDIRECT_OFFSET and played():
        raise ValidationError(
            f"offset {offset} of a buffer in an indirect command: Apple's GPUs keep 32 bits of it; "
            "bind a buffer that starts later in the same memory"
        )


def check_indirect_scratch(index: int, bindings: int) -> None:
    """The descriptor of an indirect command buffer says how much threadgroup memory is bound."""
    if index >= bindings and played():
        raise ValidationError(
            f"threadgroup memory at index {index} of an indirect command, whose buffer has "
            f"maxKernelThreadgroupMemoryBindCount {bindings}: make it after "
            f"setMaxKernelThreadgroupMemoryBindCount_({index + 1})"
        )


def check_archives(profile: Profile | None) -> str:
    """Why a device has no binary archives."""
    virtual = profile is not None and profile.virtual and played()
    return "a virtual machine's GPU has no binary archives" if virtual else ""


def check_product(profile: Profile | None, terms: int) -> None:
    """Sums of Apple's products that are right."""
    if terms >= FAULTY_TERMS and profile is not None and profile.family in (7, 8) and played():
        raise ValidationError(
            f"MPSMatrixMultiplication with interiorColumns of {terms}: on GPUs of the M1 and M2 "
            f"families its results are wrong from {FAULTY_TERMS} on, use a kernel"
        )


# ---- command buffers ----


def take_turn(queue: MTLCommandQueue) -> None:
    """commandBuffer() waits while as many command buffers as the queue allows are not completed."""
    while len(queue._unfinished) >= queue._limit:
        if not queue._in_flight:
            raise ValidationError(
                f"{queue._limit} command buffers of this queue exist and none is committed: "
                "commandBuffer() would wait for ever; commit them, or make the queue with "
                "newCommandQueueWithMaxCommandBufferCount_"
            )
        queue._wait_for(queue._in_flight[0])


def error_code(text: str) -> int:
    """The code of a command buffer's error: Metal tells time-outs and page faults apart."""
    if text == INTERRUPTED:
        return INTERACTIVITY_CODE
    if text == IGNORED:
        return enums.MTLCommandBufferErrorAccessRevoked
    if played() and "did not end within" in text:
        return enums.MTLCommandBufferErrorTimeout
    if played() and ("address" in text or "outside" in text):
        return enums.MTLCommandBufferErrorPageFault
    return enums.MTLCommandBufferErrorInternal


# Apple's texts and codes of what its watchdog does.
INTERRUPTED = (
    "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
)
IGNORED = (
    "Ignored (for causing prior/excessive GPU errors) "
    "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"
)
INTERACTIVITY_CODE = 14


class Watchdog:
    """Ends command buffers that keep the GPU from the screen. A program under test says which:
    how long kernels would take on a GPU is not known here."""

    def __init__(self) -> None:
        self._before: int | None = None  # command buffers that still pass

    def end(self, before: int = 0) -> None:
        """End the next command buffer that is committed in this mode, or the one after so many."""
        self._before = before

    def verdict(self, queue: MTLCommandQueue) -> str | None:
        """The error of a command buffer that is committed, which then does nothing. What follows it
        in its queue is ignored: a program needs another queue."""
        if queue._ignored:
            return IGNORED
        if self._before is None:
            return None
        self._before -= 1
        if self._before >= 0:
            return None
        self._before, queue._ignored = None, True
        return INTERRUPTED


watchdog = Watchdog()


# ---- autorelease pools ----


class _Pools(threading.local):
    def __init__(self) -> None:
        self.stack: list[list[object]] = [[]]  # the first one is drained when the thread ends


_pools = _Pools()
atexit.register(_pools.stack[0].clear)  # of the main thread, before modules are cleared


class AutoreleasePool:
    """Objects that are autoreleased within the block live until its end."""

    def __enter__(self) -> AutoreleasePool:
        _pools.stack.append([])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _pools.stack.pop().clear()


def autorelease(item: object) -> None:
    """The innermost pool of this thread keeps an object that a method without `new` or `alloc` in
    its name returns."""
    _pools.stack[-1].append(item)


def leaked() -> list[object]:
    """What this thread has autoreleased outside of every pool, and keeps until it ends."""
    return list(_pools.stack[0])


# ---- files ----


def archive_head() -> bytes:
    """How a binary archive starts: not as a ZIP file, since Apple's format is not a program's."""
    return b"softmetal binary archive\n" if played() else b""


def archive_refusal(kernels: Collection[object]) -> str:
    """Why an archive cannot be written; Apple's refuses an empty one."""
    return "the archive is empty: add a pipeline first" if played() and not kernels else ""
