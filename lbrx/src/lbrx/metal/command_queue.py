"""The command queue: commands are encoded at once, committed in batches, waited for when read.

Every command gets a ticket, the number of its command buffer. The device runs command buffers in
order. A command buffer holds commands of one thread, so that its failure costs no other thread's
results; `outcome.py` says which waits raise the error. A check is a function that looks at what a
kernel reported: what it finds is raised once, because the results of the command buffer are right.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

from lbrx.errors import DeviceError
from lbrx.interrupt import UNINTERRUPTED
from lbrx.metal.binding import (
    CallError,
    Metal,
    autorelease_pool,
    cuda_stream,
    declare_extent,
    error_of,
    is_checking,
)
from lbrx.metal.buffer import Block, Buffer
from lbrx.metal.commands import (
    Argument,
    Check,
    Command,
    Dispatch,
    Encoded,
    Size,
)
from lbrx.metal.hazards import Access, Hazards
from lbrx.metal.library import Pipeline
from lbrx.metal.outcome import Inbox, Outcome
from lbrx.metal.work_policy import work_policy
from lbrx.process import ThisProcess

# macOS kills long command buffers, short ones cost time: MLX and llama.cpp use about these limits.
MAX_OPERATIONS = 50
MAX_BYTES = 50 << 20
MAX_SECONDS = 0.1  # modelled; a GPU that does not draw for a second is taken away
# What macOS says of command buffers that it ends, and of all that follow them in their queue.
_INTERRUPTED = ("ImpactingInteractivity", "CallbackErrorTimeout")
_IGNORED = "SubmissionsIgnored"
_CONCURRENT = Metal.MTLDispatchTypeConcurrent


class Submission:
    """A command buffer with its bookkeeping."""

    __slots__ = (
        *("checks", "commands", "hosts", "inbox", "kernels", "most_bytes", "most_operations"),
        *("nbytes", "operations", "outcome", "seconds", "ticket"),
    )

    def __init__(self, ticket: int, commands: Any, inbox: Inbox) -> None:
        self.ticket = ticket
        self.commands = commands
        self.inbox = inbox  # of the thread that encodes it
        self.outcome = Outcome()
        self.kernels: dict[str, None] = {}  # names in order, each once
        self.hosts: list[object] = []  # owners of memory that Metal does not retain
        self.checks: list[Check] = []  # called when it has completed
        self.operations = self.nbytes = 0
        self.seconds = 0.0  # that the device takes, as far as it is modelled
        self.most_operations, self.most_bytes = MAX_OPERATIONS, MAX_BYTES


class Observer(Protocol):
    """Is told of every command, such as a profiler: each command gets its own command buffer."""

    def note(self, command: Command, commands: Any) -> None:
        """Called when `commands`, the command's MTLCommandBuffer, has been committed."""


class _Thread(threading.local):
    """What the queue keeps for each thread."""

    def __init__(self) -> None:
        self.inbox = Inbox()


