"""Rooflines: a device's bandwidth and arithmetic peak, measured or from a table."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lbrx import stored_json
from lbrx.arrays import dtype as dt
from lbrx.kernels.arrays import whole_buffer
from lbrx.kernels.registry import operation
from lbrx.metal import Context, calibration_file
from lbrx.metal.arrays import empty
from lbrx.ops import Attributes, Spec
from lbrx.scheduler.calibrating import device_seconds
from lbrx.scheduler.report import save
from lbrx.scheduler.running import ready

if TYPE_CHECKING:
    from lbrx.scheduler.profiler import Record

VERSION = 2
# By whether the device is a GPU: a large one needs more than its caches hold, and work for
# 80 cores.
COPIED = (1 << 24,), (1 << 28,)  # floats
SQUARE = (1024, 1024), (4096, 4096)
REPEATS = 5
ENOUGH = 1 / 8  # share of the measured product that a record needs to show the peak


@dataclass(frozen=True)
class Roofline:
    """The limits of a device: a kernel takes at least as long as its bytes or its operations.

    >>> from lbrx.scheduler.roofline import Roofline
    >>> Roofline("an example", bandwidth=100e9, peak=1e12).time(nbytes=2e9, operations=1e9)
    0.02
    """

    device: str
    bandwidth: float  # bytes per second
    peak: float  # operations per second
    date: str = ""  # of the measurement

    def time(self, nbytes: float, operations: float) -> float:
        """The least seconds that bytes and operations take on the device."""
        return max(nbytes / self.bandwidth, operations / self.peak)

    @property
    def ridge(self) -> float:
        """The intensity (operations per byte) above which arithmetic is the limit."""
        return self.peak / self.bandwidth


def measured(gpu: Context) -> Roofline:
    """Measured by a copy and a matrix product; cached in LBRX_CACHE."""
    known = _read(_path(gpu.info.name), gpu.info.name)
    return known if known is not None else measured_again(gpu)


def measured_again(
    gpu: Context, known: Roofline | None = None, records: Sequence[Record] = ()
) -> Roofline:
    """A new measurement, cached as the best of it, what is known, and what records reached: what
    is measured on a busy device is too low. Small records may come from caches, and do not count.
    """
    large = not gpu.info.soft or gpu.info.cuda is not None
    copied = (min(COPIED[large][0], gpu.info.memory_limit // 64),)
    square = SQUARE[large]
    nbytes, operations = 2 * 4 * copied[0], 2.0 * square[0] ** 3
    bandwidths = [nbytes / _best(gpu, "negative", [copied], {})]
    peaks = [operations / _best(gpu, "matmul", [square, square], {"activation": None})]
    if known is not None:
        bandwidths.append(known.bandwidth)
        peaks.append(known.peak)
    timed = [record for record in records if record.time]
    bandwidths += [record.nbytes / record.time for record in timed if record.nbytes >= nbytes]
    enough = operations * ENOUGH
    peaks += [record.operations / record.time for record in timed if record.operations >= enough]
    bandwidth, peak = max(bandwidths), max(peaks)
    date = datetime.now().astimezone().isoformat(" ", "minutes")
    roofline = Roofline(gpu.info.name, bandwidth, peak, date)
    path = _path(gpu.info.name)
    with contextlib.suppress(OSError):  # without a cache it is measured the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, json.dumps({"version": VERSION, **asdict(roofline)}))
    return roofline


def _best(gpu: Context, name: str, shapes: list[tuple[int, ...]], attributes: Attributes) -> float:
    """Device seconds for one operation, the best of several runs."""
    specs = [Spec(shape, dt.float32) for shape in shapes]
    inputs = []
    for spec in specs:
        array = empty(gpu, spec)
        gpu.write(whole_buffer(array), np.ones(spec.shape, np.float32))
        inputs.append(array)
    return device_seconds(ready(gpu, operation(name, inputs, attributes)), REPEATS)


def _path(device: str) -> Path:
    return calibration_file.device_file("roofline", device)


def _read(path: Path, device: str) -> Roofline | None:
    """The cached measurement; None if the file is missing, old or not valid."""
    try:
        content = stored_json.parsed(path.read_text())
        if content.pop("version") != VERSION or content["device"] != device:
            return None
        bandwidth, peak = float(content["bandwidth"]), float(content["peak"])
        valid = 0 < bandwidth < math.inf and 0 < peak < math.inf
        return Roofline(device, bandwidth, peak, str(content["date"])) if valid else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
