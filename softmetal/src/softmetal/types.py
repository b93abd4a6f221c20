"""The records that api, compiler and executors exchange. They have no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

MAX_BUFFERS = 31
MAX_THREADGROUP_ARGUMENTS = 31
MAX_THREADS = 1024
MAX_SOURCE = 4 << 20  # characters of a source, also with its macros expanded
SIMD_WIDTH = 32

# ---- compiler: what a library holds ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """MTLCompileOptions as the compiler sees them."""

    fast_math: bool = True
    finite_math: bool = False  # fast-math may assume that there are no NaN and no infinities
    macros: tuple[tuple[str, str], ...] = ()
    include_dirs: tuple[str, ...] = ()
    language_version: int = 320  # __METAL_VERSION__
    file_name: str = "program_source"  # what diagnostics call the source
    strict: bool = False  # refuse what Apple's compiler refuses, though softmetal could run it
    limits: bool = False  # with `strict`, also plain kernels that can have no pipeline
    extensions: bool = True  # `#pragma softmetal extensions` exempts a source from that


@dataclass(frozen=True, slots=True)
class FunctionConstant:
    """`constant T name [[function_constant(index)]]`."""

    name: str
    type: str  # as written: "bool", "uint", "float4"
    index: int
    required: bool = True  # is_function_constant_defined is never called with it


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel, as the token pass reads it."""

    name: str
    type: str  # as written, without attributes: "device const float*"
    kind: str  # "buffer", "threadgroup" or the builtin's attribute, e.g. "thread_position_in_grid"
    index: int = 0  # for buffer and threadgroup
    condition: str = ""  # the function constant that enables it, if any


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel of a library under its host name."""

    name: str
    entry: str  # the C++ expression that names it: "scale<half>"
    parameters: tuple[Parameter, ...]
    mode: Mode
    max_total_threads: int = 0  # [[max_total_threads_per_threadgroup(n)]], 0 if absent
    constants: tuple[str, ...] = ()  # names of the function constants it may use
    scope: str = ""  # the namespace in which `entry` was written: "a::b"


@dataclass(frozen=True, slots=True)
class Program:
    """A checked library: everything that code generation needs, independent of files."""

    text: str  # rewritten source with line markers
    options: CompileOptions
    functions: Mapping[str, Function]
    constants: tuple[FunctionConstant, ...]
    source: str = ""  # as the user wrote it, for the columns of diagnostics


class Mode(IntEnum):
    """How the CPU runs a kernel; mirrors enum sm_mode in runtime/abi.h."""

    FLAT = 0  # no cooperation, no threadgroup coordinates: one loop over a row of the grid
    GROUPS = 1  # no cooperation: loops over threadgroups and their threads
    FIBERS = 2  # barriers or simdgroup functions: one fiber per thread
    REGIONS = 3  # barriers: loops over the threads of a threadgroup between them
    SIMDGROUPS = 4  # simdgroup functions: such loops over a simdgroup's threads, a fiber for each


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a compiled kernel: a Parameter with the sizes that the compiler computed."""

    name: str
    kind: str  # "buffer" or "threadgroup"
    index: int
    type: str
    size: int  # of the pointee
    alignment: int
    writable: bool
    reference: bool  # `constant T&`: exactly one element


@dataclass(frozen=True, slots=True)
class Variable:
    """A threadgroup variable or program-scope constant of a kernel compiled for checking."""

    name: str
    offset: int  # in the thread-local storage, or in the shared object
    size: int


@dataclass(frozen=True, slots=True)
class CheckMap:
    """Tables for the checking modes: places in the source, and variables in memory."""

    sites: tuple[tuple[str, int, int], ...]  # (file, line, column); 0 is unknown
    threadgroup: tuple[Variable, ...]
    constants: tuple[Variable, ...]
    anchor: int  # offset of `softmetal_anchor` in the thread-local storage


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled (entry, function constants): a shared object on disk."""

    name: str
    path: Path
    mode: Mode
    arguments: tuple[Argument, ...]
    static_threadgroup_memory: int
    max_total_threads: int
    checks: frozenset[str] = frozenset()  # the checking modes it was compiled for
    check_map: CheckMap | None = None
    logs: bool = False  # it may write messages; known of kernels for GPUs
    registers: int = 0  # of 32 bits that a thread would take on Apple's GPUs; 0 if not modelled


# ---- executors: what a device is, and what a command buffer holds ------------------------------


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a device reports of itself."""

    name: str  # "NVIDIA H200"
    architecture: str  # "sm_90"
    memory: int  # bytes
    threadgroup_memory: int  # bytes that a threadgroup may use


