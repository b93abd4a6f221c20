"""From a kernel's source to PTX, by the same clang in its CUDA mode, which needs no CUDA."""

from __future__ import annotations

import functools
import re
import shlex
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from softmetal.compiler import builtins, host_access, instrument, integers, stages
from softmetal.compiler.identity import INCLUDE as NEUTRAL
from softmetal.compiler.identity import fingerprint
from softmetal.compiler.ir import Function, Instruction, Module
from softmetal.compiler.target import KernelSource
from softmetal.errors import CompileError
from softmetal.executors.cuda import alignment, stopping
from softmetal.executors.cuda.instrumentation import CHECKS, SANITIZER, Checked, add_checks
from softmetal.executors.cuda.target import INCLUDE, entry_name
from softmetal.toolchain import clang, disk_cache
from softmetal.types import CompileOptions

# The oldest version that knows sm_90; with 8.0 and later LLVM uses two-lane 16-bit additions, of
# which ptxas 13.0 loses one lane.
_PTX_VERSION = {"sm_100": "+ptx86"}
_OLDEST_PTX = "+ptx78"
# A program that can see which elements of a matrix a lane holds gets Apple's order.
_SEES_LAYOUT = re.compile(r"\bthread_elements\b|__metal_simdgroup_matrix|\bstorage_type\b")
# Of a float's bits ptxas 13.0 stores not the low byte, but the number as a byte; a 16-bit register
# in between prevents it.
_BYTE_STORE = re.compile(r"\tst\.([\w.]+)\.b8 \t(\[[^\]]*\]), (%r\d+);\n")
_HALVED_STORE = r"\t{ .reg .b16 %low; cvt.u16.u32 %low, \3; st.\1.b8 \2, %low; }\n"
# The result of these ptxas 13.0 compares as 32 bits: 32768 for the smallest short.
_NARROW_SIGN = re.compile(r"\t(abs|neg)\.s16 \t(%rs\d+), (%rs\d+);\n")
_WIDE_SIGN = (
    r"\t{ .reg .b32 %wide; cvt.s32.s16 %wide, \3; \1.s32 %wide, %wide; cvt.u16.u32 \2, %wide; }\n"
)
_ENTRY_WAIT = 'asm sideeffect "griddepcontrol.wait;"'
_OWN_WAIT = '"griddepcontrol.wait; // here"'
# One that also reads memory before it waits is marked: the driver looks for the name.
_READS_EARLY = "// reads early"
_EARLY_MARK = ".visible .const .align 4 .u32 softmetal_reads_early = 1;\n"
_BEGIN = "#pragma clang force_cuda_host_device begin\n"
_END = "#pragma clang force_cuda_host_device end\n"
_INTRINSICS = (
    r"nvvm\.(read\.ptx\.sreg\.((cta|t)id\.[xyz]|laneid)|activemask|vote\.ballot\.sync|membar\.gl"
    r"|barrier\.cta\.sync\.aligned\.all|bar\.warp\.sync|shfl\.sync\.(idx|bfly)|redux\.sync\.\w+"
    r"|ex2\.approx\.ftz|isspacep\.local)"
)
_ASSEMBLY = re.compile(r'__asm__(?: volatile)?\(((?:\s*"[^"]*")+)')


@dataclass(frozen=True)
class Generated:
    """The PTX of a kernel, the words that describe its arguments, and what checks refer to."""

    ptx: str
    words: list[int]
    checked: Checked | None


def generate(source: KernelSource, architecture: str, stoppable: bool) -> Generated:
    """Compile a kernel; its loops can be ended if it is `stoppable`."""
    module = stages.accepted(_optimised(source, architecture), _allowed())
    entry = entry_name(source.function.name)
    _bound(module.functions[entry], source.function.max_total_threads)
    _wait_once(module.functions[entry])
    if source.checked:
        instrument.require_checks(module, CHECKS)
    alignment.allow_misaligned_vectors(module, entry, _alignments(module))
    checked = add_checks(module, entry) if source.checked else None
    stopping.soften_traps(module, entry)
    if stoppable:
        stopping.end_loops(module, entry)
    _be_exact(module)
    flags = ["-O3", "-w", "--target=nvptx64-nvidia-cuda", *_machine(architecture, "-march=")]
    ptx, _ = clang.run("clang", [*flags, "-x", "ir", "-S", "-", "-o", "-"], str(module))
    ptx = _marked(_hopper(_assembled_rightly(ptx)))
    return Generated(ptx, _words(ptx), checked)


