"""Products with quantized matrices: x times the transposed of a weight that stays packed."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from lbrx import dtype as dt
from lbrx import quant
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty, placed, reshaped, size_class
from lbrx.kernels.matmul import Matrix, Product, finish
from lbrx.kernels.mps import times_rows
from lbrx.kernels.quantized import TYPES, Stored, decode, pipeline, stored
from lbrx.kernels.registry import Call, Family, computes
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.ops import Spec
from lbrx.quant import Scheme
from lbrx.storage import Array

# Of the kernels, as in quant_matvec.h.
RUN, UNIT, MOST_ROWS = 32, 16, 8

PANEL = 2 << 20  # bytes of a weight that are expanded at a time: they stay in a processor's cache


@dataclass(frozen=True)
class QuantizedProduct:
    """A problem: m rows of k numbers times n rows of a quantized matrix."""

    scheme: Scheme
    m: int
    n: int
    k: int
    dtype: Dtype

    @property
    def operations(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def weight_bytes(self) -> float:
        return self.n * self.k * self.scheme.bits_per_weight / 8

    @property
    def shape_class(self) -> str:
        return f"{self.scheme.name} {self.dtype.name} {size_class(self.m, self.n, self.k)}"

    def packed(self) -> bytes:
        """The `Product` record of quant_matvec.h."""
        return struct.pack("3I", self.m, self.n, self.k)


family: Family[QuantizedProduct] = Family("quantized_matmul")


@computes("quantized_matmul")
def quantized_matmul(call: Call) -> tuple[Array, ...]:
    gpu, (spec,) = call.gpu, call.outputs
    given, *parts = call.inputs
    assert given is not None
    scheme = quant.find(call.attributes["scheme"])
    result = empty(gpu, spec)
    n, k, m = spec.shape[-1], given.layout.shape[-1], math.prod(spec.shape[:-1])
    problem = QuantizedProduct(scheme, m, n, k, spec.dtype)
    if not result.layout.size:
        return (result,)
    if k == 0:
        finish(gpu, _plain(problem), result, 0, None, result)
        return (result,)
    x = elementwise.contiguous(gpu, placed(gpu, given))
    family.run(gpu, problem, reshaped(x, m, k), stored(gpu, scheme, parts), result)
    return (result,)


# ---- a few rows, in whole numbers ----


def _can_serial(info: DeviceInfo, problem: QuantizedProduct) -> bool:
    whole_codes = problem.scheme.name != "mlx:mxfp8"
    return whole_codes and problem.k > 0 and problem.k % RUN == 0


def _serial_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    return 1.0


@family.variant("serial", can=_can_serial, cost=_serial_cost)
def serial(
    gpu: Context, problem: QuantizedProduct, x: Array, weight: Stored, result: Array
) -> None:
    """A thread a row of the weight. Rows of x are bytes with a scale for 32 of them."""
    codes, steps, sums = _pack_rows(gpu, problem, x)
    rows = min(1 << (problem.m - 1).bit_length(), MOST_ROWS)
    gpu.queue.dispatch(
        pipeline(gpu, "quant_matvec", "quantized_matmul_serial", weight, problem.dtype, {3: rows}),
        [*weight.arguments, codes, steps, sums, buffer_of(result), problem.packed()],
        (problem.n, -(-problem.m // rows), 1),
        (1, 1, 1),
        kernel="quantized_matmul",
        variant="serial",
    )


def _pack_rows(gpu: Context, problem: QuantizedProduct, x: Array) -> tuple[Buffer, Buffer, Buffer]:
    size = problem.m * problem.k
    codes, steps, sums = (gpu.buffer(n) for n in (size, size // RUN * 4, size // UNIT * 4))
    constants = {0: TYPES[problem.dtype]}
    gpu.queue.dispatch(
        gpu.shaders.pipeline("quant_matvec", "pack_rows", constants, safe_math=True),
        [buffer_of(x), codes, steps, sums],
        (size // RUN, 1, 1),
        (min(size // RUN, 64), 1, 1),
        kernel="quantized_matmul",
        variant="pack_rows",
    )
    return codes, steps, sums


# ---- panels of the weight, expanded one after the other ----


@family.variant(
    "panels",
    can=lambda info, problem: problem.k > 0,
    cost=lambda info, problem: 2.0,
    batch_invariant=False,
)
def panels(
    gpu: Context, problem: QuantizedProduct, x: Array, weight: Stored, result: Array
) -> None:
    """Some rows of the weight are expanded, and multiplied by the vendor's kernel."""
    x = elementwise.cast(gpu, x, dt.float32)
    n, k = problem.n, problem.k
    exact = problem.dtype is dt.float32
    product = reshaped(result, problem.m, n) if exact else empty(gpu, Spec((problem.m, n), x.dtype))
    step = min(n, max(1, PANEL // (4 * k)))
    panel = empty(gpu, Spec((step, k), dt.float32))
    for first in range(0, n, step):
        rows = min(step, n - first)
        spec = Spec((rows, k), dt.float32)
        part = panel if rows == step else empty(gpu, spec)
        decode(gpu, weight.rows(first, rows, k), buffer_of(part), spec)
        times_rows(gpu, x, part, product, first, "quantized_matmul", "panels")
    if not exact:
        finish(gpu, _plain(problem), product, 1, None, result)


def _plain(problem: QuantizedProduct) -> Product:
    """The product as if the weight were not quantized."""
    m, n, k = problem.m, problem.n, problem.k
    return Product(m, n, k, problem.dtype, Matrix(False, k), Matrix(True, k))
