"""Products with quantized matrices: x times the transpose of a weight that stays quantized."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps

from lbrx import dtype as dt
from lbrx import quant
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise, matmul, matmul_tiles, mps
from lbrx.kernels.arrays import buffer_of, empty, placed, reshaped, size_class
from lbrx.kernels.finishing import Finish, finishes
from lbrx.kernels.matmul import (
    EMULATED,
    MatmulProblem,
    Matrix,
    bandwidth,
    dispatching,
    encoding,
    finish,
    is_aligned,
    peak,
    product_peak,
)
from lbrx.kernels.matmul_tiles import COPIED, Tiling, has_tensor_cores, takes_steps
from lbrx.kernels.product_steps import ProductSteps, steps_of
from lbrx.kernels.quantized import Stored, decode, pipeline, stored
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes, policy
from lbrx.metal import Context, DeviceInfo
from lbrx.metal.command_queue import copy_bytes
from lbrx.ops import Spec
from lbrx.ops.quantized import weights_of
from lbrx.quant import Scheme
from lbrx.storage import Array

# Constants of quant_matvec.h.
MOST_ROWS = 8
SIMD_COLUMNS, SIMD_THREADS = 8, 64

PANELS = 16 << 20, 64 << 20  # bytes of a weight that processors and GPUs decode at a time

# Costs are microseconds. Published fractions of the peaks of Apple's GPUs:
OF_BANDWIDTH, OF_PEAK, TILES_OF_PEAK = 0.75, 0.2, 0.75


@dataclass(frozen=True)
class QuantizedProduct:
    """The problem: m rows of k values times n rows of one or several quantized matrices."""

    scheme: Scheme
    m: int
    n: int
    k: int
    dtype: Dtype

    @property
    def operations(self) -> float:
        """Multiplications and additions of the product."""
        return 2.0 * self.m * self.n * self.k

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weight as it is stored."""
        return self.n * self.k * self.scheme.bits_per_weight / 8

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return f"{self.scheme.name} {self.dtype.name} {size_class(self.m, self.n, self.k)}"

    def packed(self) -> bytes:
        """The `Product` record of quant_matvec.h."""
        return struct.pack("3I", self.m, self.n, self.k)


family: KernelFamily[QuantizedProduct] = KernelFamily("quantized_matmul")


@computes("quantized_matmul")
def quantized_matmul(call: Call) -> tuple[Array, ...]:
    """Compute `quantized_matmul`: x times the transpose of one or more quantized weights."""
    gpu, (given, *_), problem = call.gpu, call.inputs, problem_of(call)
    assert given is not None
    m, n, k = problem.m, problem.n, problem.k
    results = tuple(empty(gpu, spec) for spec in call.outputs)
    if not m * n:
        return results
    if k == 0:
        for result in results:
            finish(gpu, _plain(of_columns(problem, result)), result, 0, None, result)
        return results
    x = elementwise.contiguous(gpu, placed(gpu, given))
    family.run(gpu, problem, reshaped(x, m, k), stored_weights(call), results)
    return results


def problem_of(call: Call) -> QuantizedProduct:
    """The problem of a call."""
    specs, x = call.outputs, call.inputs[0]
    assert x is not None
    m, n = math.prod(specs[0].shape[:-1]), sum(spec.shape[-1] for spec in specs)
    scheme = quant.find(call.attributes["scheme"])
    return QuantizedProduct(scheme, m, n, x.layout.shape[-1], specs[0].dtype)


def stored_weights(call: Call) -> list[Stored]:
    """The weights of a call."""
    scheme, count = quant.find(call.attributes["scheme"]), len(call.outputs)
    return [stored(call.gpu, scheme, parts) for parts in weights_of(call.inputs[1:], count)]


def of_columns(problem: QuantizedProduct, result: Array) -> QuantizedProduct:
    """The problem for one of several weights."""
    return replace(problem, n=result.layout.shape[-1])


