"""The command queue: commands are encoded at once, committed in batches, waited for when read.

Every command gets a ticket, the number of its command buffer. The device runs command buffers in
order. If one fails, the next wait raises its error, and so does every wait for its ticket. A check
is a function that looks at what a kernel reported: what it finds is raised by the next wait only,
because the other results of that command buffer are right.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lbrx.errors import DeviceError
from lbrx.interrupt import UNINTERRUPTED
from lbrx.metal.binding import CallError, Metal, autorelease_pool, checking_modes
from lbrx.metal.buffer import Buffer
from lbrx.metal.commands import (
    Argument,
    Check,
    Command,
    Dispatch,
    Encoded,
    Size,
    Work,
    current_work,
    recorder,
)
from lbrx.metal.hazards import Hazards
from lbrx.metal.library import Pipeline

# macOS kills long command buffers, short ones cost time: MLX and llama.cpp use about these limits.
MAX_OPERATIONS = 50
MAX_BYTES = 50 << 20


@dataclass(slots=True)
class Submission:
    """A command buffer with its bookkeeping."""

    ticket: int
    commands: Any
    kernels: dict[str, None] = field(default_factory=dict)  # names in order, each once
    hosts: list[object] = field(default_factory=list)  # owners of memory that Metal does not retain
    checks: list[Check] = field(default_factory=list)  # called when it has completed
    operations: int = 0
    nbytes: int = 0


class Observer(Protocol):
    """Is told of every command, such as a profiler: each command gets its own command buffer."""

    def note(self, command: Command, commands: Any) -> None:
        """Called when `commands`, the command's MTLCommandBuffer, has been committed."""


