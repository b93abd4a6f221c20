"""Random kernels that crash, run over their memory or do not end; `run_all` is for a subprocess."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import numpy as np

import softmetal

TYPES = {"uchar": 1, "half": 2, "uint": 4, "float2": 8, "float4": 16}
# What makes a kernel FLAT, GROUPS or FIBERS.
STARTS = {
    "flat": "",
    "groups": "out[i] = g;",
    "fibers": "threadgroup_barrier(mem_flags::mem_device);",
}
CONSTANT_TABLE = "constant uint table[8] = {1, 2, 3, 4, 5, 6, 7, 8};\n"

# Each may access COUNT elements at `s`; `n` is a number of the host's that the compiler cannot see.
COUNT = 8
SPACES = {
    "device": "",
    "threadgroup": "threadgroup T s[8];",
    "dynamic": "",
    "thread": "T s[8]; for (int k = 0; k < 8; k++) s[k] = T(i + k);",
    "constant": "constant uint* s = table;",
}
FAULTS = {
    "null": "*reinterpret_cast<device T*>(n[1]) = T(i);",
    "wild": "*reinterpret_cast<device T*>(n[1]) = T(i);",
    "wild read": "out[i] = uint(*reinterpret_cast<device uint*>(n[1]));",
    "misaligned": "*reinterpret_cast<device float4*>(reinterpret_cast<device char*>(out) + n[2])"
    " = float4(i);",
    "trap": "if (n[0] == 1) __builtin_trap();",
    "debugtrap": "if (n[0] == 1) __builtin_debugtrap();",
    "abort": "if (n[0] == 1) __builtin_abort();",
    "unreachable": "if (n[0] == 1) __builtin_unreachable(); out[i] = 1;",
    "endless": "while (*reinterpret_cast<device volatile uint*>(n[3]) == 0u) {}",
    "huge loop": "for (ulong k = 0; k < (1ul << 60) + n[1]; k++) out[k % 64] += uint(k ^ i);",
    "deep": "uint big[DEEP]; for (uint k = 0; k < DEEP; k++) big[k] = k ^ uint(n[1]);"
    " out[i] = big[(i * n[0]) % DEEP];",
}
STOPPED = {"trap", "debugtrap", "abort", "endless", "huge loop", "deep"}  # in every checking mode
ADDRESSES = {"null", "wild", "wild read"}
OVERRUNS = {
    "write": "for (long k = n[1]; k != long(n[2]); k += n[3]) s[k] = T(k);",
    "read": "for (long k = n[1]; k != long(n[2]); k += n[3]) out[i] += uint(float(s[k]X));",
}
DEEP = {"flat": 4 << 20, "groups": 4 << 20, "fibers": 100000}


@dataclass(frozen=True)
class Case:
    """A kernel, its name, and the numbers that it gets."""

    name: str
    kind: str
    source: str
    numbers: tuple[int, int, int, int]


def random_case(number: int, random: random.Random) -> Case:
    mode, type_ = random.choice(list(STARTS)), random.choice(list(TYPES))
    name = f"crash{number}"
    if random.random() < 0.5:
        return _overrun(name, mode, type_, random)
    kind = random.choice(list(FAULTS))
    wild = random.choice([1 << 44, 1 << 52, random.getrandbits(64), random.randrange(4096)])
    first = 0 if kind == "null" else wild
    other = random.choice([1, 2, 3, 5]) if kind == "misaligned" else 7
    body = FAULTS[kind].replace("DEEP", str(DEEP[mode]))
    return Case(name, kind, _source(name, mode, type_, "device", body), (1, first, other, 0))


def _overrun(name: str, mode: str, type_: str, random: random.Random) -> Case:
    space = random.choice(list(SPACES))
    kind = "read" if space == "constant" else random.choice(list(OVERRUNS))
    if space == "constant":
        type_ = "uint"
    if space == "dynamic" and mode == "flat":
        mode = "groups"
    distance = random.choice([1, 2, 23, 100, 1000, 4096, random.randrange(1, 4097)])
    up = random.random() < 0.7
    first, end = (COUNT, COUNT + distance) if up else (-1, -1 - distance)
    body = OVERRUNS[kind].replace("X", ".x" if type_ in ("float2", "float4") else "")
    source = _source(name, mode, type_, space, body)
    return Case(name, f"{kind} {space}", source, (1, first, end, 1 if up else -1))


def _source(name: str, mode: str, type_: str, space: str, body: str) -> str:
    group = "" if mode == "flat" else ", uint g [[threadgroup_position_in_grid]]"
    dynamic = ", threadgroup T* s [[threadgroup(0)]]" if space == "dynamic" else ""
    body = f"{SPACES[space]} {STARTS[mode]} {body}"
    if space == "thread":
        body += " out[i] += uint(float(s[n[0] % 8]X));".replace(
            "X", ".x" if type_ in ("float2", "float4") else ""
        )
    text = (
        f"kernel void {name}(device uint* out [[buffer(0)]], device const ulong* n [[buffer(1)]],"
        f" device T* s{'' if space == 'device' else '_'} [[buffer(2)]]{dynamic},"
        f" uint i [[thread_position_in_grid]]{group}) {{ {body} }}\n"
    )
    table = CONSTANT_TABLE if space == "constant" else ""
    head = "#include <metal_stdlib>\nusing namespace metal;\n"
    return f"{head}{table}using T = {type_};\n{text}"


class Victim:
    """A device on which kernels crash, and a kernel that must go on working."""

    def __init__(self) -> None:
        self.device = softmetal.MTLCreateSystemDefaultDevice()
        self.queue = self.device.newCommandQueue()
        self.zero = self.device.newBufferWithLength_options_(64, 0)
        right = "out[i] = uint(n[0]) * i + 3;"
        self.right = {
            mode: self.pipeline("right", _source("right", mode, "uint", "device", right))
            for mode in STARTS
        }

    def pipeline(self, name: str, source: str):
        library, error = self.device.newLibraryWithSource_options_error_(source, None, None)
        assert library is not None, error
        make = self.device.newComputePipelineStateWithFunction_error_
        pipeline, error = make(library.newFunctionWithName_(name), None)
        assert pipeline is not None, error
        return pipeline

    def run(self, pipeline, numbers) -> tuple[str | None, np.ndarray]:
        out, n, s = (self.device.newBufferWithLength_options_(size, 0) for size in (4096, 32, 128))
        numbers = [numbers[0], numbers[1], numbers[2], numbers[3] or self.zero.gpuAddress()]
        words = np.frombuffer(n.contents().as_buffer(32), np.uint64)
        words[:] = [value % 2**64 for value in numbers]
        commands = self.queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        for index, buffer in enumerate((out, n, s)):
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        encoder.setThreadgroupMemoryLength_atIndex_(128, 0)
        grid, group = (softmetal.MTLSizeMake(size, 1, 1) for size in (256, 64))
        encoder.dispatchThreads_threadsPerThreadgroup_(grid, group)
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        error = commands.error()
        text = None if error is None else str(error.localizedDescription())
        return text, np.frombuffer(out.contents().as_buffer(1024), np.uint32)

    def attempt(self, case: Case, must_fail: bool) -> None:
        text, _ = self.run(self.pipeline(case.name, case.source), case.numbers)
        named = text is not None and all(f"'{case.name}'" in line for line in text.splitlines())
        assert named or (text is None and not must_fail), f"{case}: {text}"
        for mode, pipeline in self.right.items():
            text, out = self.run(pipeline, (2, 0, 0, 0))
            right = text is None and np.array_equal(out, np.arange(256, dtype=np.uint32) * 2 + 3)
            assert right, f"after {case}: {mode} {text}"


def run_all(seed: int, count: int, checks: tuple[str, ...]) -> None:
    """Print each case before it runs, so that the last line names the one that ended the process."""
    generator = random.Random(seed)
    # Without `bounds` the other modes redirect accesses to foreign memory and report nothing.
    silent = checks and "bounds" not in checks
    certain = STOPPED if silent else STOPPED | ADDRESSES
    with softmetal.checking(*checks) if checks else nullcontext():
        victim = Victim()
        for number in range(count):
            case = random_case(number, generator)
            print(json.dumps(asdict(case)), flush=True)
            victim.attempt(case, case.kind in certain)
    print("lived")
