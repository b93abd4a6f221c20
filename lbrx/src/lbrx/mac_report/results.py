"""Small computations on the device beside the same ones by numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import lbrx
from lbrx import Tensor
from lbrx.mac_report.steps import Recorder
from lbrx.metal import context

Compute = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """A computation of random tensors, and how far the device may be from numpy."""

    name: str
    compute: Compute
    shapes: tuple[tuple[int, ...], ...] = ((33, 65),)
    dtype: str = "float32"
    tolerance: float = 1e-5


def _cases() -> list[Case]:
    square = ((130, 70), (70, 50))
    return [
        Case("elementwise", lambda x: (x * 2 + 1).exp() / (x.abs() + 1), tolerance=1e-4),
        Case("silu", lambda x: x.silu(), tolerance=1e-5),
        Case("gelu", lambda x: x.gelu(), tolerance=1e-5),
        Case("sum", lambda x: x.sum(axis=-1), tolerance=1e-4),
        Case("argmax", lambda x: x.argmax(axis=-1).astype("float32"), tolerance=0),
        Case("softmax", lambda x: x.softmax(axis=-1)),
        Case("rms_norm", lambda x: x.rms_norm(), tolerance=1e-4),
        Case("layer_norm", lambda x: x.layer_norm(), tolerance=1e-4),
        Case("transposed", lambda x: x.T + 1, tolerance=0),
        Case("strided", lambda x: x[2:9:3, ::7] * 3, tolerance=1e-6),
        Case("matmul float32", lambda a, b: a @ b, square, tolerance=1e-4),
        Case("matmul float16", lambda a, b: a @ b, square, "float16", 2e-2),
        Case("matmul bfloat16", lambda a, b: a @ b, square, "bfloat16", 1e-1),
        Case("matmul of a batch", lambda a, b: a @ b, ((3, 40, 20), (3, 20, 30)), tolerance=1e-4),
        Case(
            "matmul with bias", lambda a, b, c: (a @ b + c).relu(), (*square, (50,)), tolerance=1e-4
        ),
        Case("float16", lambda x: x * 3 + 0.5, dtype="float16", tolerance=1e-2),
        Case("bfloat16", lambda x: x * 3 + 0.5, dtype="bfloat16", tolerance=1e-1),
        Case("int32", lambda x: x * 3 + 2, dtype="int32", tolerance=0),
    ]


def record_results(record: Recorder) -> None:
    rng = np.random.default_rng(1)
    for case in _cases():
        if not record.skips(case.name):
            with record.trying(case.name) as values:
                values["error"] = _error(case, rng)
                values["tolerance"] = case.tolerance
                _check(values["error"], case.tolerance)
    works = {"replay": _replay, "custom kernel": _custom_kernel, "events": _events}
    if context().info.unified_memory:
        works["shared memory"] = _shared_memory
    for name, work in works.items():
        if not record.skips(name):
            with record.trying(name):
                work()


def _error(case: Case, rng: np.random.Generator) -> float:
    """The largest difference between the two devices, relative to the largest value above 1."""
    given = [lbrx.tensor(rng.standard_normal(s) * 4, dtype="float32") for s in case.shapes]
    host, device = (
        case.compute(*(x.to_device(place).astype(case.dtype) for x in given))
        .astype("float32")
        .numpy()
        .astype(np.float64)
        for place in ("cpu", "metal")
    )
    return float(np.abs(host - device).max() / max(1.0, np.abs(host).max()))


def _check(error: float, tolerance: float) -> None:
    if not error <= tolerance:  # also for NaN
        raise ArithmeticError(f"{error} from numpy's result, {tolerance} is expected")


def _replay() -> None:
    step = lbrx.compile(lambda x: (x @ x).softmax(axis=-1) * 2)
    for scale in (1.0, 2.0, 3.0):
        x = lbrx.full((32, 32), scale, device="metal")
        error = np.abs(step(x).numpy() - 2 / 32).max()
        _check(float(error), 1e-6)


def _custom_kernel() -> None:
    double = lbrx.kernel(
        "kernel void twice(device const float* x, device float* out,"
        " uint i [[thread_position_in_grid]]) { out[i] = 2 * x[i]; }"
    )
    x = lbrx.arange(100, dtype="float32", device="metal")
    result = double(x, shapes=[(100,)], grid=(100, 1, 1)).numpy()
    _check(float(np.abs(result - 2 * np.arange(100)).max()), 0)


def _shared_memory() -> None:
    array = lbrx.empty_aligned((1000,))
    array[:] = 7
    shared = lbrx.from_numpy(array, device="metal", copy=False)
    _check(float(np.abs((shared + 1).numpy() - 8).max()), 0)


def _events() -> None:
    x = lbrx.ones((64, 64), device="metal")
    gate, done = lbrx.Event("metal"), lbrx.Event("metal")
    gate.hold()
    y = x + 1
    done.record(y)
    early = done.query()
    gate.release()
    if early or not done.wait(timeout=30):
        raise RuntimeError("an event was signalled too early, or never")
