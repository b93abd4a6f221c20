"""Kernels on a GPU beside its ceilings, which are measured in the same run.

SOFTMETAL_DEVICE=cuda:0 python lbrx/benchmarks/gpu.py [--only NAME] [--model] [--json FILE]

Times are the device's: several runs in one command buffer, as an indirect command buffer where
kernels are ours, the median of a few. Inputs rotate, so that the caches do not hold them. Bandwidth
is compared with copies on the device, a large one and one of as many bytes, products with the
vendor's library (`mps`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path

import lbrx
from lbrx.arrays import dtype
from lbrx.arrays.storage import MetalStorage
from lbrx.kernels import forced
from lbrx.metal import context
from lbrx.tensors.long_lived import new_cache

REPEATS = 7
RUNS = 64  # in one command buffer, at least: its start takes 16 to 80 us
MAX_SETS = 64  # of inputs
ROTATED = 256 << 20  # bytes of inputs in turns: more than the caches of any GPU
SHORT = {"float16": "f16", "float32": "f32"}
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
    copy_share: float  # of a copy of as many bytes; of a product 0
    kernels: str


def device_seconds(work: Callable[[], object]) -> float:
    """The median of the device's times for work that is encoded into one command buffer. It should
    be long: what a command buffer costs by itself would be seen in the time of a short kernel."""
    queue = context().queue
    bounds = queue._max_operations, queue._max_bytes
    times = []
    for _ in range(REPEATS + 2):
        queue.wait()
        queue._max_operations = queue._max_bytes = sys.maxsize
        results = work()
        buffer = queue._open.commands
        queue._max_operations, queue._max_bytes = bounds
        queue.wait()
        times.append(float(buffer.GPUEndTime() - buffer.GPUStartTime()))
        del results
    return statistics.median(times[2:])


def recorded(case: Case, sets: list[tuple[lbrx.Tensor, ...]]) -> Callable[[], object]:
    """The function on each set of inputs, as one list of commands that is replayed. One tensor of
    each set is an argument, so that the list is not computed when it is recorded."""
    places = [next(i for i, x in enumerate(inputs) if is_plain(x)) for inputs in sets]
    given = [inputs[i] for i, inputs in zip(places, sets, strict=True)]

    def each(*arguments: lbrx.Tensor) -> list[lbrx.Tensor]:
        return [
            case.function(*inputs[:i], x, *inputs[i + 1 :])
            for i, inputs, x in zip(places, sets, arguments, strict=True)
        ]

    return partial(lbrx.compile(each), *given)


def is_plain(x: lbrx.Tensor) -> bool:
    """Whether a tensor can be an argument of a compiled function and is not written in place."""
    return type(getattr(x.array.storage, "storage", x.array.storage)) is MetalStorage


def run(function: Function, inputs: tuple[lbrx.Tensor, ...]) -> None:
    lbrx.eval(function(*inputs))


def measured(case: Case) -> tuple[float, str]:
    """Seconds for one run, and the names of its kernels."""
    count = min(max(2, int(ROTATED // case.nbytes) + 1), MAX_SETS)
    sets = [case.inputs() for _ in range(count)]
    for inputs in sets:
        lbrx.eval(*inputs)
    with lbrx.profile() as seen:
        run(case.function, sets[0])  # compiles
    names = dict.fromkeys(f"{r.kernel}:{r.variant}".rstrip(":") for r in seen.records)
    room = int(context().info.memory_limit / 4 // case.nbytes)  # for the results
    runs = sets * max(1, min(-(-RUNS // count), room // count))
    return device_seconds(recorded(case, runs)) / len(runs), " ".join(names)


@cache
def copy_bandwidth(size: int = 1 << 30) -> float:
    """Bytes a second of a copy of so many bytes on the device: read and written."""
    gpu = context()
    sets = [(gpu.buffer(size), gpu.buffer(size)) for _ in range(ROTATED // (2 * size) + 1)]
    runs = sets * -(-RUNS // len(sets))
    return 2 * size * len(runs) / device_seconds(lambda: [gpu.queue.copy(*both) for both in runs])


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
    yield Case("add, f32", lambda x, y: x + y, several(single, single), 12.0 * size)
    yield Case("add, f16", lambda x, y: x + y, several(half, half), 6.0 * size)
    yield Case("add f16 to f32", lambda x, y: x + y, several(half, single), 10.0 * size)
    yield Case("row added, f16", lambda x, y: x + y, several(half, weight), 4.0 * size)
    yield Case("swiglu, f16", lambda x, y: x.silu() * y, several(half, half), 6.0 * size)
    yield from row_cases(rows, columns, "f16")
    yield from row_cases(2 * rows, columns // 2 + 1, "f16, odd")
    yield from movement_cases()


def row_cases(rows: int, columns: int, note: str) -> Iterator[Case]:
    """Operations along the axes of a matrix of float16."""
    half, weight, size = normal(rows, columns), normal(columns), rows * columns
    yield Case(f"sum of rows, {note}", lambda x: x.sum(axis=-1), half, 2.0 * size)
    yield Case(f"sum of columns, {note}", lambda x: x.sum(axis=0), half, 2.0 * size)
    yield Case(f"max of rows, {note}", lambda x: x.max(axis=-1), half, 2.0 * size)
    yield Case(f"max of columns, {note}", lambda x: x.max(axis=0), half, 2.0 * size)
    yield Case(f"argmax of rows, {note}", lambda x: x.argmax(axis=-1), half, 2.0 * size)
    yield Case(f"softmax, {note}", lambda x: x.softmax(axis=-1), half, 4.0 * size)
    both = several(half, weight)
    yield Case(f"rms_norm, {note}", lambda x, w: x.rms_norm(w), both, 4.0 * size)
    three = several(half, weight, weight)
    yield Case(f"layer_norm, {note}", lambda x, w, b: x.layer_norm(w, b), three, 4.0 * size)


def movement_cases() -> Iterator[Case]:
    """What changes the place of elements only, and rotary embedding."""
    rows, columns = 16384, 8192
    for name in ("float16", "float32"):
        matrix = normal(rows, columns, dtype=name)
        moved = (4.0 if name == "float16" else 8.0) * rows * columns
        yield Case(f"transpose, {SHORT[name]}", transposed(1, 0), matrix, moved)
    heads, depth = 32, 128
    for tokens in (4096, 65536):
        size = 4.0 * heads * tokens * depth
        by_token, by_head = normal(1, tokens, heads, depth), normal(1, heads, tokens, depth)
        at = partial(positions, tokens)
        yield Case(f"heads first, f16, {tokens >> 10}k", transposed(0, 2, 1, 3), by_token, size)
        yield Case(f"heads last, f16, {tokens >> 10}k", transposed(0, 2, 1, 3), by_head, size)
        yield Case(f"keys transposed, f16, {tokens >> 10}k", transposed(0, 1, 3, 2), by_head, size)
        rotated = several(by_head, at)
        yield Case(f"rope, f16, {tokens >> 10}k", lambda x, p: x.rope(p), rotated, size)
        appended = several(partial(kv_cache, tokens), normal(1, 8, tokens, depth), at)
        yield Case(
            f"KV append, f16, {tokens >> 10}k",
            lambda cache, x, p: cache.overwrite(x, p),
            appended,
            size / 4,
        )


def transposed(*order: int) -> Function:
    return lambda x: x.permute(*order).contiguous()


def positions(count: int) -> tuple[lbrx.Tensor, ...]:
    return (lbrx.arange(count, dtype="int32"),)


def kv_cache(tokens: int) -> tuple[lbrx.Tensor, ...]:
    """A cache that is written in place, with room for a few more."""
    return (new_cache((1, 8, tokens + 64, 128), dtype.float16, "metal"),)


def product_cases() -> Iterator[Case]:
    n = 16384
    vector = normal(1, n)
    yield Case(
        "mat-vec f16", lambda x, w: lbrx.linear(x, w), several(vector, normal(n, n)), 2.0 * n * n
    )
    for scheme, bits in (("q4_0", 4.5), ("q4_k", 4.5), ("q8_0", 8.5), ("mlx:4:64", 4.5)):
        both = several(vector, packed(n, scheme))
        yield Case(f"mat-vec {scheme}", lbrx.linear, both, bits / 8 * n * n)
    yield from decode_cases()
    for size in (4096, 8192):
        square = normal(size, size)
        flops = 2.0 * size**3
        both = several(square, square)
        yield Case(f"matmul {size} f16", lambda x, y: x @ y, both, 6.0 * size**2, flops)
        yield Case(f"matmul {size} f16, our tiles", by_tiles, both, 6.0 * size**2, flops)
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


def decode_cases() -> Iterator[Case]:
    """Attention of one query to a cache: heads, key heads, tokens and head sizes."""
    shapes = [(64, 8, 32768, 128), (32, 32, 8192, 128), (64, 8, 32768, 64)]
    for heads, kv_heads, length, depth in (*shapes, (32, 8, 2048, 64), (32, 8, 128, 64)):
        cache = normal(1, kv_heads, length, depth)
        yield Case(
            f"decode {heads}/{kv_heads} x {depth}, {length}",
            lambda q, k, v: lbrx.attention(q, k, v),
            several(normal(1, heads, 1, depth), cache, cache),
            4.0 * kv_heads * length * depth,
        )


def by_tiles(x: lbrx.Tensor, y: lbrx.Tensor) -> lbrx.Tensor:
    with forced(matmul="tiles"):
        return x @ y


def model_rows(bandwidth: float) -> Iterator[Row]:
    """A random llama: a token's step beside its bandwidth bound, and the prefill beside torch."""
    import llama_steps as llama

    tokens = 2048
    room = tokens + llama.STEPS * (llama.ROUNDS + 3)
    engine, nbytes = llama.new_engine(llama.LARGE, "q4_0", room)
    step, _ = llama.decode_seconds(engine, 64)
    rate = nbytes / step
    yield Row("llama 1.5 B q4_0, a token", step, rate / 1e9, "GB/s", rate / bandwidth, 0.0, "")
    seconds = llama.compiled_prefill_seconds(engine, tokens)
    peer = llama.torch_seconds(llama.LARGE, tokens)
    share = peer / seconds if peer else 0.0
    name = f"llama 1.5 B q4_0, {tokens} tokens"
    yield Row(name, seconds, tokens / seconds, "tokens/s", share, 0.0, "beside torch, bfloat16")


