"""MTLCommandQueue and MTLCommandBuffer: from encoded commands to a finished submission.

The first of these that sees the end of a command buffer finishes it (drops its references, runs its
handlers): a wait, the next commit, or, if it has handlers, a thread of its queue.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from gc import is_finalized
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from softmetal import checks
from softmetal.api import enums, host
from softmetal.api.buffer import MTLBuffer
from softmetal.api.checked import Inherited, also_resident, expand, shuffled
from softmetal.api.counters import MTLBlitPassDescriptor, MTLComputePassDescriptor
from softmetal.api.encoder import (
    MTLBlitCommandEncoder,
    MTLCommandEncoder,
    MTLComputeCommandEncoder,
)
from softmetal.api.event import MTLEvent
from softmetal.api.foundation import NSError
from softmetal.api.heap import used_memory
from softmetal.api.icb import MTLIndirectCommandBuffer
from softmetal.api.log import MTLLogState, deliver
from softmetal.api.memory import Arena
from softmetal.api.objects import Descriptor, Labelled, anything, flag, number, table
from softmetal.api.pipeline import MTLComputePipelineState
from softmetal.api.residency import MTLResidencySet
from softmetal.api.structs import integer
from softmetal.lifetime import AtDeallocation
from softmetal.types import Command, Completion, Execute, Resources, Signal, Wait
from softmetal.validation import (
    Binding,
    check_alive,
    check_committed,
    check_event_value,
    check_no_encoder,
    check_signal,
    check_uncommitted,
    released_text,
)

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice

log = logging.getLogger("softmetal")

CommandBufferHandler = Callable[["MTLCommandBuffer"], object]
IndirectExecution = tuple[
    MTLIndirectCommandBuffer,
    int,  # the first command
    int,  # and their number
    MTLComputePipelineState | None,
    list[Binding],
    Inherited | None,  # for the checking modes
]
E = TypeVar("E", bound=MTLCommandEncoder)
Release = tuple[str, float]  # a buffer's name and when the program dropped its last reference


class MTLCommandQueueDescriptor(Descriptor):
    __slots__ = ()
    properties = table(maxCommandBufferCount=number(64), logState=anything())


class MTLCommandBufferDescriptor(Descriptor):
    __slots__ = ()
    properties = table(
        retainedReferences=flag(True),
        errorOptions=number(enums.MTLCommandBufferErrorOptionNone),
        logState=anything(),
    )


class MTLCommandQueue(Labelled):
    """Runs its command buffers in the order in which they were enqueued."""

    __slots__ = (
        "__weakref__",
        "_device",
        "_end",
        "_executor",
        "_finishing",
        "_handle",
        "_ignored",
        "_in_flight",
        "_limit",
        "_log_state",
        "_order",
        "_residency",
        "_submitting",
        "_unfinished",
        "_watched",
        "_watching",
    )

    def __init__(self, device: MTLDevice, descriptor: MTLCommandQueueDescriptor) -> None:
        super().__init__()
        self._device = device
        self._executor = device._executor
        self._handle = self._executor.new_queue()
        self._end = AtDeallocation(self._executor.free_queue, self._handle)
        self._limit = max(1, descriptor.maxCommandBufferCount())
        self._log_state: MTLLogState | None = descriptor.logState()
        self._order: deque[MTLCommandBuffer] = deque()  # enqueued, not yet submitted
        self._in_flight: deque[MTLCommandBuffer] = deque()  # submitted, not yet finished
        self._submitting = threading.Lock()
        self._finishing = threading.RLock()  # a handler may wait for another command buffer
        self._watched: SimpleQueue[MTLCommandBuffer | None] | None = None
        self._residency: list[MTLResidencySet] = []
        self._ignored = False  # by macOS, which has ended one of its command buffers
        # Command buffers that count for the limit, where macOS is played.
        self._unfinished: weakref.WeakSet[MTLCommandBuffer] = weakref.WeakSet()

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device

    # MTL: -commandBuffer
    def commandBuffer(self) -> MTLCommandBuffer:
        return self._new(True, self._log_state)

    # MTL: -commandBufferWithUnretainedReferences
    # DEVIATION: memory lives until the work that uses it is done, also with unretained references.
    # Releasing a buffer too early is an error: of `commit` if it was released before, of the
    # command buffer if it was released while that ran. Apple's debug layer ends the process.
    def commandBufferWithUnretainedReferences(self) -> MTLCommandBuffer:
        return self._new(False, self._log_state)

    # MTL: -commandBufferWithDescriptor:
    def commandBufferWithDescriptor_(
        self, descriptor: MTLCommandBufferDescriptor
    ) -> MTLCommandBuffer:
        state = descriptor.logState() or self._log_state
        return self._new(descriptor.retainedReferences(), state)

    def _new(self, retains: bool, state: MTLLogState | None) -> MTLCommandBuffer:
        played = host.played()
        if played:
            host.take_turn(self)
        buffer = MTLCommandBuffer(self, retains, state, played)
        if played:
            self._unfinished.add(buffer)
            host.autorelease(buffer)
        return buffer

    # MTL: -insertDebugCaptureBoundary
    def insertDebugCaptureBoundary(self) -> None:
        return None

    # MTL: -addResidencySet:
    def addResidencySet_(self, residency: MTLResidencySet) -> None:
        if residency not in self._residency:
            self._residency.append(residency)

    # MTL: -addResidencySets:count:
    def addResidencySets_count_(self, sets: Sequence[MTLResidencySet], count: int) -> None:
        for residency in sets[:count]:
            self.addResidencySet_(residency)

    # MTL: -removeResidencySet:
    def removeResidencySet_(self, residency: MTLResidencySet) -> None:
        if residency in self._residency:
            self._residency.remove(residency)

    # MTL: -removeResidencySets:count:
    def removeResidencySets_count_(self, sets: Sequence[MTLResidencySet], count: int) -> None:
        for residency in sets[:count]:
            self.removeResidencySet_(residency)

    def _submit_ready(self) -> None:
        """Submit from the head of the order for as long as command buffers are committed."""
        told = []
        with self._submitting:
            order = self._order
            while order and order[0]._committed:
                head = order.popleft()
                # In flight first: a thread that sees the ticket must find the command buffer there.
                self._in_flight.append(head)
                self._device._busy.add(self)
                try:
                    head._ticket = self._executor.submit(self._handle, head._commands)
                except BaseException:
                    self._in_flight.remove(head)
                    head._end_indirect()
                    raise
                if head._scheduled_handlers or head._completed_handlers or head._log_state:
                    told.append(head)
        for buffer in told:
            buffer._scheduled_now()
            if buffer._completed_handlers or buffer._log_state is not None:
                self._watch(buffer)

    def _watch(self, buffer: MTLCommandBuffer) -> None:
        if self._watched is None:
            self._watched = SimpleQueue()
            self._watching = AtDeallocation(self._watched.put, None)
            threading.Thread(target=_finish_watched, args=(self._watched,), daemon=True).start()
        self._watched.put(buffer)

    def _reap(self) -> None:
        """Finish what is done, up to the first command buffer with handlers.

        Handlers never run here: the caller may hold a lock that they need.
        """
        if not self._finishing.acquire(blocking=False):
            return
        try:
            while self._in_flight and not self._in_flight[0]._completed_handlers:
                ticket = self._in_flight[0]._ticket
                outcome = self._executor.wait(ticket, 0) if ticket is not None else None
                if outcome is None:
                    return
                self._finish_head(outcome)
        finally:
            self._finishing.release()

    def _end_within(self, seconds: float) -> bool:
        """Finish what ends within this time; returns whether that is all."""
        deadline = time.monotonic() + seconds
        if not self._finishing.acquire(timeout=seconds):
            return False
        try:
            while self._in_flight:
                ticket, left = self._in_flight[0]._ticket, max(deadline - time.monotonic(), 0)
                outcome = self._executor.wait(ticket, left) if ticket is not None else None
                if outcome is None:
                    return False
                self._finish_head(outcome)
            return True
        finally:
            self._finishing.release()

    def _finish_head(self, outcome: Completion) -> None:
        # Removed after its completion is stored: if an interrupt (Ctrl-C) comes between, the next
        # call finishes it. Removed before its handlers run, as they may wait for later ones.
        head = self._in_flight[0]
        head._finish(outcome)
        self._in_flight.popleft()
        if not self._in_flight:
            self._device._busy.discard(self)
            if self._in_flight:  # another thread submitted meanwhile
                self._device._busy.add(self)
        if outcome.log or head._completed_handlers:
            head._notify(outcome)

    def _wait_for(self, buffer: MTLCommandBuffer) -> None:
        """Return once `buffer` and those before it have finished, their handlers too."""
        outcome = self._await(buffer) if buffer._outcome is None else None
        with self._finishing:
            while buffer in self._in_flight:
                head = self._in_flight[0]
                known = outcome if head is buffer else None
                self._finish_head(known or self._await(head))

    def _await(self, buffer: MTLCommandBuffer) -> Completion:
        outcome = self._executor.wait(buffer._ticket or buffer._known_ticket(), None)
        assert outcome is not None
        return outcome

    def _make_room(self) -> None:
        while len(self._in_flight) >= self._limit:
            self._wait_for(self._in_flight[0])


def _finish_watched(watched: SimpleQueue[MTLCommandBuffer | None]) -> None:
    while (buffer := watched.get()) is not None:
        buffer._queue._wait_for(buffer)
        del buffer


def _track(kept: list[object], released: list[Release], item: object) -> None:
    """Keep a buffer's memory alive, and record when the buffer itself is freed."""
    if not isinstance(item, MTLBuffer):
        kept.append(item)
        return
    name = repr(item._label) if item._label else f"of {item._length} bytes"

    def gone(_: object) -> None:  # runs at any moment on any thread, so it takes no lock
        released.append((name, time.monotonic()))

    kept += (item._memory, weakref.ref(item._presence(), gone))


