"""Which pipelines computations need, without compiling or running them."""

from __future__ import annotations

from lbrx.kernels.arrays import empty
from lbrx.kernels.registry import FAMILIES, RUNNERS, Call
from lbrx.metal import Context
from lbrx.metal.commands import recording
from lbrx.metal.library import PipelineRequest, listing_pipelines
from lbrx.ops import TABLE


def sample_pipelines(gpu: Context) -> list[PipelineRequest]:
    """The pipelines that the samples of all families use on this device."""
    with listing_pipelines() as requests, recording():  # which reads no operands on the host
        for name in sorted(FAMILIES):
            for sample in FAMILIES[name].samples:
                op = TABLE[sample.op]
                attributes = op.bind(sample.attributes)
                inputs = tuple(empty(gpu, spec) for spec in sample.specs)
                outputs = op.infer(sample.specs, attributes)
                RUNNERS[sample.op](Call(gpu, op, inputs, attributes, outputs))
    return list(requests)
