"""Which pipelines computations need, without compiling or running them."""

from __future__ import annotations

from lbrx.command_lists.builder import Builder
from lbrx.kernels.registry import FAMILIES, operation
from lbrx.metal import Context
from lbrx.metal.library import PipelineRequest, distinct


def sample_pipelines(gpu: Context) -> list[PipelineRequest]:
    """The pipelines that the samples of all families use on this device."""
    b = Builder(gpu)
    for name in sorted(FAMILIES.whole()):
        for sample in FAMILIES[name].samples:
            operation(sample.op, tuple(map(b.result, sample.specs)), sample.attributes)(b)
    return distinct(b.pipelines())