Single = Callable[[Context, QuantizedProduct, Array, Stored, Array], None]
QuantizedLaunch = Callable[
    [Context, QuantizedProduct, Array, Sequence[Stored], Sequence[Array]], None
]


def one_by_one(launch: Single) -> QuantizedLaunch:
    """A launch for several weights, made of a launch for one."""

    @wraps(launch)
    def every(
        gpu: Context,
        problem: QuantizedProduct,
        x: Array,
        weights: Sequence[Stored],
        results: Sequence[Array],
    ) -> None:
        for weight, result in zip(weights, results, strict=True):
            if result.layout.size:
                launch(gpu, of_columns(problem, result), x, weight, result)

    return every


def rows_in_one_pass(problem: QuantizedProduct) -> int:
    """The number of rows of x, rounded up to those for which kernels are compiled."""
    return min(1 << (problem.m - 1).bit_length(), MOST_ROWS)


# ---- panels of the weight, decoded in order ----

# How a panel is multiplied: the variants of `matmul` that can write into columns of a result.
TIMES_ROWS: dict[str, Callable[[Context, Array, Array, Array, int, tuple[str, str]], None]] = {
    "mps": mps.times_rows,
    "tiles": matmul_tiles.times_rows,
}
LABEL = ("quantized_matmul", "panels")


def _panel_type(info: DeviceInfo, problem: QuantizedProduct) -> Dtype:
    """What weights are decoded to: GPUs multiply halves faster, and sum them in float32."""
    return problem.dtype if info.simd_hardware and problem.dtype.itemsize == 2 else dt.float32


