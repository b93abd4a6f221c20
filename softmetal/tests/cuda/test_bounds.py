"""`bounds` on GPUs: the code that checks, compiled for the processor, and kernels as PTX."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from ctypes import c_uint, c_uint64, c_void_p
from pathlib import Path

import pytest

from softmetal import compiler
from softmetal.compiler.identity import INCLUDE as NEUTRAL
from softmetal.errors import CompileError
from softmetal.executors.cuda.target import INCLUDE, PtxTarget
from softmetal.executors.findings import Describer, Finding
from softmetal.toolchain import clang, ptxas
from softmetal.types import Argument, Artifact, CheckMap, CompileOptions, Mode, Variable

sys.path.append(str(Path(__file__).parents[1] / "checking"))
from bounds_faults import BOUNDS

HARNESS = Path(__file__).with_name("check_harness.cpp")
WRITE, SITE = 1 << 16, 1
SCRATCH, VARIABLE, CONSTANT, ZEROS, SINK = range(5)
ARTIFACT = Artifact(
    "k",
    Path(),
    Mode.FLAT,
    (
        Argument("x", "buffer", 3, "device float *", 4, 4, True, False),
        Argument("s", "threadgroup", 0, "threadgroup float *", 4, 4, True, False),
    ),
    0,
    0,
    frozenset({"bounds"}),
    CheckMap((("", 0, 0), ("file", 7, 9)), (Variable("t", 0, 0),), (Variable("c", 0, 0),), 0),
)


QUICK = {"write_past_end", "constant_table", "threadgroup_2d", "simdgroup_matrix_past_end"}
# place, offset, size, write -> what is found; None: the access is allowed
ACCESSES = {
    "inside": ("buffer", 0, 64, False, None),
    "at the end": ("buffer", 60, 4, True, None),
    "beyond": ("buffer", 64, 4, True, "writes 4 bytes beyond buffer 3 'x': element 16 of 16 float (byte 64 of 64)"),
    "across the end": ("buffer", 56, 16, False, "reads 16 bytes beyond buffer 3 'x': element 14 of 16 float (byte 56 of 64)"),
    "before": ("buffer", -4, 4, False, "reads 4 bytes before buffer 3 'x': element -1 of 16 float (byte -4 of 64)"),
    "far away": ("buffer", 1 << 40, 4, False, "outside every buffer it was given"),
    "thread": ("local", 8, 8, True, None),
    "argument": (SCRATCH, 36, 4, True, None),
    "beyond an argument": (SCRATCH, 40, 4, True, "writes 4 bytes beyond threadgroup memory 's': element 10 of 10 float"),
    "variable": (VARIABLE, 44, 4, False, None),
    "beyond a variable": (VARIABLE, 48, 4, False, "reads 4 bytes beyond threadgroup memory 't': element 12 of 12"),
    "table": (CONSTANT, 0, 16, False, None),
    "beyond a table": (CONSTANT, 16, 8, False, "reads 8 bytes beyond constant 'c': element 2 of 2"),
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harness")
    flags = ["-std=c++17", "-O1", "-fPIC", "-DSM_CHECK", "-w"]
    flags += [f"--target={platform.machine()}-linux-gnu", "-fno-exceptions", "-nostdinc"]
    includes = [f"-isystem{INCLUDE}", f"-isystem{NEUTRAL}"]
    clang.run("clang", [*flags, *includes, "-c", str(HARNESS), "-o", str(folder / "h.o")])
    clang.run("ld.lld", ["-shared", str(folder / "h.o"), "-o", str(folder / "h.so")])
    made = ctypes.CDLL(str(folder / "h.so"))
    made.address_of.restype = made.softmetal_check_access.restype = c_uint64
    made.softmetal_check_access.argtypes = [c_uint64, c_uint64, c_uint, c_uint64]
    made.set_up.argtypes = [c_void_p, c_uint64, c_void_p]
    return made


@pytest.mark.parametrize("name", ACCESSES)
def test_accesses(name, library):
    place, offset, size, write, text = ACCESSES[name]
    memory = ctypes.create_string_buffer(4096)
    known = {"buffer": ctypes.addressof(memory) + 1024, "local": ctypes.addressof(memory) + 3072}
    library.set_up(known["buffer"], 64, known["local"])
    address = (known[place] if place in known else library.address_of(place)) + offset
    for _ in range(2):  # each place is reported once
        used = library.softmetal_check_access(address, size, SITE | (WRITE if write else 0), 0)
    listed = c_void_p()
    count = library.findings(ctypes.byref(listed))
    if text is None:
        assert (used, count) == (address, 0)
        return
    assert (used, count) == (library.address_of(SINK if write else ZEROS), 1)
    found = Describer({77: ARTIFACT}, {}, 1).describe(Finding.from_address(listed.value))
    assert found.startswith("bounds: kernel 'k' ")
    assert text in found
    assert found.endswith(", thread (1, 0, 0) of threadgroup (2, 0, 0), at file:7:9")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=() if fault.name in QUICK else pytest.mark.full)
        for fault in BOUNDS
    ],
)
def test_kernels(fault, tmp_path, ptxas_path):
    """Every access of the faulty line is checked; ptxas accepts the code."""
    program = compiler.compile_library(fault.source, CompileOptions())
    for name in fault.kernels:
        artifact = compiler.compile_kernel(
            program, name, {}, frozenset({"bounds"}), PtxTarget("sm_90")
        )
        checked = {line for _, line, _ in artifact.check_map.sites}
        assert fault.lines & checked
        ptxas.assemble(artifact.path, "sm_90", tmp_path / "k.cubin")
        assert _checking_themselves(artifact.path.read_text()) == []


def _checking_themselves(ptx: str) -> list[str]:
    """The names of our own functions whose accesses are checked, which would recur without end."""
    functions = re.findall(
        r"-- Begin function (\w+)$((?:.|\n)*?)-- End function", ptx, re.MULTILINE
    )
    assert functions
    own = ((name, text) for name, text in functions if re.match("_Z+N9softmetal", name))
    return [name for name, text in own if "softmetal_check_access, " in text]


@pytest.mark.parametrize("mode", ["race", "uninit"])
def test_other_modes_are_refused(mode):
    source = "kernel void k(device int* x [[buffer(0)]]) { x[0] = 1; }"
    program = compiler.compile_library(source, CompileOptions())
    with pytest.raises(
        CompileError, match=f"checking mode '{mode}' needs the CPU, a GPU has 'bounds'"
    ):
        compiler.compile_kernel(
            program, "k", {}, frozenset({"bounds", mode}), target=PtxTarget("sm_90")
        )