class MTLCommandBuffer(Labelled):
    """Commands, the objects that they use, and their outcome."""

    __slots__ = (
        "__weakref__",
        "_announced",
        "_arenas",
        "_commands",
        "_commit_time",
        "_committed",
        "_completed_handlers",
        "_encoder",
        "_end",
        "_ended_by_host",
        "_enqueued",
        "_error_read",
        "_indirect",
        "_log_state",
        "_outcome",
        "_played",
        "_queue",
        "_released",
        "_retain",
        "_retained",
        "_retains",
        "_scheduled_handlers",
        "_sets",
        "_signals",
        "_ticket",
    )
    _absent = (
        "renderCommandEncoderWithDescriptor_",
        "parallelRenderCommandEncoderWithDescriptor_",
        "accelerationStructureCommandEncoder",
        "accelerationStructureCommandEncoderWithDescriptor_",
        *("resourceStateCommandEncoder", "resourceStateCommandEncoderWithDescriptor_"),
        *("presentDrawable_", "presentDrawable_atTime_", "presentDrawable_afterMinimumDuration_"),
    )

    def __init__(
        self, queue: MTLCommandQueue, retains: bool, state: MTLLogState | None, played: bool
    ) -> None:
        super().__init__()
        self._queue = queue
        self._ended_by_host: str | None = None  # the error of a command buffer that did not run
        self._played = played  # whether the rules of `host` hold
        self._retains = retains
        self._log_state = state
        self._commands: list[Command] = []
        self._retained: list[object] = []
        self._released: list[Release] = []
        self._retain: Callable[[object], None] = (
            self._retained.append if retains else partial(_track, self._retained, self._released)
        )
        self._signals: dict[int, int] = {}  # event handle -> value signalled here
        self._indirect: list[IndirectExecution] = []
        self._announced: list[object] = []  # by useResource and useHeap
        self._sets: list[MTLResidencySet] = []
        self._arenas: list[Arena] = []
        self._encoder: MTLCommandEncoder | None = None
        self._enqueued = self._committed = self._error_read = False
        self._commit_time = 0.0
        self._ticket: int | None = None
        self._outcome: Completion | None = None
        self._scheduled_handlers: list[CommandBufferHandler] = []
        self._completed_handlers: list[CommandBufferHandler] = []

    def __del__(self) -> None:
        if self._ticket is None or sys.is_finalizing():
            return
        if is_finalized(self):
            self._end = AtDeallocation(self._queue._executor.forget, self._ticket)
        else:
            self._queue._executor.forget(self._ticket)

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._queue._device

    # MTL: -commandQueue
    def commandQueue(self) -> MTLCommandQueue:
        return self._queue

    # MTL: -retainedReferences
    def retainedReferences(self) -> bool:
        return self._retains

    # MTL: -errorOptions
    def errorOptions(self) -> int:
        return enums.MTLCommandBufferErrorOptionNone

    # ---- encoding ----

    def _begin(self, what: str) -> None:
        if self._committed or self._encoder is not None:
            check_uncommitted(self._committed, what)
            check_no_encoder(True, what)

    def _opened(self, encoder: E) -> E:
        self._encoder = encoder
        if self._played:
            host.autorelease(encoder)
        return encoder

    # MTL: -computeCommandEncoder
    def computeCommandEncoder(self) -> MTLComputeCommandEncoder:
        self._begin("computeCommandEncoder")
        return self._opened(MTLComputeCommandEncoder(self, enums.MTLDispatchTypeSerial))

    # MTL: -computeCommandEncoderWithDispatchType:
    def computeCommandEncoderWithDispatchType_(self, type_: int) -> MTLComputeCommandEncoder:
        self._begin("computeCommandEncoder")
        type_ = type_ if type(type_) is int else integer(type_)
        return self._opened(MTLComputeCommandEncoder(self, type_))

    _converts = frozenset(("computeCommandEncoderWithDispatchType_",))

    # MTL: -computeCommandEncoderWithDescriptor:
    def computeCommandEncoderWithDescriptor_(
        self, descriptor: MTLComputePassDescriptor
    ) -> MTLComputeCommandEncoder:
        self._begin("computeCommandEncoder")
        attachments = descriptor.sampleBufferAttachments()
        self._retained += (a.sampleBuffer() for a in attachments._items.values())
        encoder = MTLComputeCommandEncoder(self, descriptor.dispatchType(), attachments)
        return self._opened(encoder)

    # MTL: -blitCommandEncoder
    def blitCommandEncoder(self) -> MTLBlitCommandEncoder:
        return self.blitCommandEncoderWithDescriptor_(None)

    # MTL: -blitCommandEncoderWithDescriptor:
    def blitCommandEncoderWithDescriptor_(
        self, descriptor: MTLBlitPassDescriptor | None
    ) -> MTLBlitCommandEncoder:
        self._begin("blitCommandEncoder")
        attachments = descriptor.sampleBufferAttachments() if descriptor else None
        if attachments is not None:
            self._retained += (a.sampleBuffer() for a in attachments._items.values())
        return self._opened(MTLBlitCommandEncoder(self, attachments))

    # MTL: -encodeSignalEvent:value:
    def encodeSignalEvent_value_(self, event: MTLEvent, value: int) -> None:
        self._begin("encodeSignalEvent_value_")
        check_signal(value, max(event._reached(), self._signals.get(event._handle, 0)))
        self._signals[event._handle] = value
        self._retained.append(event)
        self._commands.append(Signal(event._handle, value))

    # MTL: -encodeWaitForEvent:value:
    def encodeWaitForEvent_value_(self, event: MTLEvent, value: int) -> None:
        self._begin("encodeWaitForEvent_value_")
        check_event_value(value)
        self._retained.append(event)
        self._commands.append(Wait(event._handle, value))

    # MTL: -pushDebugGroup:
    def pushDebugGroup_(self, name: str) -> None:
        return None

    # MTL: -popDebugGroup
    def popDebugGroup(self) -> None:
        return None

    # MTL: -useResidencySet:
    def useResidencySet_(self, residency: MTLResidencySet) -> None:
        check_uncommitted(self._committed, "useResidencySet_")
        self._sets.append(residency)

    # MTL: -useResidencySets:count:
    def useResidencySets_count_(self, sets: Sequence[MTLResidencySet], count: int) -> None:
        for residency in sets[:count]:
            self.useResidencySet_(residency)

    def _inline(self, data: bytes) -> int:
        """The address of a copy that lives as long as the work."""
        arenas = self._arenas
        address = arenas[-1].put(data) if arenas else 0
        if not address:
            arenas.append(self._queue._device._new_arena())
            address = arenas[-1].put(data)
        return address

    # ---- submission ----

    # MTL: -enqueue
    def enqueue(self) -> None:
        check_uncommitted(self._committed, "enqueue")
        if not self._enqueued:
            self._enqueued = True
            self._queue._order.append(self)

    # MTL: -commit
    def commit(self) -> None:
        self._begin("commit")
        if self._released:
            check_alive([name for name, _ in self._released], "commit")
        if self._indirect:
            self._check_indirect()
        if self._played:
            host.check_working_set(self._retained, self.device().recommendedMaxWorkingSetSize())
            self._ended_by_host = host.watchdog.verdict(self._queue)
            if self._ended_by_host is not None:
                self._commands = [c for c in self._commands if isinstance(c, Signal)]
        if (current := checks.current()) is not None:
            self._commands = shuffled(self._expanded(), current.seed)
        queue = self._queue
        if not queue._executor.unified:
            self._commands += self._resident_memory()
            self._commands[:0] = [copy for arena in self._arenas for copy in arena.upload()]
        if queue._in_flight:
            queue._reap()
            queue._make_room()
        self._commit_time = time.monotonic()
        for commands, *_ in self._indirect:
            commands._users.add(self)
        if not self._enqueued:
            self._enqueued = True
            queue._order.append(self)
        self._committed = True
        queue._submit_ready()

    def _check_indirect(self) -> None:
        for commands, start, count, pipeline, bound, _ in self._indirect:
            commands._flush(range(start, start + count))
            if commands._inherits_buffers or commands._inherits_pipeline:
                commands._check_inherited(start, count, pipeline, bound)
            if self._played:
                host.check_resident(commands, range(start, start + count), self._resident())

    def _resident(self) -> list[object]:
        """What encoders have announced, and what residency sets hold."""
        return [*self._announced, *self._in_sets()]

    def _in_sets(self) -> list[object]:
        committed = (s._committed.values() for s in (*self._queue._residency, *self._sets))
        return [item for each in committed for item in each]

    def _resident_memory(self) -> list[Command]:
        """For a device with its own memory: what residency sets make reachable."""
        return [
            use
            for residency in (*self._queue._residency, *self._sets)
            for use in used_memory(residency._committed.values(), written=True)
        ]

    def _expanded(self) -> list[Command]:
        """The commands for the checking modes: indirect command buffers are expanded, and kernels
        may access what residency sets hold."""
        buffers, in_sets = iter(self._indirect), self._in_sets()
        commands: list[Command] = []
        for command in self._commands:
            if isinstance(command, Execute):
                indirect, *_, inherited = next(buffers)
                commands += expand(command, indirect, inherited)
            else:
                commands.append(command)
        if not in_sets:
            return commands
        return [also_resident(c, in_sets) if isinstance(c, Resources) else c for c in commands]

    def _known_ticket(self) -> int:
        """The ticket; waits while an earlier command buffer of the queue is not committed yet."""
        while self._ticket is None:
            time.sleep(0.001)
        return self._ticket

    def _scheduled_now(self) -> None:
        for handler in self._scheduled_handlers:
            self._call(handler)
        self._scheduled_handlers.clear()

    def _call(self, handler: CommandBufferHandler) -> None:
        try:
            handler(self)
        except Exception:
            log.exception("a handler of a command buffer failed")

    def _finish(self, outcome: Completion) -> None:
        if self._ended_by_host is not None:
            outcome = outcome._replace(error=self._ended_by_host)
        self._outcome = self._with_releases(outcome) if self._released else outcome
        if self._played:
            self._queue._unfinished.discard(self)
        if self._indirect:
            self._end_indirect()
        self._retained.clear()
        self._announced.clear()
        self._sets.clear()
        self._commands = []
        if self._arenas:
            self._give_arenas_back(outcome)

    def _give_arenas_back(self, outcome: Completion) -> None:
        if outcome.error is not None:
            for arena in self._arenas:
                arena.failed()
        self._queue._device._arenas.extend(self._arenas)
        self._arenas = []

    def _end_indirect(self) -> None:
        for commands, *_ in self._indirect:
            commands._users.discard(self)
        self._indirect.clear()

    def _notify(self, outcome: Completion) -> None:
        """Deliver the log and run the completed handlers."""
        if outcome.log:
            deliver(outcome.log, self._log_state)
        for handler in self._completed_handlers:
            self._call(handler)
        self._completed_handlers.clear()

    def _with_releases(self, outcome: Completion) -> Completion:
        """The outcome; an error if unretained buffers were freed before it ended."""
        if outcome.error is not None:
            return outcome
        early = [name for name, when in self._released if when < outcome.end]
        if not early:
            return outcome
        return outcome._replace(error=released_text(early, "the command buffer had completed"))

    # MTL: -addScheduledHandler:
    def addScheduledHandler_(self, handler: CommandBufferHandler) -> None:
        check_uncommitted(self._committed, "addScheduledHandler_")
        self._scheduled_handlers.append(handler)

    # MTL: -addCompletedHandler:
    def addCompletedHandler_(self, handler: CommandBufferHandler) -> None:
        check_uncommitted(self._committed, "addCompletedHandler_")
        self._completed_handlers.append(handler)

    # MTL: -waitUntilScheduled
    def waitUntilScheduled(self) -> None:
        check_committed(self._committed, "waitUntilScheduled")
        self._known_ticket()

    # MTL: -waitUntilCompleted
    def waitUntilCompleted(self) -> None:
        if not self._committed:
            check_committed(False, "waitUntilCompleted")
        self._queue._wait_for(self)

    # ---- outcome ----

    # MTL: -status
    def status(self) -> int:
        if self._outcome is None and self._ticket is not None and self._queue._in_flight:
            self._queue._reap()
        if self._outcome is not None:
            failed = self._outcome.error is not None
            return enums.MTLCommandBufferStatusError if failed else _COMPLETED
        if self._ticket is not None:
            return enums.MTLCommandBufferStatusScheduled
        if self._committed:
            return enums.MTLCommandBufferStatusCommitted
        return enums.MTLCommandBufferStatusEnqueued if self._enqueued else _NOT_ENQUEUED

    # MTL: -error
    # DEVIATION: every failure has the code MTLCommandBufferErrorInternal; its text has the cause.
    def error(self) -> NSError | None:
        if self._outcome is None or self._outcome.error is None:
            return None
        if not self._error_read:
            self._error_read = True
            checks.mark_read(self._outcome.error)
        return NSError.described(
            enums.MTLCommandBufferErrorDomain,
            host.error_code(self._outcome.error),
            self._outcome.error,
        )

    # MTL: -logs
    # DEVIATION: `logs` is always empty: lines that kernels log go to the log state.
    def logs(self) -> list[object]:
        return []

    # MTL: -GPUStartTime
    def GPUStartTime(self) -> float:
        return self._outcome.start if self._outcome is not None else 0.0

    # MTL: -GPUEndTime
    def GPUEndTime(self) -> float:
        return self._outcome.end if self._outcome is not None else 0.0

    # MTL: -kernelStartTime
    def kernelStartTime(self) -> float:
        return self._commit_time if self._outcome is not None else 0.0

    # MTL: -kernelEndTime
    def kernelEndTime(self) -> float:
        return self._outcome.start if self._outcome is not None else 0.0


_COMPLETED = enums.MTLCommandBufferStatusCompleted
_NOT_ENQUEUED = enums.MTLCommandBufferStatusNotEnqueued
