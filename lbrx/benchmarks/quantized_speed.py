"""Products with quantized weights, beside numpy's with expanded ones and a plain read of memory.

python lbrx/benchmarks/quantized_speed.py [SCHEME ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import lbrx
from lbrx import metal, quant
from lbrx.ops.quantized import stored_names
from lbrx.tensors.quantized import pack

_SCHEMES = ("q4_0", "q4_1", "q5_0", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4", "q4:64")
_SCHEMES += ("mlx:4:64", "mlx:8:64")
_SHAPES = ((4096, 4096), (1536, 576), (576, 1536))
_WEIGHT_BYTES = 48 << 20  # read in one call: more than caches hold
_PROMPT = 512
_ROUNDS = 15


def best(work: Callable[[], object]) -> float:
    """Seconds of the best of several rounds, after one that compiles."""
    work()
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def weight(name: str, shape: tuple[int, int], rng: np.random.Generator) -> lbrx.Tensor:
    """Random codes; the speed does not depend on the scales."""
    scheme = quant.find(name)
    blocks = np.zeros(scheme.blocks(shape), scheme.layout)
    blocks.view(np.uint8)[:] = rng.integers(0, 256, blocks.nbytes, np.uint8)
    for field in scheme.fields:
        if scheme.layout[field].base.kind == "f":
            blocks[field] = 0.01
    if not scheme.planar:
        parts = {"data": blocks.view(np.uint8).reshape(shape[0], -1)}
    else:
        fields = {n: np.ascontiguousarray(blocks[n]) for n in stored_names(scheme)}
        parts = {n: a.reshape(scheme.part_shape(n, shape)) for n, a in fields.items()}
    return pack(name, **{n: lbrx.tensor(part, device="metal") for n, part in parts.items()})


def variant(before: dict[str, int]) -> str:
    """The kernel that has run since."""
    after = metal.stats()["kernels"]
    ran = [k for k in after if k.startswith("quantized_matmul:") and after[k] > before.get(k, 0)]
    names = {k.split(":")[1] for k in ran} - {"pack_rows", "pack_matrix"}
    return "+".join(sorted(names))


def rows_times(name: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[float, str]:
    """GB/s of weights in products with one row, many in one call so that Python has no part."""
    size = quant.find(name).nbytes(shape)
    weights = [weight(name, shape, rng) for _ in range(max(1, _WEIGHT_BYTES // size))]
    lbrx.eval(weights)
    x = lbrx.tensor(rng.standard_normal((1, shape[1])).astype(np.float32), device="metal")
    products = lbrx.compile(lambda x: [lbrx.linear(x, w) for w in weights])
    before = dict(metal.stats()["kernels"])
    seconds = best(lambda: lbrx.eval(products(x)))
    return len(weights) * size / seconds / 1e9, variant(before)


def prompt_times(name: str, rng: np.random.Generator) -> tuple[float, str]:
    """GFLOP/s of a product with a prompt's rows."""
    n, k = _SHAPES[0]
    packed = weight(name, (n, k), rng)
    x = lbrx.tensor(rng.standard_normal((_PROMPT, k)).astype(np.float32), device="metal")
    lbrx.eval(packed, x)
    before = dict(metal.stats()["kernels"])
    seconds = best(lambda: lbrx.eval(lbrx.linear(x, packed)))
    return 2 * _PROMPT * n * k / seconds / 1e9, variant(before)


def main() -> None:
    rng = np.random.default_rng(0)
    memory = np.ones(64 << 20, np.uint8).view(np.int64)
    n, k = _SHAPES[0]
    x, w = (rng.standard_normal((rows, k)).astype(np.float32) for rows in (_PROMPT, n))
    read = memory.nbytes / best(memory.sum) / 1e9
    blas = 2 * _PROMPT * n * k / best(lambda: x @ w.T) / 1e9
    print(f"numpy reads {read:.0f} GB/s on one thread, multiplies {blas:.0f} GFLOP/s")
    columns = [f"{n} x {k}" for n, k in _SHAPES]
    print(f"| scheme | {' | '.join(f'GB/s, {c}' for c in columns)} | GFLOP/s, {_PROMPT} rows |")
    print("| --- " * (len(_SHAPES) + 2) + "|")
    for name in sys.argv[1:] or _SCHEMES:
        cells = []
        for shape in _SHAPES:
            fits = shape[1] % quant.find(name).elements == 0
            cells.append("{:.1f} {}".format(*rows_times(name, shape, rng)) if fits else "-")
        cells.append("{:.0f} {}".format(*prompt_times(name, rng)))
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