def _assembled_rightly(ptx: str) -> str:
    """The same code without what ptxas assembles wrongly."""
    return _NARROW_SIGN.sub(_WIDE_SIGN, _BYTE_STORE.sub(_HALVED_STORE, ptx))


def _marked(ptx: str) -> str:
    if _READS_EARLY not in ptx:
        return ptx
    return ptx.replace(".address_size 64\n", f".address_size 64\n{_EARLY_MARK}", 1)


def _hopper(ptx: str) -> str:
    """Products of warpgroups exist in code for Hopper's own architecture alone, and asynchronous
    copies from version 8.0 on."""
    if "wgmma." in ptx:
        ptx = ptx.replace(".target sm_90", ".target sm_90a")
    elif "cp.async.bulk." not in ptx:
        return ptx
    return ptx.replace(".version 7.8", ".version 8.0")


def _optimised(source: KernelSource, architecture: str) -> str:
    layout = () if _SEES_LAYOUT.search(source.program.text) else ("-DSM_TENSOR_ORDER",)
    places = instrument.PLACES if source.checked else ()
    flags = (*_flags(source.program.options, architecture), *layout, *places)
    header = _header(flags, source.checked)
    frontend = _frontend(flags, "-emit-llvm", source.checked)
    arguments = [*frontend, "-disable-llvm-passes", "-include-pch", str(header)]
    visible = (NEUTRAL, INCLUDE, header)
    end = ("-o", "-", "-")
    ir, _ = clang.run("clang", [*arguments, "-fno-validate-pch", *end], _unit(source), visible)
    ir, _ = clang.run("clang", [*_of_ir(frontend), *end], integers.defined(ir))
    return ir


def _of_ir(arguments: Sequence[str]) -> list[str]:
    """The compiler's arguments for a text that is IR."""
    words = list(arguments)
    words[words.index("-x") + 1] = "ir"
    return words


def _header(flags: tuple[str, ...], checked: bool) -> Path:
    """Our headers, precompiled."""
    texts = (file.read_bytes() for file in sorted(INCLUDE.rglob("*.h")))
    key = disk_cache.key_of(fingerprint(), str(INCLUDE), *flags, *texts)

    def fill(folder: Path) -> None:
        arguments = [*_frontend(flags, "-emit-pch", checked), "-o", str(folder / "unit.pch")]
        clang.run("clang", [*arguments, str(INCLUDE / "target" / "unit.h")])

    return disk_cache.default().get("header", key, fill) / "unit.pch"


@functools.cache
def _frontend(flags: tuple[str, ...], action: str, checked: bool) -> tuple[str, ...]:
    """Clang's own arguments without files: its driver cannot precompile in CUDA mode."""
    # -O1 keeps the accesses of the source: an access that is optimised away cannot be checked.
    level = "-O1" if checked else "-O3"
    plain = [*flags, level, "-w", "-S", "-emit-llvm", "-x", "cuda", "-", "-o", "-"]
    _, said = clang.run("clang", [*plain, "-###"])
    words = shlex.split(next(line for line in said.splitlines() if '"-cc1"' in line))
    words = words[words.index("-cc1") : -1]  # the last is the input
    words[words.index("-emit-llvm")] = action
    at = words.index("-o")
    return (*words[:at], *words[at + 2 :], *(SANITIZER if checked else ()))