def packed(n: int, scheme: str) -> Maker:
    return lambda: (lbrx.quantize(lbrx.random.normal((n, n)), scheme),)


def row_of(case: Case, bandwidth: float, flops: float) -> Row:
    seconds, kernels = measured(case)
    if case.flops:
        rate = case.flops / seconds
        return Row(case.name, seconds, rate / 1e12, "TFLOP/s", rate / flops, 0.0, kernels)
    rate = case.nbytes / seconds
    copied = rate / copy_bandwidth(1 << (int(case.nbytes) // 2 - 1).bit_length())
    return Row(case.name, seconds, rate / 1e9, "GB/s", rate / bandwidth, copied, kernels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the names of the rows")
    parser.add_argument("--model", action="store_true", help="measure a language model, too")
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
    cases = [c for c in (*memory_cases(), *product_cases()) if options.only in c.name]
    measured_rows = (row_of(case, bandwidth, flops) for case in cases)
    for row in chain(measured_rows, model_rows(bandwidth) if options.model else ()):
        rows.append(row)
        rate = f"{row.rate:>8,.1f} {row.unit:<8} {row.share:>5.2f} {row.copy_share:>5.2f}"
        print(f"{row.name:<30} {row.seconds * 1e6:>9,.1f} us {rate}  {row.kernels}", flush=True)
    if options.json:
        record = {"device": name, "copy": bandwidth, "product": flops, "rows": [*map(asdict, rows)]}
        Path(options.json).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
