"""`metal`, `metallib` and `xcrun`, as builds call them, and the libraries that they write."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ADD = """#include "more.h"
constant float scale [[function_constant(0)]];
kernel void add(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += MORE; }
kernel void multiply(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] *= scale;
}
"""
SQUARE = """kernel void square(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] *= x[i];
}
"""
PROGRAM = r"""
#import <Metal/Metal.h>
static id<MTLDevice> device;
static void run(id<MTLFunction> function, id<MTLBuffer> buffer) {
  id<MTLCommandBuffer> commands = [[device newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder setComputePipelineState:[device newComputePipelineStateWithFunction:function error:NULL]];
  [encoder setBuffer:buffer offset:0 atIndex:0];
  [encoder dispatchThreads:MTLSizeMake(4, 1, 1) threadsPerThreadgroup:MTLSizeMake(4, 1, 1)];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
}
int main(void) {
  @autoreleasepool {
    device = MTLCreateSystemDefaultDevice();
    NSError *error = nil;
    id<MTLLibrary> library = [device newDefaultLibraryWithBundle:[NSBundle mainBundle] error:&error];
    if (!library) puts(error.localizedDescription.UTF8String);
    if ([device newDefaultLibrary] == nil) return 1;
    id<MTLBuffer> buffer = [device newBufferWithLength:16 options:0];
    MTLFunctionConstantValues *values = [MTLFunctionConstantValues new];
    float scale = 3;
    [values setConstantValue:&scale type:MTLDataTypeFloat atIndex:0];
    run([library newFunctionWithName:@"add"], buffer);
    run([library newFunctionWithName:@"square"], buffer);
    run([library newFunctionWithName:@"multiply" constantValues:values error:NULL], buffer);
    printf("%lu kernels, %g\n", library.functionNames.count, ((float *)buffer.contents)[3]);
  }
  return 0;
}
"""


@pytest.fixture
def tool(variables, tmp_path):
    """Runs a command of `softmetal native --env` in a folder with sources."""
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "more.h").write_text("#define MORE 2.0f\n")
    (tmp_path / "add.metal").write_text(ADD)
    (tmp_path / "square.metal").write_text(SQUARE)
    (tmp_path / "wrong.metal").write_text("kernel void wrong() {\n  nonsense;\n}\n")

    def run(*command: str, stdin: str = "", status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **variables}, input=stdin,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done

    return run


METAL = ("xcrun", "-sdk", "macosx", "metal")


def test_a_program_finds_its_default_library(tool, compiled, run, tmp_path):
    source = tmp_path / "program.m"
    source.write_text(PROGRAM)
    program = compiled(source, "-fobjc-arc")
    assert "default.metallib" in run(program).stdout
    flags = ("-Wall", "-O3", "-std=metal3.1", "-mmacosx-version-min=14.0", "-Iheaders")
    tool(*METAL, *flags, "-c", "add.metal", "-o", "add.air")
    tool(*METAL, "-x", "metal", "-fno-fast-math", "-c", "square.metal", "-o", "square.air")
    tool("xcrun", "metallib", "add.air", "square.air", "-o", "default.metallib")
    assert run(program).stdout == "3 kernels, 12\n"
    tool("metal", "-Iheaders", "add.metal", "square.air", "-o", "default.metallib")
    assert run(program).stdout == "3 kernels, 12\n"


def test_a_pipe_makes_a_library(tool, tmp_path):
    air = subprocess.run(
        [tool("xcrun", "-find", "metal").stdout.strip(), "-c", "-", "-o", "-"],
        input=SQUARE.encode(), capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert air.startswith(b"MTLB")


REFUSED = {
    "wrong source": ((*METAL, "-c", "wrong.metal"), "wrong.metal:2:3: error: use of undeclared"),
    "no header": ((*METAL, "-c", "add.metal"), "'more.h' file not found"),
    "no file": ((*METAL, "-c", "absent.metal"), "cannot read absent.metal: No such file"),
    "no input": ((*METAL, "-c"), "no input files"),
    "two of a name": (("metal", "square.metal", "square.metal"), "have a kernel `square`"),
    "no library": (("metallib", "add.metal"), "not a library of this softmetal"),
    "an unknown tool": (("xcrun", "actool"), "softmetal has no tool actool"),
    "a version": (("metal", "-std=metal9", "-c", "add.metal"), "'metal9' is not a version"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, tool):
    command, message = REFUSED[case]
    assert message in tool(*command, status=1).stderr


def test_preprocessing(tool):
    """As builds ask for the version of the language, and for the headers of a source."""
    flags = ("-E", "-x", "metal", "-P", "-")
    assert tool(*METAL, *flags, stdin="__METAL_VERSION__\n").stdout.split() == ["320"]
    done = tool(*METAL, "-E", "-P", "-CC", "-H", "-Iheaders", "add.metal")
    depth, path = done.stderr.split()
    assert depth == "."
    assert path.endswith("/headers/more.h")
    assert "x[i] += 2.0f" in done.stdout


def test_the_sdk(tool, variables):
    assert float(tool("xcrun", "--sdk", "macosx", "--show-sdk-version").stdout) >= 14
    assert Path(tool("xcrun", "--show-sdk-path").stdout.strip(), "Metal").is_dir()
    assert tool("xcrun", "sw_vers", "-productVersion").stdout == "15.0\n"
