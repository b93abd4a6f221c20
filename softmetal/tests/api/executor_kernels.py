"""Kernels in C against runtime/abi.h, so that executor tests need no Metal compiler."""

from __future__ import annotations

import hashlib
from pathlib import Path

from softmetal.executors import runtime_build
from softmetal.toolchain import clang, targets
from softmetal.types import Artifact, Mode

PRELUDE = """
#include "abi.h"
typedef _Float16 half;
#define BUFFER(type, name, index) type *name = (type *)launch->buffers[index]
#define EXPORT __attribute__((visibility("default")))
#define KERNEL(mode) EXPORT const sm_info softmetal_info = {SM_ABI, mode, 0, 1024};
#define FLAT KERNEL(SM_FLAT) EXPORT void softmetal_entry( \\
    const sm_launch *launch, sm_u32 x0, sm_u32 x1, sm_u32 y, sm_u32 z)
#define GROUPS KERNEL(SM_GROUPS) EXPORT void softmetal_entry( \\
    const sm_launch *launch, char *scratch, sm_u32 gx0, sm_u32 gx1, sm_u32 gy, sm_u32 gz)
#define FIBERS KERNEL(SM_FIBERS) EXPORT void softmetal_entry( \\
    const sm_launch *launch, const sm_thread *thread)
#define GLOBAL(d) (thread->group_position[d] * launch->group[d] + thread->position[d])

/* A simdgroup sum, and the mask of the lanes that took part. */
typedef struct { int value; sm_u32 active; } lane_sum;
static void sum_lanes(const sm_lanes *lanes) {
  int total = 0;
  for (int i = 0; i < SM_LANES; i++)
    if (lanes->active >> i & 1) total += ((lane_sum *)lanes->slot[i])->value;
    else if (lanes->slot[i]) total = -1000000; /* must be null */
  for (int i = 0; i < SM_LANES; i++)
    if (lanes->active >> i & 1) *(lane_sum *)lanes->slot[i] = (lane_sum){total, lanes->active};
}
#define SUM(name, number) \\
  lane_sum name = {(int)(number), 0}; softmetal_collective(sum_lanes, &name, 0)
"""

# Every thread adds one to its own cell of a grid-shaped counter: each must run exactly once.
COUNT_FLAT = """
FLAT {
  BUFFER(sm_u32, out, 0);
  for (sm_u32 x = x0; x < x1; x++)
    out[((sm_u64)z * launch->grid[1] + y) * launch->grid[0] + x]++;
}"""

COUNT_GROUPS = """
GROUPS {
  BUFFER(sm_u32, out, 0);
  const sm_u32 *n = launch->grid, *g = launch->group;
  for (sm_u32 gx = gx0; gx < gx1; gx++)
    for (sm_u32 z = gz * g[2]; z < n[2] && z < (gz + 1) * g[2]; z++)
      for (sm_u32 y = gy * g[1]; y < n[1] && y < (gy + 1) * g[1]; y++)
        for (sm_u32 x = gx * g[0]; x < n[0] && x < (gx + 1) * g[0]; x++)
          out[((sm_u64)z * n[1] + y) * n[0] + x]++;
}"""

COUNT_FIBERS = """
FIBERS {
  BUFFER(sm_u32, out, 0);
  softmetal_barrier();
  out[((sm_u64)GLOBAL(2) * launch->grid[1] + GLOBAL(1)) * launch->grid[0] + GLOBAL(0)]++;
}"""

AXPY = """
FLAT {
  BUFFER(float, from, 0); BUFFER(float, to, 1); BUFFER(float, factor, 2);
  float alpha = *factor;
  _Pragma("clang loop vectorize(assume_safety)")
  for (sm_u32 i = x0; i < x1; i++) to[i] += alpha * from[i];
}"""


def compile_kernel(source: str, folder: Path, prelude: str = PRELUDE) -> Artifact:
    text = prelude + source
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = folder / f"{name}.so"
    if not path.exists():
        host = targets.host()
        target = [f"--target={host.triple}", *host.flags, "-nostdinc"]
        flags = [
            "-O3",
            "-fPIC",
            "-fvisibility=hidden",
            f"-I{runtime_build.SOURCES}",
            "-x",
            "c",
            "-c",
            "-",
        ]
        obj = folder / f"{name}.o"
        clang.run("clang", [*target, *flags, "-o", str(obj)], text)
        clang.run("ld.lld", ["-shared", str(obj), "-o", str(path)])
    return Artifact(name, path, Mode.FLAT, (), 0, 1024)
