"""The `kernels` suite: each case beside its ceilings, the CPU device and the peers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import ml_dtypes
import numpy as np

import lbrx
from lbrx.bench.ceilings import CeilingMaker, limits
from lbrx.bench.energy import EnergyMeter
from lbrx.bench.kernel_cases import Array, KernelCase, Made
from lbrx.bench.peers import Peer
from lbrx.bench.peers.with_numpy import OPERATIONS
from lbrx.bench.report import Row
from lbrx.bench.timing import Effort, Work, interleaved, kernels_of
from lbrx.scheduler.profiler import profile

OURS, CPU = "lbrx", "lbrx-cpu"
# Errors that are allowed, relative to the largest value: some roundings of the dtype.
TOLERANCES = {"float32": 3e-5, "float16": 4e-3, "bfloat16": 3e-2}
QUANTIZED_TOLERANCE = 3e-2  # activations may be rounded to 8 bits for the product
NARROW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Tools:
    """What measuring a case takes."""

    peers: Sequence[Peer]
    ceilings: CeilingMaker
    effort: Effort
    meter: EnergyMeter | None = None


@dataclass(frozen=True)
class Inputs:
    """The same values for every side."""

    values: tuple[Array, ...]
    """For peers: floats are float32 and have been rounded to the case's dtype."""
    host: tuple[lbrx.Tensor, ...]
    metal: tuple[lbrx.Tensor, ...]


def measure(case: KernelCase, tools: Tools) -> Row:
    """Time a case; the result is compared with the reference first."""
    inputs = _inputs(case)
    ours = _work(case, inputs.metal)
    error = _error(case, inputs)
    works: dict[str, Work] = {OURS: ours, CPU: _work(case, inputs.host)}
    for peer in tools.peers:
        work = peer.work(case.operation, inputs.values, case.dtype, case.options)
        if work is not None:
            works[peer.name] = work
    ceilings = tools.ceilings.of(case.nbytes, case.operations, case.reads, case.dtype, case.side)
    works |= {f"ceiling: {name}": one.work for name, one in ceilings.items()}
    memory, variant = _peak_memory(ours), kernels_of(ours)
    timings = interleaved(works, tools.effort, tools.meter)
    allowed = limits(ceilings, {name: timings[f"ceiling: {name}"] for name in ceilings})
    own = timings[OURS]
    rivals = {n: t for n, t in timings.items() if n != OURS and not n.startswith("ceiling: ")}
    return Row(
        suite="kernels",
        name=case.name,
        family=case.family,
        dtype=case.dtype,
        shape=list(case.shape),
        variant=variant,
        seconds=own.median,
        spread=own.spread,
        rounds=own.rounds,
        joules=own.joules,
        share_of_ceiling=allowed.seconds(case.nbytes, case.operations) / own.median,
        nbytes=case.nbytes,
        operations=case.operations,
        bandwidth=allowed.bandwidth,
        peak=allowed.peak,
        peers={name: timing.median for name, timing in rivals.items()},
        peer_spreads={name: timing.spread for name, timing in rivals.items()},
        peak_memory=memory,
        error=error,
        tolerance=_tolerance(case),
    )


def _inputs(case: KernelCase) -> Inputs:
    made = case.inputs(np.random.default_rng(0))
    values = tuple(_rounded(x, case.dtype) for x in made)
    host = [_tensor(x, case.dtype) for x in values]
    if case.scheme:
        host[-1] = lbrx.quantize(host[-1], case.scheme)
        values = (*values[:-1], lbrx.dequantize(host[-1]).numpy())
    metal = tuple(x.to_device("metal") for x in host)
    lbrx.eval(*metal)
    return Inputs(values, tuple(host), metal)


def _rounded(x: Array, dtype: str) -> Array:
    if x.dtype.kind != "f" or dtype not in NARROW:
        return x
    return x.astype(NARROW[dtype]).astype(np.float32)


def _tensor(x: Array, dtype: str) -> lbrx.Tensor:
    made = lbrx.tensor(x, device="cpu")
    return made.astype(dtype) if x.dtype.kind == "f" else made


def _work(case: KernelCase, inputs: Sequence[lbrx.Tensor]) -> Work:
    on_metal = all(x.device == "metal" for x in inputs)
    function = lbrx.compile(case.ours) if case.compiled and on_metal else case.ours

    def work() -> None:
        with _fusion(case.fused):
            lbrx.eval(function(*inputs))

    return work


@contextmanager
def _fusion(on: bool) -> Iterator[None]:
    """LBRX_FUSION=0 if it is not on; a setting of the user's stays."""
    if on or os.environ.get("LBRX_FUSION") is not None:
        yield
        return
    os.environ["LBRX_FUSION"] = "0"
    try:
        yield
    finally:
        del os.environ["LBRX_FUSION"]


def _error(case: KernelCase, inputs: Inputs) -> float | None:
    """The largest difference from the reference in float64, as a share of its largest value."""
    if case.random:
        return None
    if case.operation in OPERATIONS:
        wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs.values]
        expected = np.asarray(OPERATIONS[case.operation](*wide, **case.options), np.float64)
    else:
        expected = _numpy(case.ours(*inputs.host))
    difference = np.abs(_numpy(case.ours(*inputs.metal)) - expected).max()
    return float(difference / max(np.abs(expected).max(), 1e-30))


def _numpy(made: Made) -> Array:
    assert isinstance(made, lbrx.Tensor)
    return lbrx.dequantize(made).numpy().astype(np.float64)


def _tolerance(case: KernelCase) -> float | None:
    if case.random:
        return None
    return QUANTIZED_TOLERANCE if case.scheme else TOLERANCES[case.dtype]


def _peak_memory(ours: Work) -> int:
    """Bytes in use by buffers of the pool at the most expensive command."""
    with profile() as seen:
        ours()
    return max((record.memory for record in seen.records), default=0)
