"""Times of several works that take turns, so that a busy machine is busy for all of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lbrx.bench.energy import EnergyMeter
from lbrx.metal import stats

Work = Callable[[], object]
# Seconds. Shorter works are repeated, after a call that is not timed: in the pause before, threads
# fall asleep and caches lose data, which would count most where a work is fast.
SAMPLE = 0.01
MOST_CALLS = 1000
PAUSE = 0.003  # seconds: threads of the last work may still spin, OpenBLAS's for some 27 ms
MOST_PAUSES = 20
IDLE = 0.1  # share of a pause that this process computes at most if none spins
LEAST_ROUNDS = 3
SLOW = 1 / 4  # share of a case's time that one call of a slow work takes; two rounds are enough


@dataclass(frozen=True)
class Timing:
    """Seconds of one call in several rounds."""

    median: float
    best: float
    spread: float
    """Half of the interquartile range, as a share of the median."""
    rounds: int
    joules: float | None = None
    """Energy of one call where the platform measures it."""


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int
    seconds: float
    """Time for all works of one case together, without their first calls. At least three rounds
    are measured, and two of works that take much of it in one call."""


def interleaved(
    works: Mapping[str, Work], effort: Effort, meter: EnergyMeter | None = None
) -> dict[str, Timing]:
    """Each work's timing. The first call of each is not timed: it may compile kernels."""
    slow = SLOW * effort.seconds
    estimates = {name: _estimate(work, slow) for name, work in works.items()}
    calls = {name: _calls(seconds) for name, seconds in estimates.items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    joules: dict[str, float] = dict.fromkeys(works, 0.0)
    end = time.perf_counter() + effort.seconds
    for number in range(effort.rounds):
        if number >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        names = [name for name in works if number < 2 or estimates[name] < slow]
        # Each round starts with another work: none always follows the same neighbour.
        first = number % max(1, len(names))
        for name in names[first:] + names[:first]:
            _settle()
            if calls[name] > 1:
                works[name]()
            before = meter.joules() if meter else 0.0
            times[name].append(_sample(works[name], calls[name]))
            joules[name] += (meter.joules() - before) if meter else 0.0
    return {
        name: summary(taken, joules[name] / (len(taken) * calls[name]) if meter else None)
        for name, taken in times.items()
    }


def _settle() -> None:
    """Sleep until the threads of the last work do so too."""
    for _ in range(MOST_PAUSES):
        before = time.process_time()
        time.sleep(PAUSE)
        if time.process_time() - before < IDLE * PAUSE:
            return


def _estimate(work: Work, slow: float) -> float:
    """Seconds of a call after the first one, which is enough if even that is slow."""
    first = _sample(work, 1)
    return first if first > 4 * slow else _sample(work, 1)


def _calls(seconds: float) -> int:
    """Calls in a sample."""
    return min(MOST_CALLS, max(1, math.ceil(SAMPLE / max(seconds, 1e-9))))


def _sample(work: Work, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def summary(taken: Sequence[float], joules: float | None = None) -> Timing:
    """The timing of at least two rounds."""
    low, median, high = statistics.quantiles(taken, n=4, method="inclusive")
    return Timing(median, min(taken), (high - low) / 2 / median, len(taken), joules)


def kernels_of(work: Work) -> str:
    """The kernels and variants that it runs, from the counters of dispatches."""
    before = stats()["kernels"]
    work()
    after = stats()["kernels"]
    return ", ".join(sorted(name for name in after if after[name] > before.get(name, 0)))
