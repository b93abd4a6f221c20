"""Encoding of values into quantized blocks, directly or by the search of the K types."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from lbrx import quant
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.command_list import ReportCheck
from lbrx.command_lists.records import ULONG, packed
from lbrx.errors import QuantizationError
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, kernel_name
from lbrx.kernels.launching import GROUP
from lbrx.kernels.quantized.quantized import TYPES, Blocks, StoredConstants
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, DeviceInfo
from lbrx.ops import Spec
from lbrx.quant import Encoder

REPORT_BYTES = 12  # of a `BlockReport`


family: KernelFamily[Blocks] = KernelFamily("quantize")


@computes("encode_blocks")
def encode_blocks(call: Call) -> tuple[Array, ...]:
    """Encode values; those that the scheme cannot represent make the next wait raise an error."""
    b, scheme = call.builder, quant.find(call.attributes["scheme"])
    (values,) = call.inputs
    assert values is not None
    if scheme.encoder is None:
        raise QuantizationError(
            f"no kernel encodes {scheme.name}: use lbrx.quantize, which does it on the host"
        )
    x = layouts.contiguous(b, b.placed(values))
    results = tuple(b.result(spec) for spec in call.outputs)
    if x.layout.size:
        problem = Blocks(scheme, scheme.blocks(x.layout.shape), x.dtype)
        family.run(b, problem, buffer_of(x), [buffer_of(result) for result in results])
    return results


def _is_searched(info: DeviceInfo, problem: Blocks) -> bool:
    return problem.scheme.encoder is Encoder.SEARCHED


@family.variant("groups", can=_is_searched)
def groups(b: Builder, problem: Blocks, x: Buffer, results: list[Buffer]) -> None:
    """One thread per sixteen groups, of one or two blocks."""
    scheme = problem.scheme
    together = 16 * scheme.group_size // scheme.elements
    threads = -(-problem.blocks // together)
    constants = StoredConstants(VALUES=TYPES[problem.dtype], GROUP=scheme.elements)
    name = kernel_name("quantize_groups", scheme.codec or "")
    report = b.report(REPORT_BYTES)
    b.launch(
        b.pipeline("quant_search", name, constants, safe_math=True),
        [x, results[0], report, packed(ULONG, problem.blocks)],
        (threads, 1, 1),
        (min(threads, GROUP), 1, 1),
        check=_refusal(problem),
        report=report,
    )


@family.variant("block", can=lambda info, problem: not _is_searched(info, problem))
def block(b: Builder, problem: Blocks, x: Buffer, results: list[Buffer]) -> None:
    """One thread per block."""
    scheme = problem.scheme
    constants = StoredConstants(VALUES=TYPES[problem.dtype], GROUP=scheme.elements)
    name = kernel_name("quantize_block", scheme.codec or "")
    report = b.report(REPORT_BYTES)
    parts = [*results, *results[:1] * (3 - len(results))]
    b.launch(
        b.pipeline("quant_encode", name, constants, safe_math=True),
        [x, *parts, report],
        (problem.blocks, 1, 1),
        (min(problem.blocks, GROUP), 1, 1),
        check=_refusal(problem),
        report=report,
    )


def _refusal(problem: Blocks) -> ReportCheck:
    def check(words: NDArray[Any]) -> Exception | None:
        is_wrong, *halves = map(int, words)
        if not is_wrong:
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
