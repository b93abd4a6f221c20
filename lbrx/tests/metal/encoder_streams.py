"""What encoders are told, as comparable streams: by the C library, by PyObjC's calls, by an
indirect command buffer."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.metal.encoder_library import EncoderLibrary

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "lbrx" / "metal" / "encoder.c"
Stream = list[tuple[Any, ...]]


def built(source: Path, folder: Path, *flags: str) -> Path:
    """A shared library of a C source."""
    output = folder / f"{source.stem}.so"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-shared", "-O1", "-fPIC"]
    subprocess.run([*compiler, *flags, "-o", output, source], check=True)
    return output


class RecordingLibrary(EncoderLibrary):
    """The C library with a runtime that records."""

    def __init__(self, folder: Path) -> None:
        runtime = built(HERE / "recording_objc.c", folder)
        super().__init__(built(SOURCE, folder), str(runtime), id)
        self._runtime = ctypes.CDLL(str(runtime))
        self._runtime.selector_name.restype = ctypes.c_char_p

    def stream(self, encoder: object) -> Stream:
        """What was sent to an encoder since the last call."""
        words = (ctypes.c_uint64 * (1 << 20)).in_dll(self._runtime, "recorded")
        count = ctypes.c_uint64.in_dll(self._runtime, "recorded_words")
        rest = list(words[: count.value])
        count.value = 0
        messages = []
        while rest:
            name = self._runtime.selector_name(rest.pop(0)).decode()
            assert rest.pop(0) == id(encoder)
            messages.append(_message(name, rest))
        return messages


def _message(name: str, rest: list[int]) -> tuple[Any, ...]:
    def take(count: int) -> list[int]:
        taken = rest[:count]
        del rest[:count]
        return taken

    if name == "setBytes:length:atIndex:":
        length, index = take(2)
        return name, bytes(take(length)), index
    counts = {"setBuffer:offset:atIndex:": 3, "setThreadgroupMemoryLength:atIndex:": 2}
    if name == "dispatchThreads:threadsPerThreadgroup:":
        return name, tuple(take(3)), tuple(take(3))
    return name, *take(counts.get(name, 1))


class RecordingEncoder:
    """An encoder that PyObjC's calls arrive at."""

    def __init__(self) -> None:
        self.stream: Stream = []

    def setComputePipelineState_(self, state: Any) -> None:
        self.stream.append(("setComputePipelineState:", id(state)))

    def setBuffer_offset_atIndex_(self, handle: Any, offset: int, index: int) -> None:
        address = 0 if handle is None else id(handle)
        self.stream.append(("setBuffer:offset:atIndex:", address, offset, index))

    def setBytes_length_atIndex_(self, value: bytes, length: int, index: int) -> None:
        assert len(value) == length
        self.stream.append(("setBytes:length:atIndex:", value, index))

    def setThreadgroupMemoryLength_atIndex_(self, length: int, index: int) -> None:
        self.stream.append(("setThreadgroupMemoryLength:atIndex:", length, index))

    def memoryBarrierWithScope_(self, scope: int) -> None:
        self.stream.append(("memoryBarrierWithScope:", scope))

    def dispatchThreads_threadsPerThreadgroup_(self, grid: Any, group: Any) -> None:
        sizes = (tuple(size) for size in (grid, group))
        self.stream.append(("dispatchThreads:threadsPerThreadgroup:", *sizes))


def commands_of(stream: Stream) -> list[dict[Any, Any]]:
    """What each dispatch of a stream runs with: kernel, arguments, sizes, and a barrier before."""
    commands, state = [], {"barrier": False}
    for name, *operands in stream:
        if name == "memoryBarrierWithScope:":
            state["barrier"] = True
        elif name == "setComputePipelineState:":
            state = {"barrier": state["barrier"], "pipeline": operands[0]}
        elif name == "setBuffer:offset:atIndex:":
            if operands[0]:
                state["argument", operands[2]] = tuple(operands[:2])
        elif name == "setBytes:length:atIndex:":
            state["argument", operands[1]] = operands[0]
        elif name == "setThreadgroupMemoryLength:atIndex:":
            state["threadgroup", operands[1]] = operands[0]
        else:
            commands.append({**state, "sizes": tuple(operands)})
            state = {"barrier": False}
    return commands