class Dispatch(NamedTuple):
    """Run a kernel over a grid. Addresses are host addresses (0: nothing bound)."""

    kernel: int  # handle from Executor.load
    grid: tuple[int, int, int]  # threads; edge threadgroups are smaller where it does not divide
    group: tuple[int, int, int]  # threads per threadgroup
    buffers: tuple[int, ...]  # address by buffer index
    threadgroup: tuple[int, ...] = ()  # bytes by threadgroup index
    indirect: int = 0  # address of three uint32 threadgroup counts that replace `grid`


class Region(NamedTuple):
    """Memory that a dispatch may access: a bound buffer, or one made resident (slot -1)."""

    slot: int  # index of the buffer argument
    address: int
    length: int
    label: str
    tracked: bool


class Resources(NamedTuple):
    """Memory that the next dispatch may access. Sent only for kernels compiled for checking."""

    regions: tuple[Region, ...]


class Order(NamedTuple):
    """How the commands around it are ordered; sent only when checking.

    "serial" and "concurrent" begin an encoder, "barrier" separates dispatches of a concurrent one,
    "from" and "to" do so for the addresses between them only, "update" and "wait" are a fence's
    (`value` identifies the fence).
    """

    kind: str
    value: int = 0


class Use(NamedTuple):
    """Memory that later kernels reach through addresses. Sent to devices with their own memory."""

    address: int
    length: int
    written: bool


class Copy(NamedTuple):
    source: int
    destination: int
    size: int


class Fill(NamedTuple):
    destination: int
    size: int
    value: int


class Signal(NamedTuple):
    event: int  # handle from Executor.new_event
    value: int


class Wait(NamedTuple):
    event: int
    value: int


class Timestamp(NamedTuple):
    """Store the device clock (nanoseconds, uint64) at `address`."""

    address: int


class Packed(NamedTuple):
    """Dispatches that are packed already, as the executor that takes them packs its own."""

    data: bytes


class Gemm(NamedTuple):
    """C = alpha * op(A) op(B) + beta * C, row-major, `batch` times with byte strides."""

    a: int
    b: int
    c: int
    m: int
    n: int
    k: int
    lda: int  # elements
    ldb: int
    ldc: int
    transpose_a: bool
    transpose_b: bool
    alpha: float
    beta: float
    type_a: int  # 0 float32, 1 float16
    type_b: int
    type_c: int
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0


class Execute(NamedTuple):
    """Run commands [first, first + number) of an indirect command buffer."""

    commands: IndirectCommands
    first: int
    number: int
    inherited: Dispatch  # kernel and buffers for commands that inherit them
    range_address: int = 0  # two uint32 (first, number) read at execution instead, if not 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class IndirectCommands:
    """The slots of an indirect command buffer. `dirty` names those to encode again.

    A slot whose kernel is 0 inherits the pipeline; whose buffers are empty, the buffers.
    """

    slots: list[Dispatch | None]
    dirty: set[int] = field(default_factory=set)
    kept: tuple[object, ...] = ()  # objects that live as long as these slots


Command = (
    Dispatch
    | Packed
    | Use
    | Resources
    | Order
    | Copy
    | Fill
    | Signal
    | Wait
    | Timestamp
    | Gemm
    | Execute
)


class LogMessage(NamedTuple):
    """One line that a kernel printed."""

    subsystem: str
    category: str
    level: int
    text: str


class Completion(NamedTuple):
    """The outcome of a finished submission."""

    start: float  # seconds on the device clock
    end: float
    error: str | None
    log: tuple[LogMessage, ...]