def _panel_rows(info: DeviceInfo, problem: QuantizedProduct) -> int:
    """Rows of the weight in a panel."""
    row = _panel_type(info, problem).itemsize * problem.k
    return min(problem.n, max(1, PANELS[info.simd_hardware] // row))


def _multiplication(info: DeviceInfo, problem: QuantizedProduct) -> tuple[str, float]:
    """The cheapest way to multiply a panel, and its cost."""
    plain = replace(_plain(problem), dtype=_panel_type(info, problem))
    product = replace(plain, n=_panel_rows(info, problem))
    ways = (matmul.family.variants[name] for name in TIMES_ROWS)
    costs = {way.name: way.cost(info, product) for way in ways if way.can(info, product)}
    if info.simd_hardware and "mps" in costs:
        costs["mps"] += 2 * encoding(info)  # It ends a list of kernels, and begins another one.
    best = min(costs, key=costs.__getitem__)
    return best, costs[best]


def _panels_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    _, multiplying = _multiplication(info, problem)
    count = -(-problem.n // _panel_rows(info, problem))
    written = 2 * _panel_type(info, problem).itemsize * problem.n * problem.k
    moved = (problem.weight_bytes + written) / bandwidth(info)
    return count * (dispatching(info) + multiplying) + moved


@family.variant("panels", cost=_panels_cost, batch_invariant=False)
@one_by_one
def panels(
    gpu: Context, problem: QuantizedProduct, x: Array, weight: Stored, result: Array
) -> None:
    """Some rows of the weight at a time are decoded, and multiplied by MPS or in tiles."""
    kind = _panel_type(gpu.info, problem)
    exact = problem.dtype is kind
    shape = (problem.m, problem.n)
    product = reshaped(result, *shape) if exact else empty(gpu, Spec(shape, kind))
    x = elementwise.cast(gpu, x, kind)
    multiply = TIMES_ROWS[_multiplication(gpu.info, problem)[0]]
    for first, panel in _decoded(gpu, problem, weight):
        multiply(gpu, x, panel, product, first, LABEL)
    if not exact:
        finish(gpu, _plain(problem), product, 1, None, result)


def _decoded(
    gpu: Context, problem: QuantizedProduct, weight: Stored
) -> Iterator[tuple[int, Array]]:
    """Panels of the weight, each with the number of its first row."""
    n, k = problem.n, problem.k
    step = _panel_rows(gpu.info, problem)
    for first in range(0, n, step):
        spec = Spec((min(step, n - first), k), _panel_type(gpu.info, problem))
        # From the second panel on, the pool reuses the same memory: the device works in order.
        panel = empty(gpu, spec)
        decode(gpu, weight.rows(first, spec.shape[0], k), buffer_of(panel), spec)
        yield first, panel
        del panel


def _plain(problem: QuantizedProduct) -> MatmulProblem:
    """The matmul problem with a decoded weight."""
    m, n, k = problem.m, problem.n, problem.k
    return MatmulProblem(m, n, k, problem.dtype, Matrix(False, k), Matrix(True, k))


# ---- simdgroups ----


def simd_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    """Microseconds of a product whose weight is read once for up to MOST_ROWS rows of x."""
    if not info.simd_hardware:
        return EMULATED + 2 * problem.operations
    reading = problem.weight_bytes * -(-problem.m // MOST_ROWS) / (OF_BANDWIDTH * bandwidth(info))
    return dispatching(info) + max(reading, problem.operations / (OF_PEAK * peak(info)))


@family.variant("simd", cost=simd_cost, batch_invariant=False)
@one_by_one
def simd(gpu: Context, problem: QuantizedProduct, x: Array, weight: Stored, result: Array) -> None:
    """Two simdgroups per threadgroup, each with four rows of the weight."""
    rows = rows_in_one_pass(problem)
    gpu.queue.dispatch(
        pipeline(gpu, "quant_matvec", "quantized_matmul_simd", weight, problem.dtype, {3: rows}),
        [*weight.arguments, buffer_of(x), buffer_of(result), problem.packed()],
        (-(-problem.n // SIMD_COLUMNS) * SIMD_THREADS, -(-problem.m // rows), 1),
        (SIMD_THREADS, 1, 1),
        kernel="quantized_matmul",
        variant="simd",
    )


# From large to small, as in quant_matmul.metal. The first is for tensor cores, with much
# threadgroup memory.
TILINGS = (
    Tiling("large", 2, 4, 64, 32, 64, 3, 0.25),  # of tensor cores, as measured on an H200
    Tiling("", 2, 2, 16, 32, 64, 1, TILES_OF_PEAK),
)


def tiling_for(info: DeviceInfo, problem: QuantizedProduct) -> Tiling:
    """The largest tiles that the device has memory for and that the rows fill."""
    large, small = TILINGS
    able = has_tensor_cores(info) and problem.dtype.itemsize == 2
    enough = problem.m > small.m or policy().deterministic  # which does not depend on m
    return large if able and enough else small


def _tiles_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    if not info.simd_hardware:
        return EMULATED + problem.operations
    tiling = tiling_for(info, problem)
    down, across = -(-problem.m // tiling.m), -(-problem.n // tiling.n)
    busy = min(1.0, down * across / (tiling.a_core * (info.cores or 1)))
    operations = 2.0 * down * tiling.m * across * tiling.n * problem.k
    # Small tiles do not keep tensor cores busy.
    rate = product_peak(info, problem.dtype) if tiling is TILINGS[0] else peak(info)
    return dispatching(info) + operations / (tiling.of_peak * busy * rate)


@family.variant("tiles", can=lambda info, problem: info.simdgroup_matrix, cost=_tiles_cost)
@one_by_one
def tiles(gpu: Context, problem: QuantizedProduct, x: Array, weight: Stored, result: Array) -> None:
    """Simdgroups multiply tiles; the weight is decoded in threadgroup memory."""
    _dispatch_tiles(gpu, problem, x, weight, result, None)


def _dispatch_tiles(
    gpu: Context,
    problem: QuantizedProduct,
    x: Array,
    weight: Stored,
    result: Array,
    steps: ProductSteps | None,
) -> None:
    tiling = tiling_for(gpu.info, problem)
    factor = _factor(problem, tiling)
    weight = _aligned(gpu, weight)
    kind = "_".join(filter(None, (tiling.name, FACTORS[factor], "tiles")))
    given = buffer_of(x)
    aligned = is_aligned(given, problem.k, (), problem.dtype, COPIED)
    arguments = [*weight.arguments, given, buffer_of(result), problem.packed()]
    text = "" if steps is None else steps.text(len(arguments))
    gpu.queue.dispatch(
        pipeline(
            *(gpu, "quant_matmul", f"quantized_matmul_{kind}", weight, problem.dtype),
            {3: aligned},
            text,
        ),
        [*arguments, *(() if steps is None else steps.operands)],
        (-(-problem.n // tiling.n) * tiling.threads, -(-problem.m // tiling.m), 1),
        (tiling.threads, 1, 1),
        threadgroup_memory=(tiling.memory_with(factor, steps),),
        kernel="quantized_matmul" if steps is None else steps.name,
        variant="tiles",
    )


@finishes("quantized_matmul", accepts=takes_steps)
def finished_quantized_matmul(call: Call, finish: Finish) -> tuple[Array, ...]:
    """A product and the elementwise steps after it: in one kernel where tiles compute it."""
    gpu, (spec,) = call.gpu, call.outputs
    steps = steps_of(finish)
    given, *parts = call.inputs
    assert given is not None
    scheme, k = quant.find(call.attributes["scheme"]), given.layout.shape[-1]
    m, n = math.prod(spec.shape[:-1]), spec.shape[-1]
    problem = QuantizedProduct(scheme, m, n, k, spec.dtype)
    chosen = family.choose(gpu.info, problem).name if m * n * k else ""
    in_tiles = chosen == "tiles" or (
        chosen == "panels"
        and spec.dtype is _panel_type(gpu.info, problem)
        and _multiplication(gpu.info, problem)[0] == "tiles"
    )
    if steps is None or not in_tiles:
        (product,) = quantized_matmul(call)
        return elementwise.compute(gpu, finish.after(product))
    result = empty(gpu, finish.computation.outputs[0][1])
    x = reshaped(elementwise.contiguous(gpu, placed(gpu, given)), m, k)
    weight = stored(gpu, scheme, parts)
    if chosen == "tiles":
        _dispatch_tiles(gpu, problem, x, weight, result, steps)
        return (result,)
    x, rows = elementwise.cast(gpu, x, spec.dtype), reshaped(result, m, n)
    for first, panel in _decoded(gpu, problem, weight):
        label = (steps.name, "panels")
        matmul_tiles.times_rows(gpu, x, panel, rows, first, label, steps)
    return (result,)


def _aligned(gpu: Context, weight: Stored) -> Stored:
    """The weight at an address from which kernels can read vectors."""
    if weight.scheme.codec not in IN_VECTORS or weight.codes.offset % COPIED == 0:
        return weight
    aligned = gpu.buffer(weight.codes.size, "scratch")
    gpu.queue.encode("copy", [weight.codes, aligned], copy_bytes, written_at=frozenset({1}))
    return replace(weight, codes=aligned)


IN_VECTORS = {"q4_k"}  # codecs whose matrix quant_runs.h declares with a vector type
FACTORS = {dt.float32: "", dt.float16: "half", dt.bfloat16: "bfloat"}


def _factor(problem: QuantizedProduct, tiling: Tiling) -> Dtype:
    """The type that is multiplied: float16 as it is, bfloat16 where tensor cores take it."""
    exact = problem.dtype is dt.float16 or tiling.stages > 1
    return problem.dtype if exact else dt.float32


family.samples += [
    Sample(
        "quantized_matmul", (Spec((m, 4096), d), Spec((4096, 2304), dt.uint8)), {"scheme": "q4_k"}
    )
    for m, d in ((1, dt.float32), (1, dt.float16), (512, dt.float16))
]