class RecordingCommand:
    """A command of an indirect command buffer, in the form of `commands_of`."""

    def __init__(self, memory: Any) -> None:
        self.values: dict[Any, Any] = {"barrier": False}
        self.memory = memory  # of the constants

    def setComputePipelineState_(self, state: Any) -> None:
        self.values["pipeline"] = id(state)

    def setKernelBuffer_offset_atIndex_(self, handle: Any, offset: int, index: int) -> None:
        self.values["argument", index] = (handle, offset)

    def setThreadgroupMemoryLength_atIndex_(self, length: int, index: int) -> None:
        self.values["threadgroup", index] = length

    def concurrentDispatchThreads_threadsPerThreadgroup_(self, grid: Any, group: Any) -> None:
        self.values["sizes"] = (tuple(grid), tuple(group))

    def setBarrier(self) -> None:
        self.values["barrier"] = True

    def beside(self, other: dict[Any, Any]) -> dict[Any, Any]:
        """Its values, with the bytes of constants where `other` has bytes."""
        found = {}
        for key, value in self.values.items():
            if isinstance(value, tuple) and key[0] == "argument":
                handle, offset = value
                value = (id(handle), offset)
                if isinstance(other.get(key), bytes):
                    constants = np.asarray(self.memory.unsynchronised())
                    assert handle is self.memory.block.handle
                    start = offset - self.memory.offset
                    value = constants[start : start + len(other[key])].tobytes()
            found[key] = value
        return found


class _RecordingList:
    def __init__(self, count: int) -> None:
        self.commands = [RecordingCommand(None) for _ in range(count)]

    def indirectComputeCommandAtIndex_(self, index: int) -> RecordingCommand:
        return self.commands[index]


CHECKING = threading.Lock()  # what is recorded has one place, and programs have threads


def check_listed(
    gpu: Any, listed: Any, memory: Any, numbers: Any, library: RecordingLibrary
) -> int:
    """Encode kernels in each way, and compare; returns their number."""
    with CHECKING:
        return _check(gpu, listed, memory, numbers, library)


def _for_this_thread(function: Any, original: Any) -> Any:
    thread = threading.get_ident()
    return lambda *given: (function if threading.get_ident() == thread else original)(*given)


def _check(gpu: Any, listed: Any, memory: Any, numbers: Any, library: RecordingLibrary) -> int:
    from lbrx.metal import packed_commands
    from lbrx.scheduler import replay

    new_list, current = replay._new_list, packed_commands.encoder_library
    recorded = _RecordingList(len(listed.kernels))
    try:
        replay._new_list = _for_this_thread(lambda gpu, kernels: recorded, new_list)
        indirect = replay._Indirect(gpu, listed)
        indirect.bind(memory, numbers)
        streams = []
        for chosen in (library, None):
            packed_commands.encoder_library = _for_this_thread(
                lambda chosen=chosen: chosen, current
            )
            packed = replay._Packed(listed)
            for _ in range(2):  # what is bound again is not packed again
                packed.bind(memory, numbers)
            encoder = RecordingEncoder()
            packed.packed.encode(encoder)
            streams.append(encoder.stream if chosen is None else library.stream(encoder))
    finally:
        replay._new_list, packed_commands.encoder_library = new_list, current
    assert streams[0] == streams[1]
    assert len(streams[0]) > 2 * len(listed.kernels)
    want = commands_of(streams[1])
    for command in recorded.commands:
        command.memory = indirect.memory
    found = [command.beside(w) for command, w in zip(recorded.commands, want, strict=True)]
    unequal = [pair for pair in zip(found, want, strict=True) if pair[0] != pair[1]]
    assert not unequal, unequal[0]
    return len(want)


def check_all_replays(library: RecordingLibrary) -> list[int]:
    """From now on every replay is compared; the numbers of kernels are added to the list."""
    from lbrx.scheduler import replay

    counts: list[int] = []
    run = replay.Listed.run

    def checked(listed: Any, gpu: Any, memory: Any, numbers: Any) -> None:
        counts.append(check_listed(gpu, listed, memory, numbers, library))
        run(listed, gpu, memory, numbers)

    setattr(replay.Listed, "run", checked)  # noqa: B010 (it is a method)
    return counts


def check_all_runs(library: RecordingLibrary) -> list[int]:
    """From now on the kernels of every list that runs once are compared, as if it were recorded."""
    from lbrx.command_lists.command_list import Launch
    from lbrx.metal.buffer import Block, Buffer
    from lbrx.scheduler import replay, running

    counts: list[int] = []
    run = running.run

    def checked(gpu: Any, commands: Any, memory: Any, *rest: Any, **options: Any) -> None:
        kernels = [step for step in commands.steps if isinstance(step, Launch)]
        if kernels:
            every = [  # of which some have no memory before their first use
                Buffer(Block(object(), 0, slot.nbytes), 0, slot.nbytes, gpu.queue)
                if known is None
                else known
                for slot, known in zip(commands.slots, memory, strict=True)
            ]
            listed = replay.Listed(gpu, kernels, commands, [None] * len(every), True)
            numbers = rest[0] if rest else running.own_value
            counts.append(check_listed(gpu, listed, every, numbers, library))
        run(gpu, commands, memory, *rest, **options)

    setattr(running, "run", checked)  # noqa: B010 (it is a function)
    return counts


if __name__ == "__main__":  # FOLDER PROGRAM: a program whose command streams are compared
    import runpy

    library = RecordingLibrary(Path(sys.argv.pop(1)))
    compared = {"replays": check_all_replays(library), "lists": check_all_runs(library)}
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
    for name, counts in compared.items():
        print(f"compared: {len(counts)} {name} of {sum(counts)} kernels")