class CommandQueue:
    """An MTLCommandQueue with one open command buffer; any thread may use it."""

    def __init__(
        self, queue: Any, max_operations: int = MAX_OPERATIONS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._queue = queue
        self._max_operations = max_operations
        self._max_bytes = max_bytes
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._open: Submission | None = None
        self._encoder: Any = None
        self._in_flight: deque[Submission] = deque()
        self._last = 0  # the newest ticket
        self._completed = 0  # all tickets up to this one have ended
        self._failures: dict[int, DeviceError] = {}
        self._unreported: list[int] = []
        self._found: list[Exception] = []  # by checks, and not raised yet
        self._dispatches: Counter[str] = Counter()
        self._hazards = Hazards()  # of the open encoder
        self.observer: Observer | None = None

    # ---- encoding ----

    def dispatch(
        self,
        pipeline: Pipeline,
        arguments: Sequence[Argument],
        grid: Size,
        group: Size,
        *,
        threadgroup_memory: Sequence[int] = (),
        kernel: str = "",
        variant: str = "",
        check: Check | None = None,
    ) -> int:
        """Encode a kernel over `grid` threads in threadgroups of `group`; returns the ticket.

        It is counted under `kernel:variant`, by default the function's name. `check` is called
        after the kernel has ended; an exception that it returns is raised by the next wait.
        """
        made = Dispatch(
            *(pipeline, tuple(arguments), grid, group, tuple(threadgroup_memory)),
            *(kernel, variant, check, self._work()),
        )
        return self.run(made)

    def encode(
        self,
        name: str,
        buffers: Sequence[Buffer],
        encode: Callable[[Any, Sequence[Buffer]], object],
        variant: str = "",
    ) -> int:
        """Call `encode(commands, buffers)`, which adds its own encoders to the MTLCommandBuffer;
        returns the ticket."""
        return self.run(Encoded(name, tuple(buffers), encode, variant, self._work()))

    def _work(self) -> Work | None:
        return current_work() if self.observer is not None or recorder() is not None else None

    def run(self, command: Command) -> int:
        """Encode a command, or append it to the list if this thread records; returns the ticket."""
        listed = recorder()
        if listed is not None:
            listed.commands.append(command)
            return self._last
        if isinstance(command, Encoded):
            return self._run_encoded(command)
        return self._last if 0 in command.grid else self._run_dispatch(command)

    def observe(self, observer: Observer | None) -> None:
        """Set the observer of the commands that follow, or remove it."""
        with self._lock:
            self.commit()
            self.observer = observer

    def _run_dispatch(self, command: Dispatch) -> int:
        pipeline = command.pipeline
        _check_group(pipeline, command.group)
        with self._encoding(pipeline.name) as submission:
            encoder = self._compute_encoder(submission)
            if self._hazards.admit(command):
                encoder.memoryBarrierWithScope_(Metal.MTLBarrierScopeBuffers)
            encoder.setComputePipelineState_(pipeline.state)
            for index, argument in enumerate(command.arguments):
                self._bind(submission, encoder, argument, index)
            for index, length in enumerate(command.threadgroup_memory):
                encoder.setThreadgroupMemoryLength_atIndex_(length, index)
            encoder.dispatchThreads_threadsPerThreadgroup_(
                Metal.MTLSizeMake(*command.grid), Metal.MTLSizeMake(*command.group)
            )
            if command.check is not None:
                submission.checks.append(command.check)
            return self._counted(submission, command, pipeline.name)

    def _run_encoded(self, command: Encoded) -> int:
        with self._encoding(command.name) as submission:
            self._end_encoder()
            command.encode(submission.commands, command.buffers)
            for buffer in command.buffers:
                self._use(submission, buffer)
            submission.hosts.append(command.encode)  # not the buffers, which may be reused
            return self._counted(submission, command, command.name)

    @property
    def observed(self) -> bool:
        """Whether each command runs alone: for an observer, or in softmetal's checking modes."""
        return self.observer is not None or bool(checking_modes())

    def _encoding(self, name: str) -> _Encoding:
        self._refuse_fork()
        return _Encoding(self, name)

    def _compute_encoder(self, submission: Submission) -> Any:
        if self._encoder is None:
            with autorelease_pool():
                concurrent = Metal.MTLDispatchTypeConcurrent
                make = submission.commands.computeCommandEncoderWithDispatchType_
                self._encoder = make(concurrent)
            self._hazards.clear()
        return self._encoder

    def _end_encoder(self) -> None:
        if self._encoder is not None:
            self._encoder.endEncoding()
            self._encoder = None

    def _bind(self, submission: Submission, encoder: Any, argument: Argument, index: int) -> None:
        if isinstance(argument, Buffer):
            # Metal refuses an offset at the end of a buffer, where an empty part may start.
            offset = argument.offset if argument.size else 0
            encoder.setBuffer_offset_atIndex_(argument.block.handle, offset, index)
            self._use(submission, argument)
        elif argument is not None:
            encoder.setBytes_length_atIndex_(argument, len(argument), index)
        else:  # otherwise the encoder keeps what an earlier kernel bound
            encoder.setBuffer_offset_atIndex_(None, 0, index)

    def _use(self, submission: Submission, buffer: Buffer) -> None:
        block = buffer.block
        block.ticket = submission.ticket
        if block.host is not None:
            submission.hosts.append(block.host)
        submission.nbytes += buffer.size

    def _counted(self, submission: Submission, command: Command, name: str) -> int:
        submission.kernels[name] = None
        submission.operations += 1
        self._dispatches.update(command.counts)
        if self.observer is not None:
            self.commit()
            self.observer.note(command, submission.commands)
            return submission.ticket
        if submission.operations >= self._max_operations or submission.nbytes >= self._max_bytes:
            self.commit()
        return submission.ticket

    def _current(self) -> Submission:
        """The open command buffer; call with the queue locked."""
        if self._open is None:
            with autorelease_pool():
                commands = self._queue.commandBuffer()
            self._last += 1
            self._open = Submission(self._last, commands)
        return self._open

    # ---- ordering, for events ----

    def signal(self, event: Any, value: int) -> int:
        """Make the device set an event after everything encoded so far."""
        with self._encoding("an event's signal") as submission:
            self._end_encoder()
            submission.commands.encodeSignalEvent_value_(event, value)
            self.commit()
            return submission.ticket

    def hold(self, event: Any, value: int) -> None:
        """Make the device wait for an event before anything encoded later."""
        with self._encoding("an event's wait") as submission:
            self._end_encoder()
            submission.commands.encodeWaitForEvent_value_(event, value)

    # ---- submission ----

    def commit(self) -> int:
        """Commit the open command buffer; returns the newest ticket."""
        self._refuse_fork()
        with UNINTERRUPTED, self._lock:
            self._end_encoder()
            if self._open is not None:
                self._open.commands.commit()
                self._in_flight.append(self._open)
                self._open = None
            self._reap()
            return self._last

    def completed(self) -> int:
        """The newest ticket up to which all work has ended, with or without errors."""
        self._refuse_fork()
        with self._lock:
            self._reap()
            return self._completed

    def wait(self, ticket: int | None = None) -> None:
        """Block until the work up to `ticket` has ended, or all work without a ticket.

        Raises DeviceError for work that failed since the last wait, or what a check found.
        """
        wrong = self._failures or self._found
        if ticket == 0 or (ticket is not None and ticket <= self._completed and not wrong):
            return
        self.drain(ticket)
        with self._lock:
            self._report(ticket)

    def drain(self, ticket: int | None = None) -> None:
        """Block like `wait`, and leave errors to the next wait."""
        self._refuse_fork()
        with self._lock:
            if self._open is not None and (ticket is None or ticket >= self._open.ticket):
                self.commit()
            pending = [s for s in self._in_flight if ticket is None or s.ticket <= ticket]
        for submission in pending:
            submission.commands.waitUntilCompleted()
        with self._lock:
            self._reap()

    def counts(self) -> dict[str, int]:
        """The number of dispatches of each kernel, by `kernel:variant`."""
        with self._lock:
            return dict(self._dispatches)

    def _reap(self) -> None:
        while self._in_flight:
            head = self._in_flight[0]
            status = head.commands.status()
            if status < Metal.MTLCommandBufferStatusCompleted:
                return
            if status == Metal.MTLCommandBufferStatusError:
                self._failures[head.ticket] = _failure(head)
                self._unreported.append(head.ticket)
            else:
                found = (check() for check in head.checks)
                self._found += [problem for problem in found if problem is not None]
            self._completed = head.ticket
            self._in_flight.popleft()

    def _report(self, ticket: int | None) -> None:
        own = ticket if ticket in self._failures else None
        failed = own if own is not None else next(iter(self._unreported), None)
        if failed is None:
            if self._found:
                raise self._found.pop(0)
            return
        if failed in self._unreported:
            self._unreported.remove(failed)
        raise DeviceError(*self._failures[failed].args)

    def _refuse_fork(self) -> None:
        if os.getpid() != self._process:
            raise DeviceError(
                "a Metal device does not survive a fork: start the process with "
                "multiprocessing's 'spawn' method"
            )


class _Encoding:
    """Holds the queue's lock during encoding, and adds the command's name to errors of Metal."""

    __slots__ = ("_name", "_queue")

    def __init__(self, queue: CommandQueue, name: str) -> None:
        self._queue = queue
        self._name = name

    def __enter__(self) -> Submission:
        UNINTERRUPTED.begin()
        self._queue._lock.acquire()
        try:
            return self._queue._current()
        except BaseException:
            self._queue._lock.release()
            UNINTERRUPTED.end()
            raise

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        self._queue._lock.release()
        UNINTERRUPTED.end()
        if isinstance(problem, CallError):
            raise DeviceError(f"{self._name}: {problem}") from problem


def _check_group(pipeline: Pipeline, group: Size) -> None:
    threads = group[0] * group[1] * group[2]
    if threads > pipeline.max_threads:
        raise DeviceError(
            f"a threadgroup of {threads} threads exceeds {pipeline.max_threads} for kernel "
            f"{pipeline.name}: pass a smaller group"
        )


def _failure(submission: Submission) -> DeviceError:
    """The error of a command buffer with the name of the kernel, which Apple's errors lack."""
    error = submission.commands.error()
    text = str(error.localizedDescription()) if error is not None else "no reason given"
    named = [name for name in submission.kernels if name in text]
    if named or len(submission.kernels) == 1:
        return DeviceError(f"kernel {(named or list(submission.kernels))[0]} failed: {text}")
    several = ", ".join(submission.kernels) or "(none)"
    return DeviceError(f"one of the kernels {several} failed: {text}")
