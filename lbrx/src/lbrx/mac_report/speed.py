"""A short benchmark: what the device moves and computes in a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import lbrx
from lbrx import Tensor
from lbrx.bench.timing import Effort, interleaved, kernels_of
from lbrx.mac_report.steps import Recorder
from lbrx.metal import DeviceInfo, context

ROUNDS = 7
SHARE = 0.2  # of the time that is left, for one case


@dataclass(frozen=True)
class Case:
    name: str
    compute: Callable[[], Tensor]
    nbytes: float = 0
    operations: float = 0


def _cases(info: DeviceInfo) -> list[Case]:
    side = 2048 if info.simd_hardware else 512
    count = 1 << (26 if info.simd_hardware else 22)
    x = lbrx.ones((count,), device="metal")
    rows = x.reshape((-1, 4096))
    halves = lbrx.ones((side, side), dtype="float16", device="metal")
    floats = lbrx.ones((side, side), device="metal")
    vector = lbrx.ones((1, side), dtype="float16", device="metal")
    return [
        Case("copy", lambda: x + 1, nbytes=8 * count),
        Case("softmax", lambda: rows.softmax(axis=-1), nbytes=8 * count),
        Case("matmul float32", lambda: floats @ floats, operations=2 * side**3),
        Case("matmul float16", lambda: halves @ halves, operations=2 * side**3),
        Case("matrix times vector", lambda: vector @ halves, nbytes=2 * side**2),
    ]


def record_speed(record: Recorder) -> None:
    info = context().info
    for case in _cases(info):
        if not record.skips(case.name):
            with record.trying(case.name) as values:
                values.update(_measured(case, info, record.seconds_left * SHARE))


def _measured(case: Case, info: DeviceInfo, seconds: float) -> dict[str, object]:
    def work() -> None:
        lbrx.eval(case.compute())

    kernels = kernels_of(work)
    timing = interleaved({case.name: work}, Effort(ROUNDS, seconds))[case.name]
    median = timing.median
    values: dict[str, object] = {
        "milliseconds": round(median * 1e3, 4),
        "rounds": timing.rounds,
        "kernels": kernels,
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
