"""What the processor, the GPU and the Neural Engine of each Apple chip are taken to reach.

None of it was measured by lbrx. GPU peaks and memory bandwidths are those of softmetal's table of
chips. Where a chip has no published figure, that of its family is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lbrx.metal.device import Chip


class Unit(StrEnum):
    """A compute unit of an Apple chip."""

    CPU = "cpu"
    GPU = "gpu"
    NEURAL_ENGINE = "neural-engine"


@dataclass(frozen=True)
class UnitFigures:
    """The rates of a unit while it computes a language model."""

    unit: Unit
    operations: float
    """fp16 operations per second that matrix products reach."""
    bandwidth: float
    """Bytes per second at which weights are read."""
    start: float
    """Seconds before a program or list of commands begins."""
    watts: float


# Neural Engine by family: fp16 TFLOP/s, weight stream in GB/s, seconds of a dispatch, watts.
# M1: Bryngelson (arXiv 2606.22283); M2: Apple's 15.8 TOPS; M3 and M4: maderix's probes of M3 Pro
# and M4; M5: maderix's small probe, no peak is published. Streams: anemll-bench. Watts: maderix
# (M4); Llama-2-7B by coreml-llm-cli on M1 Max and M3 Max, here for their families.
_NEURAL_ENGINES = {
    "M1": (12.0, 61, 190e-6, 4.2),
    "M2": (15.8, 60, 190e-6, 4.2),
    "M3": (15.0, 63, 95e-6, 8.0),
    "M4": (18.6, 64, 95e-6, 4.57),
    "M5": (12.2, 70, 70e-6, 4.57),
}
_STREAMS = {"M1 Pro": 55, "M1 Max": 55, "M1 Ultra": 55, "M2 Max": 62, "M2 Ultra": 62} | {
    "M3 Max": 120,
    "M4 Pro": 126,
    "M4 Max": 119,
}
# An M5 Pro computed Qwen3-4B at 7.1 TFLOP/s (cadamcat/llms-on-apple-neural-engine), its family's
# probe 12.2: the share that a transformer's layers reach.
NEURAL_ENGINE_SHARE = 7.1 / 12.2
# llama.cpp with Llama-2-7B q4_0 on all chips of softmetal's table: 55 to 70% of the GPU's peak in
# prefill, 70 to 80% of the bandwidth in decode.
GPU_SHARE, GPU_STREAM_SHARE = 0.6, 0.75
GPU_WATTS_PER_CORE = 62 / 76  # M2 Ultra in prefill (hybrid-ane-mlx-bench)
GPU_START = 50e-6
# Performance cores and their clock in GHz, from Apple's specifications. A core has four units of
# 128 bits, so 64 fp16 operations a cycle. Watts of a core are an assumption.
_CPUS = {
    "M1": (4, 3.2),
    "M1 Pro": (8, 3.2),
    "M1 Max": (8, 3.2),
    "M1 Ultra": (16, 3.2),
    "M2": (4, 3.5),
    "M2 Pro": (8, 3.5),
    "M2 Max": (8, 3.7),
    "M2 Ultra": (16, 3.7),
    "M3": (4, 4.05),
    "M3 Pro": (6, 4.05),
    "M3 Max": (12, 4.05),
    "M3 Ultra": (24, 4.05),
    "M4": (4, 4.4),
    "M4 Pro": (10, 4.5),
    "M4 Max": (12, 4.5),
    "M5": (4, 4.6),
    "M5 Pro": (10, 4.6),  # cores as of the M4's
    "M5 Max": (12, 4.6),
}
CPU_SHARE, CPU_WATTS_PER_CORE, CPU_BANDWIDTH = 0.7, 4.0, 240e9


def unit_figures(chip: Chip) -> dict[Unit, UnitFigures]:
    """The figures of a chip's three units; of a newer chip than these, those of one like it."""
    known = chip.like or chip.name
    tera, stream, start, watts = _NEURAL_ENGINES[known.split()[0]]
    cores, clock = _CPUS[known]
    return {
        Unit.CPU: UnitFigures(
            Unit.CPU,
            cores * clock * 1e9 * 64 * CPU_SHARE,
            min(chip.bandwidth, CPU_BANDWIDTH) * GPU_STREAM_SHARE,
            0.0,
            cores * CPU_WATTS_PER_CORE,
        ),
        Unit.GPU: UnitFigures(
            Unit.GPU,
            chip.fp32_peak * GPU_SHARE,
            chip.bandwidth * GPU_STREAM_SHARE,
            GPU_START,
            chip.cores * GPU_WATTS_PER_CORE,
        ),
        Unit.NEURAL_ENGINE: UnitFigures(
            Unit.NEURAL_ENGINE,
            tera * 1e12 * NEURAL_ENGINE_SHARE,
            _STREAMS.get(known, stream) * 1e9,
            start,
            watts,
        ),
    }
