"""Kernels on a GPU beside its ceilings, which are measured in the same run.

SOFTMETAL_DEVICE=cuda:0 python lbrx/benchmarks/gpu.py [--only NAME] [--json FILE]

Times are the device's, the median of several runs. Inputs rotate, so that the caches do not hold
them. Bandwidth is compared with a copy on the device, products with the vendor's library (`mps`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import lbrx
from lbrx.kernels import forced
from lbrx.metal import context
from lbrx.metal.command_queue import copy_bytes

REPEATS = 9
ROTATED = 256 << 20  # bytes of inputs in turns: more than the caches of any GPU
Function = Callable[..., lbrx.Tensor]
Maker = Callable[[], tuple[lbrx.Tensor, ...]]


@dataclass(frozen=True)
class Case:
    name: str
    function: Function
    inputs: Maker
    nbytes: float  # that must move
    flops: float = 0.0  # of a product


@dataclass(frozen=True)
class Row:
    name: str
    seconds: float
    rate: float  # GB/s, or TFLOP/s of a product
    unit: str
    share: float  # of the ceiling
    kernels: str


def device_seconds(work: Callable[[], object]) -> tuple[float, str]:
    """The time of all kernels of `work`, and which they are."""
    with lbrx.profile() as profile:
        work()
        records = profile.records
    kernels = dict.fromkeys(f"{r.kernel}:{r.variant}".rstrip(":") for r in records)
    return sum(record.time for record in records), " ".join(kernels)


def run(function: Function, inputs: tuple[lbrx.Tensor, ...]) -> None:
    lbrx.eval(function(*inputs))


def measured(case: Case) -> tuple[float, str]:
    count = max(2, int(ROTATED // case.nbytes) + 1) if case.nbytes < ROTATED else 2
    given = [case.inputs() for _ in range(min(count, 16))]
    for inputs in given:
        lbrx.eval(*inputs)
    times, kernels = [], ""
    for n in range(REPEATS + 2):
        inputs = given[n % len(given)]
        seconds, kernels = device_seconds(partial(run, case.function, inputs))
        times.append(seconds)
    return statistics.median(times[2:]), kernels


def copy_bandwidth() -> float:
    """Bytes a second of a copy on the device: read and written."""
    gpu, size = context(), 1 << 30
    source, target = gpu.buffer(size), gpu.buffer(size)
    times = []
    for _ in range(REPEATS):
        seconds, _ = device_seconds(lambda: gpu.queue.encode("copy", [source, target], copy_bytes))
        times.append(seconds)
    return 2 * size / statistics.median(times)


def normal(*shape: int, dtype: str = "float16") -> Maker:
    return lambda: (lbrx.random.normal(shape, dtype=dtype),)


def several(*makers: Maker) -> Maker:
    return lambda: tuple(tensor for make in makers for tensor in make())


def memory_cases() -> Iterator[Case]:
    rows, columns = 16384, 8192
    size = rows * columns
    half, single = normal(rows, columns), normal(rows, columns, dtype="float32")
    weight = normal(columns)
    yield Case("chain (x * 2 + 1) * x, f32", lambda x: (x * 2 + 1) * x, single, 8.0 * size)
    yield Case("cast f32 to f16", lambda x: x.astype("float16"), single, 6.0 * size)
    yield Case("add, f16", lambda x, y: x + y, several(half, half), 6.0 * size)
    yield Case("sum of rows, f16", lambda x: x.sum(axis=-1), half, 2.0 * size)
    yield Case("sum of columns, f16", lambda x: x.sum(axis=0), half, 2.0 * size)
    yield Case("softmax, f16", lambda x: x.softmax(axis=-1), half, 4.0 * size)
    yield Case("rms_norm, f16", lambda x, w: x.rms_norm(w), several(half, weight), 4.0 * size)
    yield Case(
        "layer_norm, f16",
        lambda x, w, b: x.layer_norm(w, b),
        several(half, weight, weight),
        4.0 * size,
    )
    yield Case("transpose, f16", lambda x: x.permute(1, 0).contiguous(), half, 4.0 * size)
    heads = normal(1, 32, 16384, 128)
    yield Case(
        "rope, f16",
        lambda x: x.rope(lbrx.arange(16384)),
        heads,
        4.0 * 32 * 16384 * 128,
    )


def product_cases() -> Iterator[Case]:
    n = 16384
    vector = normal(1, n)
    yield Case(
        "mat-vec f16", lambda x, w: lbrx.linear(x, w), several(vector, normal(n, n)), 2.0 * n * n
    )
    for scheme, bits in (("q4_0", 4.5), ("q4_k", 4.5), ("q8_0", 8.5), ("mlx:4:64", 4.5)):
        both = several(vector, packed(n, scheme))
        yield Case(f"mat-vec {scheme}", lbrx.linear, both, bits / 8 * n * n)
    length, group, head = 32768, 8, 128
    cache = normal(1, 8, length, head)
    yield Case(
        "decode attention, 32k",
        lambda q, k, v: lbrx.attention(q, k, v),
        several(normal(1, 8 * group, 1, head), cache, cache),
        2.0 * 2 * 8 * length * head,
    )
    for size in (4096, 8192):
        square = normal(size, size)
        flops = 2.0 * size**3
        yield Case(
            f"matmul {size} f16", lambda x, y: x @ y, several(square, square), 6.0 * size**2, flops
        )
    rows = normal(512, 4096)
    yield Case(
        "mat-mul q4_k, 512 rows",
        lbrx.linear,
        several(rows, packed(4096, "q4_k")),
        4.5 / 8 * 4096**2,
        2.0 * 512 * 4096**2,
    )
    long = normal(1, 16, 8192, 128)
    yield Case(
        "prefill attention 8k, causal",
        lambda q, k, v: lbrx.attention(q, k, v, causal=True),
        several(long, long, long),
        8.0 * 16 * 8192 * 128,
        2.0 * 16 * 8192 * 8192 * 128,
    )


def packed(n: int, scheme: str) -> Maker:
    return lambda: (lbrx.quantize(lbrx.random.normal((n, n)), scheme),)


def row_of(case: Case, bandwidth: float, flops: float) -> Row:
    seconds, kernels = measured(case)
    if case.flops:
        rate = case.flops / seconds
        return Row(case.name, seconds, rate / 1e12, "TFLOP/s", rate / flops, kernels)
    rate = case.nbytes / seconds
    return Row(case.name, seconds, rate / 1e9, "GB/s", rate / bandwidth, kernels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the names of the rows")
    parser.add_argument("--json", help="a file to write")
    options = parser.parse_args()
    lbrx.random.seed(1)
    bandwidth, size = copy_bandwidth(), 8192
    both = several(normal(size, size), normal(size, size))
    with forced(matmul="mps"):
        flops = 2.0 * size**3 / measured(Case("", lambda x, y: x @ y, both, 6.0 * size**2))[0]
    name = context().info.name
    print(f"{name}: copy {bandwidth / 1e9:,.0f} GB/s, f16 product {flops / 1e12:,.0f} TFLOP/s")
    rows = []
    for case in (*memory_cases(), *product_cases()):
        if options.only not in case.name:
            continue
        rows.append(row := row_of(case, bandwidth, flops))
        rate = f"{row.rate:>8,.1f} {row.unit:<8} {row.share:>5.2f}"
        print(f"{row.name:<30} {row.seconds * 1e6:>9,.1f} us {rate}  {row.kernels}", flush=True)
    if options.json:
        record = {"device": name, "copy": bandwidth, "product": flops, "rows": [*map(asdict, rows)]}
        Path(options.json).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
