"""The autotuner: times the variants of each family on this device and stores the fastest."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.arrays.storage.cpu import copied
from lbrx.command_lists.builder import Builder
from lbrx.errors import SettingError
from lbrx.kernels import choices
from lbrx.kernels.registry import FAMILIES, Describe, KernelFamily, Sample, forced, operation
from lbrx.metal import Context
from lbrx.metal.arrays import imported
from lbrx.ops import TABLE, Role
from lbrx.scheduler.running import ReadyList, ready

ROUNDS, QUICK_ROUNDS = 7, 3
SLICE = 10e-3  # minimum seconds per measurement, reached by repeats
HOPELESS = 5  # a variant this many times slower than the best is dropped,
COSTLY = 0.1  # if it took at least this many seconds


@dataclass(frozen=True)
class TunedChoice:
    """A variant's time for one problem."""

    family: str
    shape_class: str
    variant: str
    seconds: float
    chosen: bool


def tune(
    gpu: Context, families: Sequence[str] = (), *, quick: bool = False
) -> Iterator[Sequence[TunedChoice]]:
    """Time each sample of the families (all by default); yields the times of each sample.

    The choices take effect immediately and are written to disk at the end. An unknown family
    raises SettingError.
    """
    unknown = [name for name in families if name not in FAMILIES]
    if unknown:
        raise SettingError(
            f"no family {unknown[0]!r}: it is one of {', '.join(sorted(FAMILIES.whole()))}"
        )
    return _tuned(gpu, families or sorted(FAMILIES.whole()), QUICK_ROUNDS if quick else ROUNDS)


def _tuned(gpu: Context, families: Sequence[str], rounds: int) -> Iterator[Sequence[TunedChoice]]:
    device = gpu.info.name
    variants = dict(choices.read(device))
    for name in families:
        for sample in FAMILIES[name].samples:
            rows = measured(gpu, FAMILIES[name], sample, rounds)
            for row in rows:
                if row.chosen:
                    variants[row.family, row.shape_class] = row.variant
                    FAMILIES[name].prefer(row.variant, device, row.shape_class)
            yield rows
    choices.write(device, variants)


def measured(
    gpu: Context, family: KernelFamily[Any], sample: Sample, rounds: int
) -> list[TunedChoice]:
    """The times of one sample; empty if only one variant supports it."""
    describe = prepared(gpu, sample)
    with observed(family) as problems:
        ready(gpu, describe)
    able = [
        variant.name
        for variant in family.variants.values()
        if problems and all(variant.can(gpu.info, problem) for problem in problems)
    ]
    if not able:
        return []
    times = _times(gpu, family.name, describe, able, rounds)
    quickest = min(times, key=times.__getitem__)
    classes = sorted({problem.shape_class for problem in problems})
    return [
        TunedChoice(family.name, shape_class, variant, seconds, variant == quickest)
        for shape_class in classes
        for variant, seconds in sorted(times.items(), key=lambda item: item[1])
    ]


def _times(
    gpu: Context, family: str, describe: Describe, variants: Iterable[str], rounds: int
) -> Mapping[str, float]:
    """The best time of each variant. Variants take turns, so that load affects all equally."""
    best: dict[str, float] = {}
    lists: dict[str, ReadyList] = {}
    for variant in variants:
        with forced(**{family: variant}):
            lists[variant] = ready(gpu, describe)
        first = _seconds(lists[variant])  # in memory that nothing has touched yet
        hopeless = best and first > max(HOPELESS * min(best.values()), COSTLY)
        best[variant] = first if hopeless else _seconds(lists[variant])
    for _ in range(rounds):
        for variant, known in list(best.items()):
            if known > max(HOPELESS * min(best.values()), COSTLY):
                continue
            repeats = max(1, round(SLICE / max(known, 1e-6)))
            best[variant] = min(known, _seconds(lists[variant], repeats))
    return best


def _seconds(commands: ReadyList, repeats: int = 1) -> float:
    commands.gpu.queue.wait()
    start = time.perf_counter()
    for _ in range(repeats):
        commands.run()
    commands.gpu.queue.wait()
    return (time.perf_counter() - start) / repeats


@contextmanager
def observed(family: KernelFamily[Any]) -> Iterator[list[Any]]:
    """A context within which the problems passed to the family are collected."""
    problems: list[Any] = []
    run = family.run

    def noted(b: Builder, problem: Any, *operands: Any, op: str = "", as_for: Any = None) -> None:
        problems.append(problem)
        run(b, problem, *operands, op=op, as_for=as_for)

    family.run = noted  # type: ignore[method-assign]
    try:
        yield problems
    finally:
        del family.run


def prepared(gpu: Context, sample: Sample) -> Describe:
    """What adds the operation to a plan, with operands on the device."""
    op = TABLE[sample.op]
    rng = np.random.default_rng(0)
    inputs: list[Array] = []
    for spec, role in zip(sample.specs, op.roles(len(sample.specs)), strict=True):
        inputs.append(imported(gpu, copied(_values(rng, spec.shape, spec.dtype, role), spec.dtype)))
    return operation(op.name, inputs, sample.attributes)


def _values(rng: np.random.Generator, shape: Sequence[int], dtype: Dtype, role: Role) -> Any:
    """Random values; indices are 0 or 1, which are valid for every sample."""
    if role is Role.INDICES:
        return rng.integers(0, 2, shape)
    if dtype.is_float:
        return rng.standard_normal(shape, np.float32)
    return rng.integers(0, 2 if dtype.itemsize == 1 else 100, shape)
