"""The profiler: the device time of every command, and how close it is to the roofline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lbrx.errors import DeviceError
from lbrx.memory.pool import PoolStatistics
from lbrx.metal import Context, context
from lbrx.metal.commands import Command, Dispatch
from lbrx.metal.device import find_chip
from lbrx.metal.power_state import PowerState, power_state
from lbrx.scheduler import report
from lbrx.scheduler.roofline import Roofline, measured, measured_again


@dataclass(frozen=True)
class Record:
    """One command. Times are seconds."""

    kernel: str
    variant: str
    shapes: str
    grid: tuple[int, int, int]
    start: float
    """Start of the device's work, relative to the start of the profile."""
    time: float
    delay: float
    """Between the host's commit and the device's start."""
    nbytes: int
    operations: float
    choice: str
    """Why this variant was chosen."""
    memory: int
    """Bytes in use by buffers of the pool when the command is encoded."""
    cached: int
    """Free bytes that the pool keeps for later buffers."""
    scope: int = 0
    """The same for all commands that do one piece of work together; 0 if it is not known."""
    part: int = 0
    """The position of this command among them."""

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.nbytes if self.nbytes else 0.0

    def share(self, roofline: Roofline) -> float:
        """Achieved share of what the roofline allows: 1 is the limit."""
        return roofline.time(self.nbytes, self.operations) / self.time if self.time else 0.0


class _Noted(NamedTuple):
    """A command whose times Metal reports later. Its buffers are not kept alive."""

    record: Record
    commands: Any
    committed: float


class Profile:
    """The recorded commands. `records` waits for the device."""

    def __init__(self, gpu: Context) -> None:
        self._gpu = gpu
        self._noted: list[_Noted] = []
        self._began = time.monotonic()
        self.power: list[PowerState] = []
        """The states of the Mac when the profile began and ended; empty elsewhere."""
        self.note_power()

    def note_power(self) -> None:
        """Add the state of the Mac now."""
        if (state := power_state()) is not None:
            self.power.append(state)

    def note(self, command: Command, commands: Any) -> None:
        """Remember a command; the queue calls it for each."""
        record = _untimed(command, self._gpu.pool.statistics())
        self._noted.append(_Noted(record, commands, time.monotonic()))

    @property
    def records(self) -> list[Record]:
        """One record for each command, with the device's times; waits for the device."""
        self._gpu.queue.wait()
        return _divided([self._timed(*noted) for noted in self._noted])

    def _timed(self, record: Record, commands: Any, committed: float) -> Record:
        start, end = float(commands.GPUStartTime()), float(commands.GPUEndTime())
        delay = max(start - committed, 0.0)
        return replace(record, start=start - self._began, time=end - start, delay=delay)

    @cached_property
    def roofline(self) -> Roofline:
        """The roofline of this device: cached, but measured again if a command here beats it."""
        known = measured(self._gpu)
        records = self.records
        beaten = any(record.share(known) > 1 for record in records)
        return measured_again(self._gpu, known, records) if beaten else known

    def model(self, chip: str) -> Modelled:
        """The same commands on an Apple chip, modelled from the table of chips, not measured."""
        return Modelled(self.records, chip_roofline(chip))

    def table(self) -> str:
        """A text table as wide as the terminal, kernels that took longest first."""
        slow = next((state for state in reversed(self.power) if state.slows), None)
        note = f"Measured with {slow}: this device can be faster." if slow else ""
        return report.table(self.records, self.roofline, note=note)

    def save_trace(self, path: str | Path) -> None:
        """Write a trace for Perfetto and chrome://tracing."""
        pool = self._gpu.pool.statistics()
        report.save(path, report.trace(self.records, self._gpu.info.name, pool))

    def save_plot(self, path: str | Path) -> None:
        """A roofline plot, as SVG."""
        report.save(path, report.plot(self.records, self.roofline))


def _untimed(command: Command, pool: PoolStatistics) -> Record:
    """What is known about a command before it runs."""
    work = command.work
    kernel, grid = (
        (command.kernel or command.pipeline.name, command.grid)
        if isinstance(command, Dispatch)
        else (command.name, (0, 0, 0))
    )
    return Record(
        kernel=kernel,
        variant=command.variant,
        shapes=work.shapes if work else "",
        grid=grid,
        start=0.0,
        time=0.0,
        delay=0.0,
        nbytes=work.nbytes if work else sum(buffer.size for buffer in command.buffers),
        operations=work.operations if work else 0.0,
        choice=work.choice if work else "",
        memory=pool.in_use,
        cached=pool.cached,
        scope=work.scope if work else 0,
        part=work.part if work else 0,
    )


def _divided(records: list[Record]) -> list[Record]:
    """The records with work that several commands did together divided by their times, so that
    each has the share of the roofline that all of them reached."""
    together: list[list[int]] = []
    latest: dict[int, list[int]] = {}
    for i, record in enumerate(records):
        group = latest.get(record.scope)
        # A replay runs the same commands again, from the first part on.
        if group is None or not record.scope or record.part <= records[group[-1]].part:
            group = latest[record.scope] = []
            together.append(group)
        group.append(i)
    result = list(records)
    for group in together:
        total, spent, charged = sum(records[i].time for i in group), 0.0, 0
        for i in group if len(group) > 1 and total else ():
            spent += records[i].time
            nbytes = round(records[i].nbytes * spent / total) - charged
            operations = records[i].operations * records[i].time / total
            result[i] = replace(records[i], nbytes=nbytes, operations=operations)
            charged += nbytes
    return result


def chip_roofline(chip: str) -> Roofline:
    """The roofline of an Apple chip by its name, `M3 Max` or `m3-max`. Raises DeviceError."""
    row = find_chip(chip)
    return Roofline(f"{row.name} (modelled)", row.bandwidth, row.fp32_peak)


@dataclass(frozen=True)
class Modelled:
    """Records of this device with the best times that a chip's table row allows."""

    records: list[Record]
    roofline: Roofline

    @property
    def times(self) -> list[float]:
        """Seconds for each record."""
        return [self.roofline.time(r.nbytes, r.operations) for r in self.records]

    def table(self) -> str:
        """The modelled times as a table for a terminal."""
        return report.modelled_table(self.records, self.roofline)


@contextmanager
def profile() -> Iterator[Profile]:
    """Profile every command that runs within; each gets its own command buffer.

    The profile has `records`, a `table()`, `model(chip)`, `save_trace(path)` and `save_plot(path)`.

    >>> x = lbrx.ones((64, 64), device="metal")
    >>> with lbrx.profile() as seen:
    ...     lbrx.eval(x.softmax(axis=-1))
    >>> [record.kernel for record in seen.records]
    ['softmax']
    """
    gpu = context()
    if gpu.queue.observer is not None:
        raise DeviceError("a profile is already running: end it before starting another")
    profile = Profile(gpu)
    gpu.queue.observe(profile)
    try:
        yield profile
    finally:
        gpu.queue.observe(None)
        profile.note_power()