class CommandQueue:
    """An MTLCommandQueue with one open command buffer; any thread may use it."""

    def __init__(
        self,
        queue: Any,
        max_operations: int = MAX_OPERATIONS,
        max_bytes: int = MAX_BYTES,
        *,
        resident: Any = None,
    ) -> None:
        self._queue = queue
        self._resident = resident  # an MTLResidencySet
        self._keep_resident()
        self._revoked = False  # whether macOS ignores what is committed to it
        self._max_operations = max_operations
        self._max_bytes = max_bytes
        self._process = ThisProcess.id
        self._lock = threading.RLock()
        self._open: Submission | None = None
        self._encoder: Any = None
        self._encoding = ""  # the name of the command that is being encoded, for errors
        self._in_flight: deque[Submission] = deque()
        self._last = 0  # the newest ticket
        self._completed = 0  # all tickets up to this one have ended
        self._thread = _Thread()
        # Failed work by ticket, as long as a result or a thread refers to it.
        self._failed: WeakValueDictionary[int, Outcome] = WeakValueDictionary()
        self._dispatches: Counter[str] = Counter()
        self._hazards = Hazards()  # of the open encoder
        self.observer: Observer | None = None
        self.download: Callable[[Buffer], Any] = _no_private_memory  # set by the context

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
        check_group(pipeline, group)
        made = Dispatch(
            *(pipeline, tuple(arguments), grid, group, tuple(threadgroup_memory)),
            *(kernel, variant, check),
        )
        return self.run(made)

    def copy(self, source: Buffer, target: Buffer) -> int:
        """Copy a buffer to one of the same size by a blit; returns the ticket."""
        with UNINTERRUPTED, self.encoding():
            return self.encode_foreign(_COPY, (source, target))

    def run(self, command: Command) -> int:
        """Encode a command; returns the ticket."""
        if isinstance(command, Encoded):
            with UNINTERRUPTED, self.encoding():
                return self.encode_foreign(command, command.buffers)
        if 0 in command.grid:
            return self._last
        with UNINTERRUPTED, self.encoding():
            return self.encode_dispatch(command, command.accesses, command.values)

    def observe(self, observer: Observer | None) -> None:
        """Set the observer of the commands that follow, or remove it."""
        with self._lock:
            self.commit()
            self.observer = observer

    def encoding(self) -> _Encoding:
        """A context within which this thread encodes and others do not. Ctrl-C must be delayed."""
        return _Encoding(self)

    def encode_dispatch(
        self,
        command: Dispatch,
        accesses: Sequence[Access],
        values: Sequence[tuple[int, bytes | None]],
    ) -> int:
        """Encode a kernel with these arguments in place of its own, within `encoding`; returns the
        ticket."""
        pipeline = command.pipeline
        submission = self._begin(pipeline.name)
        if self._failed:
            self._refuse_failed(accesses)
        encoder = self._encoder
        if encoder is None:
            encoder = self._new_encoder(submission)
        if self._hazards.admit(accesses):
            encoder.memoryBarrierWithScope_(Metal.MTLBarrierScopeBuffers)
        encoder.setComputePipelineState_(pipeline.state)
        set_buffer = encoder.setBuffer_offset_atIndex_
        for index, buffer, _ in accesses:
            # Metal refuses an offset at the end of a buffer, where an empty part may start.
            set_buffer(buffer.block.handle, buffer.offset if buffer.size else 0, index)
        if pipeline.checked:  # blocks are longer than the buffers in them
            for index, buffer, _ in accesses:
                declare_extent(encoder, index, buffer.size)
        for index, value in values:
            if value is not None:
                encoder.setBytes_length_atIndex_(value, len(value), index)
            else:  # otherwise the encoder keeps what an earlier kernel bound
                set_buffer(None, 0, index)
        for index, length in enumerate(command.threadgroup_memory):
            encoder.setThreadgroupMemoryLength_atIndex_(length, index)
        encoder.dispatchThreads_threadsPerThreadgroup_(*command.sizes)
        if command.check is not None:
            submission.checks.append(command.check)
        self._use(submission, accesses)
        self._dispatches[command.label] += 1
        return self._counted(submission, command, pipeline.name)

    def encode_foreign(self, command: Encoded, buffers: Sequence[Buffer]) -> int:
        """Encode a command with these buffers in place of its own, within `encoding`; returns the
        ticket."""
        submission = self._begin(command.name)
        accesses = command.accesses_to(buffers)
        if self._failed:
            self._refuse_failed(accesses)
        if self._encoder is not None:
            self._end_encoder()
        command.encode(submission.commands, buffers)
        self._use(submission, accesses)
        submission.seconds += command.seconds
        submission.hosts.append(command.encode)  # not the buffers, which may be reused
        self._dispatches.update(command.counts)
        return self._counted(submission, command, command.name)

    @property
    def observed(self) -> bool:
        """Whether each command runs alone: for an observer, or in softmetal's checking modes."""
        return self.observer is not None or is_checking()

    def _new_encoder(self, submission: Submission) -> Any:
        make = submission.commands.computeCommandEncoderWithDispatchType_
        self._encoder = make(_CONCURRENT)
        self._hazards.clear()
        return self._encoder

    def _end_encoder(self) -> None:
        if self._encoder is not None:
            self._encoder.endEncoding()
            self._encoder = None

    def _refuse_failed(self, accesses: Sequence[Access]) -> None:
        """Raise the error of an operand that failed work was to compute."""
        written = {id(buffer.block) for _, buffer, writes in accesses if writes}
        for _, buffer, _ in accesses:
            source = buffer.block.source
            if source is not None and source.error is not None and id(buffer.block) not in written:
                source.check()

    def _use(self, submission: Submission, accesses: Sequence[Access]) -> None:
        ticket, outcome, nbytes = submission.ticket, submission.outcome, submission.nbytes
        for _, buffer, writes in accesses:
            block = buffer.block
            block.ticket, source = ticket, block.source
            if writes:
                block.source = outcome
            elif source is not None and source is not outcome and not source.ended:
                outcome.sources.add(source)
            if block.host is not None:
                submission.hosts.append(block.host)
            nbytes += buffer.size
        submission.nbytes = nbytes

    def _counted(self, submission: Submission, command: Command, name: str) -> int:
        submission.kernels[name] = None
        submission.operations += 1
        if self.observer is not None:
            self.commit()
            if command.counts:  # copies between host and device are not shown as kernels
                self.observer.note(command, submission.commands)
            return submission.ticket
        if (
            submission.operations >= submission.most_operations
            or submission.nbytes >= submission.most_bytes
            or submission.seconds >= MAX_SECONDS
        ):
            self.commit()
        return submission.ticket

    def _begin(self, name: str) -> Submission:
        """The open command buffer of this thread for a command; call with the queue locked."""
        self._encoding = name
        inbox, submission = self._thread.inbox, self._open
        if submission is not None and submission.inbox is inbox:
            return submission
        if submission is not None:
            self.commit()
        if self._revoked:
            self._renew()
        commands = self._queue.commandBuffer()
        self._last += 1
        self._open = Submission(self._last, commands, inbox)
        self._limit(self._open)
        return self._open

    def _limit(self, submission: Submission) -> None:
        """Say how long a command buffer becomes, by the policy in force."""
        policy = work_policy()
        submission.most_operations = max(int(self._max_operations * policy.length), 1)
        submission.most_bytes = int(self._max_bytes * policy.length)
        if policy.first is not None and self.completed() == submission.ticket - 1:
            submission.most_operations = min(submission.most_operations, policy.first)

    def _renew(self) -> None:
        """Go on with another MTLCommandQueue, in smaller command buffers, when all work of this one
        has ended: macOS ignores what is committed to a queue after it has ended work there."""
        for submission in self._in_flight:
            submission.commands.waitUntilCompleted()
        self._reap()
        self._queue = self._queue.device().newCommandQueue()
        self._keep_resident()
        self._max_operations = max(self._max_operations // 2, 1)
        self._max_bytes = max(self._max_bytes // 2, 1)
        self._revoked = False

    def _keep_resident(self) -> None:
        if self._resident is not None:
            self._queue.addResidencySet_(self._resident)

    def is_writing(self, block: Block) -> bool:
        """Whether the open command buffer of this thread is the last work that writes a block."""
        with self._lock:
            submission = self._open
            return (
                submission is not None
                and submission.outcome is block.source
                and submission.inbox is self._thread.inbox
            )

    # ---- ordering, for events and other CUDA code ----

    def cuda_stream(self) -> int:
        """The CUDA stream that the commands run in, on an NVIDIA GPU."""
        return cuda_stream(self._queue)

    def signal(self, event: Any, value: int) -> tuple[int, Outcome]:
        """Make the device set an event after everything encoded so far. Returns the ticket, and
        the outcome of all that this thread has encoded."""
        with UNINTERRUPTED, self.encoding():
            submission = self._begin("an event's signal")
            self._end_encoder()
            submission.commands.encodeSignalEvent_value_(event, value)
            inbox = submission.inbox
            before = (other.outcome for other in self._in_flight if other.inbox is inbox)
            submission.outcome.sources.update(before)
            submission.outcome.sources.update(known for known in inbox if known.unreported)
            self.commit()
            return submission.ticket, submission.outcome

    def hold(self, event: Any, value: int) -> None:
        """Make the device wait for an event before anything encoded later."""
        with UNINTERRUPTED, self.encoding():
            submission = self._begin("an event's wait")
            self._end_encoder()
            submission.commands.encodeWaitForEvent_value_(event, value)

    # ---- submission ----

    def commit(self) -> int:
        """Commit the open command buffer; returns the newest ticket."""
        self._refuse_fork()
        with UNINTERRUPTED, self._lock, autorelease_pool():
            self.submit()
            self._reap()
            return self._last

    def submit(self) -> None:
        """Commit the open command buffer if there is one, within `encoding`."""
        self._end_encoder()
        if self._open is not None:
            self._open.commands.commit()
            self._in_flight.append(self._open)
            self._open = None

    def completed(self) -> int:
        """The newest ticket up to which all work has ended, with or without errors."""
        self._refuse_fork()
        with self._lock:
            self._reap()
            return self._completed

    def wait(self, ticket: int | None = None) -> None:
        """Block until the work up to `ticket` has ended, or all work without a ticket.

        Raises DeviceError if the work with that ticket failed, and for unreported failures of work
        that this thread encoded. Raises what a check found likewise.
        """
        if ticket is None or ticket > self._completed:
            self.drain(ticket)
        self._report(None if ticket is None else self._failed.get(ticket))

    def wait_for(self, ticket: int, outcome: Outcome | None) -> None:
        """Block until the work up to `ticket` has ended, and raise errors as `wait` does, but of
        the work with this outcome instead of the work with the ticket."""
        if ticket == 0:
            return
        if ticket > self._completed:
            self.drain(ticket)
        self._report(outcome)

    def _report(self, outcome: Outcome | None) -> None:
        inbox = self._thread.inbox
        if inbox or (outcome is not None and outcome.wrong):
            with self._lock:
                if outcome is not None:
                    outcome.check()
                inbox.check()

    def finish(self) -> None:
        """Wait for all work; raises an unreported failure of any thread."""
        self.wait()
        with self._lock:
            for outcome in list(self._failed.values()):
                if outcome.unreported:
                    outcome.check()

    def drain(self, ticket: int | None = None) -> None:
        """Block like `wait`, and leave errors to the next wait."""
        if ThisProcess.id != self._process:
            self._refuse_fork()
        with autorelease_pool():
            with self._lock:
                if self._open is not None and (ticket is None or ticket >= self._open.ticket):
                    with UNINTERRUPTED:
                        self.submit()
                pending = list(self._in_flight)
            for submission in pending:
                if ticket is not None and submission.ticket > ticket:
                    break
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
            self._end(head, status == Metal.MTLCommandBufferStatusError)
            self._completed = head.ticket
            self._in_flight.popleft()

    def _end(self, submission: Submission, failed: bool) -> None:
        outcome = submission.outcome
        if not (failed or submission.checks or outcome.sources):
            outcome.ended = True
            return
        findings = []
        if submission.checks and not failed:
            found = [check() for check in submission.checks]
            findings = [problem for problem in found if problem is not None]
        error = _failure(submission) if failed else None
        self._revoked = self._revoked or (error is not None and _ended_by_macos(error))
        outcome.end(error, findings)
        if outcome.error is not None:
            self._failed[submission.ticket] = outcome
        if outcome.wrong and outcome.unreported:
            submission.inbox.append(outcome)

    def _refuse_fork(self) -> None:
        if ThisProcess.id != self._process:
            raise DeviceError(
                "a Metal device does not survive a fork: start the process with "
                "multiprocessing's 'spawn' method"
            )


class _Encoding:
    """Holds the queue's lock during encoding, and adds the command's name to errors of Metal."""

    __slots__ = ("_pool", "_queue")

    def __init__(self, queue: CommandQueue) -> None:
        if ThisProcess.id != queue._process:
            queue._refuse_fork()
        self._queue = queue
        self._pool = autorelease_pool()  # for what encoders of ours and of MPS autorelease

    def __enter__(self) -> None:
        self._queue._lock.acquire()
        self._pool.__enter__()

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        name = self._queue._encoding
        self._pool.__exit__(None, None, None)
        self._queue._lock.release()
        if problem is not None and isinstance(problem, CallError):
            raise error_of(problem, f"{name}: {problem}") from problem


def copy_bytes(commands: Any, buffers: Sequence[Buffer]) -> None:
    """Encode a copy of the first buffer to the second, for `CommandQueue.encode`."""
    source, target = buffers
    encoder = commands.blitCommandEncoder()
    encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        source.handle, source.offset, target.handle, target.offset, source.size
    )
    encoder.endEncoding()


_COPY = Encoded("copy", (), copy_bytes, kernels={}, written_at=frozenset({1}))


def _no_private_memory(buffer: Buffer) -> Any:
    raise DeviceError(f"{buffer!r} belongs to a queue without a context")


def check_group(pipeline: Pipeline, group: Size) -> None:
    """Raise DeviceError for more threads than a threadgroup of the kernel may have."""
    threads = group[0] * group[1] * group[2]
    if threads > pipeline.max_threads:
        raise DeviceError(
            f"a threadgroup of {threads} threads exceeds {pipeline.max_threads} for kernel "
            f"{pipeline.name}: pass a smaller group"
        )


def _ended_by_macos(error: DeviceError) -> bool:
    return any(word in str(error) for word in (*_INTERRUPTED, _IGNORED))


def _failure(submission: Submission) -> DeviceError:
    """The error of a command buffer with the name of the kernel, which Apple's errors lack."""
    error = submission.commands.error()
    text = str(error.localizedDescription()) if error is not None else "no reason given"
    if any(word in text for word in _INTERRUPTED):
        text += "; macOS ended it because the GPU was busy for too long: run it again, lbrx now "
        text += "submits smaller parts, and other programs may be using the GPU"
    elif _IGNORED in text:
        text += "; macOS ended earlier work of this process: run it again"
    named = [name for name in submission.kernels if name in text]
    if named or len(submission.kernels) == 1:
        return DeviceError(f"kernel {(named or list(submission.kernels))[0]} failed: {text}")
    several = ", ".join(submission.kernels) or "(none)"
    return DeviceError(f"one of the kernels {several} failed: {text}")
