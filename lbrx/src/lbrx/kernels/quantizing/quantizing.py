"""Encoding of values into quantized blocks, directly or by the search of the K types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lbrx import quant
from lbrx.errors import QuantizationError
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty, kernel_name, placed
from lbrx.kernels.quantized import GROUP, TYPES, Blocks
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.ops import Spec
from lbrx.quant import Encoder
from lbrx.storage import Array

REPORT_BYTES = 12  # of a `Report`


family: KernelFamily[Blocks] = KernelFamily("quantize")


@computes("encode_blocks")
def encode_blocks(call: Call) -> tuple[Array, ...]:
    """Encode values; those that the scheme cannot represent make the next wait raise an error."""
    gpu, scheme = call.gpu, quant.find(call.attributes["scheme"])
    (given,) = call.inputs
    assert given is not None
    if scheme.encoder is None:
        raise QuantizationError(
            f"no kernel encodes {scheme.name}: use lbrx.quantize, which does it on the host"
        )
    x = elementwise.contiguous(gpu, placed(gpu, given))
    results = tuple(empty(gpu, spec) for spec in call.outputs)
    if x.layout.size:
        problem = Blocks(scheme, scheme.blocks(x.layout.shape), x.dtype)
        family.run(gpu, problem, buffer_of(x), [buffer_of(result) for result in results])
    return results


def _is_searched(info: DeviceInfo, problem: Blocks) -> bool:
    return problem.scheme.encoder is Encoder.SEARCHED


@family.variant("groups", can=_is_searched)
def groups(gpu: Context, problem: Blocks, x: Buffer, results: list[Buffer]) -> None:
    """One thread per sixteen groups, of one or two blocks."""
    scheme = problem.scheme
    together = 16 * scheme.group_size // scheme.elements
    threads = -(-problem.blocks // together)
    constants = {0: TYPES[problem.dtype], 1: 0, 2: scheme.elements}
    name = kernel_name("quantize_groups", scheme.codec or "")
    report = gpu.host_buffer(REPORT_BYTES)
    report.unsynchronised()[:] = 0
    gpu.queue.dispatch(
        gpu.shaders.pipeline("quant_search", name, constants, safe_math=True),
        [x, results[0], report, np.uint64(problem.blocks).tobytes()],
        (threads, 1, 1),
        (min(threads, GROUP), 1, 1),
        kernel="quantize",
        variant="groups",
        check=_refusal(problem, report),
    )


@family.variant("block", can=lambda info, problem: not _is_searched(info, problem))
def block(gpu: Context, problem: Blocks, x: Buffer, results: list[Buffer]) -> None:
    """One thread per block."""
    scheme = problem.scheme
    constants = {0: TYPES[problem.dtype], 1: 0, 2: scheme.elements}
    name = kernel_name("quantize_block", scheme.codec or "")
    report = gpu.host_buffer(REPORT_BYTES)
    report.unsynchronised()[:] = 0
    parts = [*results, *results[:1] * (3 - len(results))]
    gpu.queue.dispatch(
        gpu.shaders.pipeline("quant_encode", name, constants, safe_math=True),
        [x, *parts, report],
        (problem.blocks, 1, 1),
        (min(problem.blocks, GROUP), 1, 1),
        kernel="quantize",
        variant="block",
        check=_refusal(problem, report),
    )


def _refusal(problem: Blocks, report: Buffer) -> Callable[[], Exception | None]:
    def check() -> Exception | None:
        found, *halves = (int(word) for word in report.unsynchronised().view(np.uint32))
        if not found:
            return None
        first = (halves[0] | halves[1] << 32) * problem.scheme.elements
        last = first + problem.scheme.elements - 1
        return QuantizationError(
            f"{problem.scheme.name} cannot hold elements {first} to {last}: one is not finite, or "
            "too large for the type of the scales; replace it, or leave this tensor unquantized"
        )

    return check


family.samples.append(
    Sample("encode_blocks", (Spec((1024, 4096), next(iter(TYPES))),), {"scheme": "q8_0"})
)