def _flags(options: CompileOptions, architecture: str) -> list[str]:
    return [
        *(
            stages.NEWEST_STANDARD,
            *stages.LANGUAGE,
            *stages.arithmetic_flags(options),
            *stages.QUIET,
        ),
        *("-Xclang", "-fbfloat16-excess-precision=none"),
        # Else clang ignores `float_control(precise)` for targets without strict arithmetic.
        *("-Xclang", "-fexperimental-strict-floating-point"),
        *("--cuda-device-only", "-nocudainc", "-nocudalib", "-Wno-unknown-cuda-version"),
        *(f"-isystem{INCLUDE}", *_machine(architecture, "--cuda-gpu-arch=")),
    ]


def _machine(architecture: str, option: str) -> list[str]:
    version = _PTX_VERSION.get(architecture, _OLDEST_PTX)
    return [f"{option}{architecture}", f"--cuda-feature={version}"]


def _unit(source: KernelSource) -> str:
    function = source.function
    logs = "softmetal::log_block = l.log;" if "os_log" in source.program.text else ""
    entry = (
        f"{_END}#define SM_SET_LOG {logs}\n"
        f"SM_INFO({function.max_total_threads})\nSM_ENTRY({entry_name(function.name)})\n"
    )
    return _BEGIN + stages.unit(source.program, function, source.constants, entry)


def _bound(kernel: Function, most: int) -> None:
    """The largest threadgroup that a kernel declares, with which one has to fit a multiprocessor:
    without it ptxas saves registers, and few loads are in flight."""
    if most:
        kernel.add_attributes(f'"nvvm.maxntid"="{most},1,1" "nvvm.minctasm"="1"')


def _wait_once(kernel: Function) -> None:
    """A kernel that waits where it says so does not wait at its entry (target/prefetch.h)."""
    if _OWN_WAIT in kernel.body:
        kernel.rewrite(lambda call: [] if call.callee.startswith(_ENTRY_WAIT) else None, "call")


def _be_exact(module: Module) -> None:
    """fdiv and sqrt of fast maths would be estimates that are wrong for large and for denormal
    numbers."""

    def exact(made: Instruction) -> list[str] | None:
        if " afn " not in made.text or made.type.strip("<>0123456789 x") != "float":
            return None
        is_root = made.callee.startswith("@llvm.sqrt.")
        text = made.text.strip().replace("afn ", "", 1)
        return [text] if is_root or made.opcode == "fdiv" else None

    for function in module.functions.values():
        if " afn " in function.body:
            function.rewrite(exact, "fdiv", "call")


def _alignments(module: Module) -> dict[int, int]:
    """Of the types that buffers are declared with, by index: from the kernel's description."""
    info = module.variable("softmetal_info")
    numbers = list(map(int, re.findall(r"\bi32 (-?\d+)", info.value))) if info else []
    # A head of four words, then six for each argument: kind, index, size, alignment ...
    arguments = (numbers[at : at + 4] for at in range(4, len(numbers), 6))
    return {index: alignment for kind, index, _, alignment in arguments if kind == 0}


@functools.cache
def _allowed() -> host_access.Allowed:
    """What the target's headers contain."""
    functions = re.compile(r"softmetal_(scratch|variable_(count|start|size|is_constant))")
    return host_access.Allowed(functions, builtins.intrinsics(_INTRINSICS), _own_assembly(), True)


def _own_assembly() -> frozenset[str]:
    """The assembly in the target's headers, as the IR has it."""
    texts = (file.read_text() for file in sorted(INCLUDE.rglob("*.h")))
    found = (match[1] for text in texts for match in _ASSEMBLY.finditer(text))
    joined = ("".join(re.findall(r'"([^"]*)"', parts)) for parts in found)
    return frozenset(re.sub(r"%(\d)", r"$\1", text) for text in joined)


def _words(ptx: str) -> list[int]:
    found = re.search(r"\bsoftmetal_info\[(\d+)\] = \{([^}]*)\}", ptx)
    if found is None:
        raise CompileError("error: the kernel's description is missing from its code\n")
    size = int(found[1])
    data = bytes(map(int, found[2].split(","))).ljust(size, b"\0")
    return list(struct.unpack(f"<{size // 4}I", data))
