"""Products with quantized matrices: x times the transpose of a weight that stays quantized."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Bool, Record, UInt
from lbrx.device_info import DeviceKind
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, reshaped, size_class
from lbrx.kernels.costs import GPU, bandwidth, dispatching, encoding, of_gpu, peak, product_peak
from lbrx.kernels.finishing import Finish, Operation, finishes
from lbrx.kernels.matmul import matmul, matmul_tiles, mps
from lbrx.kernels.matmul.matmul import (
    MatmulProblem,
    Matrix,
    finish,
    is_aligned,
)
from lbrx.kernels.matmul.matmul_tiles import COPIED, Tiling, has_tensor_cores, takes_steps
from lbrx.kernels.matmul.product_steps import ProductSteps, can_follow, steps_of
from lbrx.kernels.quantized.quantized import Stored, StoredConstants, decode, pipeline, stored
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes, policy
from lbrx.metal import DeviceInfo
from lbrx.ops import Spec
from lbrx.ops.quantized import weights_of
from lbrx.quant import Scheme

# Constants of quant_matvec.h.
MOST_ROWS = 8
SIMD_COLUMNS, SIMD_THREADS = 8, 64

PANELS = 16 << 20, 64 << 20  # bytes of a weight that processors and GPUs decode at a time


class QuantizedProductRecord(Record, header="quant_product"):
    m: UInt
    n: UInt
    k: UInt


class QuantizedRowsConstants(StoredConstants, header="quant_rows"):
    ROWS: UInt  # of x in one pass


class QuantizedTilesConstants(StoredConstants, header="quant_matmul"):
    ALIGNED: Bool  # rows of x begin at multiples of 16 bytes


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

    def record(self) -> QuantizedProductRecord:
        """The sizes as kernels read them."""
        return QuantizedProductRecord(m=self.m, n=self.n, k=self.k)


family: KernelFamily[QuantizedProduct] = KernelFamily("quantized_matmul")


@computes("quantized_matmul")
def quantized_matmul(call: Call) -> tuple[Array, ...]:
    """Compute `quantized_matmul`: x times the transpose of one or more quantized weights."""
    b, (rows, *_), problem = call.builder, call.inputs, problem_of(call)
    assert rows is not None
    m, n, k = problem.m, problem.n, problem.k
    results = tuple(b.result(spec) for spec in call.outputs)
    if not m * n:
        return results
    if k == 0:
        for result in results:
            finish(b, _plain(of_columns(problem, result)), result, 0, None, result)
        return results
    x = layouts.contiguous(b, b.placed(rows))
    family.run(b, problem, reshaped(x, m, k), stored_weights(call), results)
    return results


def problem_of(operation: Operation) -> QuantizedProduct:
    """The problem of an operation."""
    specs, x = operation.outputs, operation.inputs[0]
    assert x is not None
    m, n = math.prod(specs[0].shape[:-1]), sum(spec.shape[-1] for spec in specs)
    scheme = quant.find(operation.attributes["scheme"])
    return QuantizedProduct(scheme, m, n, x.layout.shape[-1], specs[0].dtype)


def stored_weights(call: Call) -> list[Stored]:
    """The weights of a call."""
    scheme, count = quant.find(call.attributes["scheme"]), len(call.outputs)
    return [stored(call.builder, scheme, parts) for parts in weights_of(call.inputs[1:], count)]


def of_columns(problem: QuantizedProduct, result: Array) -> QuantizedProduct:
    """The problem for one of several weights."""
    return replace(problem, n=result.layout.shape[-1])


def one_by_one(launch: Callable[..., None]) -> Callable[..., None]:
    """A launch for several weights, made of a launch for one. `steps` follow the product."""

    @wraps(launch)
    def every(
        b: Builder,
        problem: QuantizedProduct,
        x: Array,
        weights: Sequence[Stored],
        results: Sequence[Array],
        *steps: ProductSteps,
    ) -> None:
        for weight, result in zip(weights, results, strict=True):
            if result.layout.size:
                launch(b, of_columns(problem, result), x, weight, result, *steps)

    return every


def rows_in_one_pass(problem: QuantizedProduct) -> int:
    """The number of rows of x, rounded up to those for which kernels are compiled."""
    return min(1 << (problem.m - 1).bit_length(), MOST_ROWS)


# ---- panels of the weight, decoded in order ----

# How a panel is multiplied: the variants of `matmul` that can write into columns of a result.
TIMES_ROWS: dict[str, Callable[..., None]] = {
    "mps": mps.times_rows,
    "tiles": matmul_tiles.times_rows,
}


def _panel_type(info: DeviceInfo, problem: QuantizedProduct) -> Dtype:
    """What weights are decoded to: GPUs multiply halves faster, and sum them in float32."""
    halves = problem.dtype if problem.dtype.itemsize == 2 else dt.float32
    return info.by_kind(wide=dt.float32, simd=halves)


def _panel_rows(info: DeviceInfo, problem: QuantizedProduct) -> int:
    """Rows of the weight in a panel."""
    row = _panel_type(info, problem).itemsize * problem.k
    return min(problem.n, max(1, info.by_kind(wide=PANELS[0], simd=PANELS[1]) // row))


def _multiplication(info: DeviceInfo, problem: QuantizedProduct) -> tuple[str, float]:
    """The cheapest way to multiply a panel, and its cost."""
    plain = replace(_plain(problem), dtype=_panel_type(info, problem))
    product = replace(plain, n=_panel_rows(info, problem))
    ways = (matmul.family.variants[name] for name in TIMES_ROWS)
    costs = {way.name: way.cost(info, product) for way in ways if way.can(info, product)}
    if "mps" in costs:  # on GPUs it ends a list of kernels, and begins another one
        costs["mps"] += info.by_kind(wide=0, simd=2) * encoding(info)
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
    b: Builder,
    problem: QuantizedProduct,
    x: Array,
    weight: Stored,
    result: Array,
    *steps: ProductSteps,
) -> None:
    """Some rows of the weight at a time are decoded, and multiplied by MPS or in tiles."""
    kind = _panel_type(b.info, problem)
    exact = problem.dtype is kind
    shape = (problem.m, problem.n)
    product = reshaped(result, *shape) if exact else b.result(Spec(shape, kind))
    x = layouts.cast(b, x, kind)
    multiply = TIMES_ROWS[_multiplication(b.info, problem)[0]]
    for first, panel in _decoded(b, problem, weight):
        multiply(b, x, panel, product, first, *steps)
    if not exact:
        finish(b, _plain(problem), product, 1, None, result)


def _decoded(b: Builder, problem: QuantizedProduct, weight: Stored) -> Iterator[tuple[int, Array]]:
    """Panels of the weight, each with the number of its first row."""
    n, k = problem.n, problem.k
    step = _panel_rows(b.info, problem)
    for first in range(0, n, step):
        spec = Spec((min(step, n - first), k), _panel_type(b.info, problem))
        # From the second panel on, the pool reuses the same memory: the device works in order.
        panel = b.result(spec)
        decode(b, weight.rows(first, spec.shape[0], k), buffer_of(panel), spec)
        yield first, panel
        del panel


def _plain(problem: QuantizedProduct) -> MatmulProblem:
    """The matmul problem with a decoded weight."""
    m, n, k = problem.m, problem.n, problem.k
    return MatmulProblem(m, n, k, problem.dtype, Matrix(False, k), Matrix(True, k))


# ---- simdgroups ----


def simd_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    """Microseconds of a product whose weight is read once for up to MOST_ROWS rows of x."""
    size = problem.weight_bytes * -(-problem.m // MOST_ROWS)
    return dispatching(info) + of_gpu(info, "quantized rows", size, problem.operations)


@family.variant("simd", cost=simd_cost, batch_invariant=False, made_for=DeviceKind.SIMD)
@one_by_one
def simd(b: Builder, problem: QuantizedProduct, x: Array, weight: Stored, result: Array) -> None:
    """Two simdgroups per threadgroup, each with four rows of the weight."""
    rows = rows_in_one_pass(problem)
    constants = QuantizedRowsConstants(**weight.constants(problem.dtype), ROWS=rows)
    b.launch(
        pipeline(b, "quant_matvec", "quantized_matmul_simd", weight, constants),
        [*weight.arguments, buffer_of(x), buffer_of(result), problem.record()],
        (-(-problem.n // SIMD_COLUMNS) * SIMD_THREADS, -(-problem.m // rows), 1),
        (SIMD_THREADS, 1, 1),
    )


# From large to small, as in quant_matmul.metal. The first is for tensor cores, with much
# threadgroup memory.
TILINGS = (
    Tiling("large", 2, 4, 64, 32, 64, 3, 0.25),  # of tensor cores, as measured on an H200
    Tiling("", 2, 2, 16, 32, 64, 1, GPU["quantized tiles"].peak),
)


def tiling_for(info: DeviceInfo, problem: QuantizedProduct) -> Tiling:
    """The largest tiles that the device has memory for and that the rows fill."""
    large, small = TILINGS
    able = has_tensor_cores(info) and problem.dtype.itemsize == 2
    enough = problem.m > small.m or policy().deterministic  # which does not depend on m
    return large if able and enough else small


def _tiles_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    tiling = tiling_for(info, problem)
    down, across = -(-problem.m // tiling.m), -(-problem.n // tiling.n)
    busy = min(1.0, down * across / (tiling.a_core * (info.cores or 1)))
    operations = 2.0 * down * tiling.m * across * tiling.n * problem.k
    # Small tiles do not keep tensor cores busy.
    rate = product_peak(info, problem.dtype) if tiling is TILINGS[0] else peak(info)
    return dispatching(info) + operations / (tiling.of_peak * busy * rate)


@family.variant(
    "tiles",
    can=lambda info, problem: info.simdgroup_matrix,
    cost=_tiles_cost,
    made_for=DeviceKind.TENSOR,
)
@one_by_one
def tiles(
    b: Builder,
    problem: QuantizedProduct,
    x: Array,
    weight: Stored,
    result: Array,
    steps: ProductSteps | None = None,
) -> None:
    """Simdgroups multiply tiles; the weight is decoded in threadgroup memory."""
    tiling = tiling_for(b.info, problem)
    factor = _factor(problem, tiling)
    weight = _aligned(b, weight)
    kind = "_".join(filter(None, (tiling.name, FACTORS[factor], "tiles")))
    rows = buffer_of(x)
    aligned = is_aligned(rows, problem.k, (), problem.dtype, COPIED)
    arguments = [*weight.arguments, rows, buffer_of(result), problem.record()]
    text = "" if steps is None else steps.text(len(arguments))
    constants = QuantizedTilesConstants(**weight.constants(problem.dtype), ALIGNED=aligned)
    b.launch(
        pipeline(b, "quant_matmul", f"quantized_matmul_{kind}", weight, constants, text),
        [*arguments, *(() if steps is None else steps.operands)],
        (-(-problem.n // tiling.n) * tiling.threads, -(-problem.m // tiling.m), 1),
        (tiling.threads, 1, 1),
        threadgroup_memory=(tiling.memory_with(factor, steps),),
    )


def _can_finish(info: DeviceInfo, operation: Operation, finish: Finish) -> bool:
    """Whether tiles compute a product, which then apply steps."""
    problem = problem_of(operation)
    if not (takes_steps(info) and problem.m * problem.n * problem.k and can_follow(finish)):
        return False
    chosen = family.choose(info, problem).name
    in_panels = problem.dtype is _panel_type(info, problem)
    return chosen == "tiles" or (
        chosen == "panels" and in_panels and _multiplication(info, problem)[0] == "tiles"
    )


@finishes("quantized_matmul", _can_finish)
def finished_quantized_matmul(call: Call, finish: Finish) -> tuple[Array, ...]:
    """A product and the elementwise steps after it, in the kernel of its tiles."""
    b, problem, steps = call.builder, problem_of(call), steps_of(finish)
    rows, result = call.inputs[0], b.result(finish.spec)
    assert rows is not None
    x = reshaped(layouts.contiguous(b, b.placed(rows)), problem.m, problem.k)
    family.run(b, problem, x, stored_weights(call), (result,), steps, op=steps.name)
    return (result,)


def _aligned(b: Builder, weight: Stored) -> Stored:
    """The weight at an address from which kernels can read vectors."""
    if weight.scheme.codec not in IN_VECTORS or weight.codes.offset % COPIED == 0:
        return weight
    aligned = b.scratch(weight.codes.size)
    b.copy(weight.codes, aligned)
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
