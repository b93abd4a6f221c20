"""The cost of encoding from Objective-C, on 1 to 4 threads, beside encoding from Python.

python softmetal/benchmarks/native_encoding.py
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

import softmetal as metal
from softmetal.native import environment

SOURCE = """kernel void k(device float *x, device float *y, constant uint &n,
uint i [[thread_position_in_grid]]) { if (i < n) y[i] = x[i]; }"""
DISPATCHES, ROUNDS = 2000, 20


def from_python() -> float:
    """Nanoseconds of the processor for a dispatch, the best of several rounds."""
    device = metal.MTLCreateSystemDefaultDevice()
    library, _ = device.newLibraryWithSource_options_error_(SOURCE, None, None)
    function = library.newFunctionWithName_("k")
    pipeline, _ = device.newComputePipelineStateWithFunction_error_(function, None)
    x, y = (device.newBufferWithLength_options_(64, 0) for _ in range(2))
    queue, count, best = device.newCommandQueue(), (4).to_bytes(4, "little"), float("inf")
    for _ in range(ROUNDS):
        encoder = queue.commandBuffer().computeCommandEncoder()
        start = time.process_time_ns()
        for _ in range(DISPATCHES):
            encoder.setComputePipelineState_(pipeline)
            encoder.setBuffer_offset_atIndex_(x, 0, 0)
            encoder.setBuffer_offset_atIndex_(y, 0, 1)
            encoder.setBytes_length_atIndex_(count, 4, 2)
            size = metal.MTLSize(4, 1, 1)
            encoder.dispatchThreads_threadsPerThreadgroup_(size, size)
        best = min(best, (time.process_time_ns() - start) / DISPATCHES)
        encoder.endEncoding()
    return best


def from_objective_c() -> dict[int, tuple[float, float]]:
    """Nanoseconds of the processor for a dispatch, and elapsed ones, by the number of threads."""
    variables = environment.variables()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "encoding")
        source = Path(__file__).with_suffix(".m")
        command = [variables["CC"], *shlex.split(variables["CFLAGS"]), "-O2", str(source)]
        command += ["-o", str(program), *shlex.split(variables["LDFLAGS"])]
        subprocess.run([*command, *shlex.split(variables["LDLIBS"])], check=True)
        environment_ = {**os.environ, **variables}
        done = subprocess.run(
            [program], check=True, capture_output=True, text=True, env=environment_
        )
    rows = (line.split() for line in done.stdout.splitlines())
    return {int(count): (float(each), float(elapsed)) for count, each, elapsed in rows}


if __name__ == "__main__":
    python, native = from_python(), from_objective_c()
    print(f"from Python: {python:.0f} ns of the processor for a dispatch with three bindings")
    for count, (each, elapsed) in native.items():
        speedup = native[1][1] / elapsed
        print(f"from Objective-C, {count} threads: {each:.0f} ns, {each / python:.3f} of Python; "
              f"{speedup:.1f} times as many in a second as one thread")  # fmt: skip
