"""A short benchmark: what the device moves and computes in a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

import lbrx
from lbrx import Tensor
from lbrx.bench.energy import EnergyMeter, find_meter
from lbrx.bench.timing import Effort, interleaved, kernels_of
from lbrx.mac_report.steps import Recorder
from lbrx.metal import DeviceInfo, context
from lbrx.metal.power_state import power_state

ROUNDS = 7
SHARE = 0.15  # of the time that is left, for one case
LONG = 32  # products of a chain


@dataclass(frozen=True)
class Case:
    name: str
    compute: Callable[[], Tensor]
    nbytes: float = 0
    operations: float = 0


SCHEMES = ("q8_0", "q4_0", "q4_k")


def _cases(info: DeviceInfo) -> Iterator[Case]:
    """Sizes that fill a large GPU, and numbers that are not all the same; smaller ones for a
    processor. Each is made when it is measured."""
    gpu = info.simd_hardware and not info.soft
    side, count = (4096, 1 << 28) if gpu else (512, 1 << 22)
    yield from _streams(min(count, info.memory_limit // 32))
    yield from _products(side)
    yield from _quantized(side)


def _streams(count: int) -> Iterator[Case]:
    x = lbrx.random.normal(shape=(count // 4096, 4096), device="metal")
    lbrx.eval(x)
    yield Case("copy", lambda: x + 1, nbytes=8 * count)
    yield Case("softmax", lambda: x.softmax(axis=-1), nbytes=8 * count)


def _products(side: int) -> Iterator[Case]:
    for dtype in ("float32", "float16"):
        matrix = lbrx.random.normal(shape=(side, side), device="metal").astype(dtype)
        lbrx.eval(matrix)
        yield Case(f"matmul {dtype}", partial(matrix.matmul, matrix), operations=2 * side**3)
    step = partial(_times, matrix)
    yield Case("matrix times vector", partial(_chain, step, side), nbytes=2 * LONG * side**2)


def _quantized(side: int) -> Iterator[Case]:
    values = np.random.default_rng(2).standard_normal((side, side)).astype(np.float32)
    rows = lbrx.random.normal(shape=(side // 4, side), device="metal").astype("float16")
    lbrx.eval(rows)
    for scheme in SCHEMES:
        weight = lbrx.quantize(lbrx.tensor(values), scheme).to_device("metal")
        lbrx.eval(weight)
        read = LONG * weight.storage.nbytes
        step = partial(_linear, weight)
        yield Case(f"{scheme} times vector", partial(_chain, step, side), nbytes=read)
        operations = 2 * side * side * (side // 4)
        yield Case(f"{scheme} times matrix", partial(step, rows), operations=operations)


def _times(matrix: Tensor, x: Tensor) -> Tensor:
    return x @ matrix


def _linear(weight: Tensor, x: Tensor) -> Tensor:
    return lbrx.linear(x, weight)


def _chain(step: Callable[[Tensor], Tensor], side: int) -> Tensor:
    """Products with a matrix one after the other, in one evaluation: not the host is timed."""
    x = lbrx.ones((1, side), dtype="float16", device="metal")
    for _ in range(LONG):
        x = step(x).softmax(axis=-1)
    return x


def record_speed(record: Recorder) -> None:
    info, meter = context().info, find_meter()
    for case in _cases(info):
        if not record.skips(case.name):
            with record.trying(case.name) as values:
                values.update(_measured(case, info, record.seconds_left * SHARE, meter))


def _measured(
    case: Case, info: DeviceInfo, seconds: float, meter: EnergyMeter | None
) -> dict[str, object]:
    def work() -> None:
        lbrx.eval(case.compute())

    kernels = kernels_of(work)
    timing = interleaved({case.name: work}, Effort(ROUNDS, seconds), meter)[case.name]
    median = timing.median
    values: dict[str, object] = {
        "milliseconds": round(median * 1e3, 4),
        "rounds": timing.rounds,
        "kernels": kernels,
        "joules": timing.joules,
        "power": None if (state := power_state()) is None else str(state),
    }
    if case.nbytes:
        values["gigabytes_per_second"] = round(case.nbytes / median / 1e9, 2)
        values["of_bandwidth"] = _share(case.nbytes / median, info.bandwidth)
    if case.operations:
        values["gigaflops"] = round(case.operations / median / 1e9, 1)
        values["of_fp32_peak"] = _share(case.operations / median, info.fp32_peak)
    return values


def _share(rate: float, peak: float | None) -> float | None:
    return None if peak is None else round(rate / peak, 3)
