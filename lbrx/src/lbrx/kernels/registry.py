"""The registry of kernels: families, and the variants of each.

A family is one module with one shader stem. It describes a computation as a problem, a frozen
dataclass. A variant says which problems it supports and what they cost, and launches them. The
variant is chosen by LBRX_KERNEL, else by the tuner's measurements, else by estimated cost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from lbrx import env
from lbrx.errors import DeviceError, SettingError
from lbrx.kernels import choices
from lbrx.metal import Context, DeviceInfo
from lbrx.metal.commands import chosen
from lbrx.ops import Attributes, Op, Spec
from lbrx.storage import Array

log = logging.getLogger("lbrx")
REMEMBERED = 4096  # cached choices per family


class Problem(Protocol):
    """A computation of a family: shapes, dtypes and options, without the data."""

    @property
    def shape_class(self) -> str:
        """The tuner measures one problem of each class. Sizes are rounded up to powers of two."""


P = TypeVar("P", bound=Problem)
LaunchFunction = TypeVar("LaunchFunction", bound=Callable[..., None])


@dataclass(frozen=True)
class Call:
    """One operation to compute. Inputs are on the device, except scalars, which are on the host."""

    gpu: Context
    op: Op
    inputs: tuple[Array | None, ...]
    attributes: Attributes
    outputs: tuple[Spec, ...]


@dataclass(frozen=True)
class Variant(Generic[P]):
    """One way to compute a family's problems."""

    name: str
    launch: Callable[..., None]
    """Encodes the kernels, given the context, the problem and the family's operands."""
    can: Callable[[DeviceInfo, P], bool]
    """Hard limits only: required device features, dtypes, alignment."""
    cost: Callable[[DeviceInfo, P], float]
    """Relative to the other variants of the family; the lowest is chosen."""
    batch_invariant: bool
    """Whether a row of the result has the same bits in every batch."""


class KernelFamily(Generic[P]):
    """The variants of one kind of kernel.

    >>> family = lbrx.kernels.FAMILIES["softmax"]
    >>> "serial" in family.variants
    True
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.variants: dict[str, Variant[P]] = {}
        self.samples: list[Sample] = []
        self._chosen: dict[object, Variant[P]] = {}
        self._reasons: dict[object, str] = {}
        self._device: DeviceInfo | None = None  # for which the choices were made
        FAMILIES[name] = self

    def variant(
        self,
        name: str,
        *,
        can: Callable[[DeviceInfo, P], bool] = lambda info, problem: True,
        cost: Callable[[DeviceInfo, P], float] = lambda info, problem: 1.0,
        batch_invariant: bool = True,
    ) -> Callable[[LaunchFunction], LaunchFunction]:
        """Register the decorated function as a variant."""

        def decorate(launch: LaunchFunction) -> LaunchFunction:
            self.variants[name] = Variant(name, launch, can, cost, batch_invariant)
            _Changes.count += 1
            return launch

        return decorate

    def run(self, gpu: Context, problem: P, *operands: Any, as_for: P | None = None) -> None:
        """Encode the kernels of the chosen variant, or of the one chosen for another problem."""
        variant = self.choose(gpu.info, problem if as_for is None else as_for)
        with chosen(partial(self.reason, gpu.info, problem, variant)):
            variant.launch(gpu, problem, *operands)

    def reason(self, info: DeviceInfo, problem: P, variant: Variant[P]) -> str:
        """A short text that says why a variant was chosen."""
        if info is not self._device:
            return self._reason(info, problem, variant)
        key = (problem, policy(), env.kernel_setting(), variant.name)
        known = self._reasons.get(key)
        if known is None:  # another thread may clear the cache at any time
            known = self._reasons[key] = self._reason(info, problem, variant)
        return known

    def _reason(self, info: DeviceInfo, problem: P, variant: Variant[P]) -> str:
        if variant.name == self._forced():
            return "forced"
        if variant.name == TUNED.get((info.name, self.name, problem.shape_class)):
            return "tuned"
        others = [v for v in self.variants.values() if v is not variant and v.can(info, problem)]
        if not others:
            return "the only one"
        costs = ", ".join(f"{v.name} {v.cost(info, problem):.3g}" for v in others)
        return f"cost {variant.cost(info, problem):.3g}, not {costs}"

    def choose(self, info: DeviceInfo, problem: P) -> Variant[P]:
        """The variant for a problem on a device."""
        if info is not self._device:
            self._forget()
            self._device = info
        key = (problem, policy(), env.kernel_setting())
        chosen = self._chosen.get(key)
        if chosen is None:
            if len(self._chosen) >= REMEMBERED:
                self._forget()
            chosen = self._chosen[key] = self._choose(info, problem)
        return chosen

    def prefer(self, variant: str, device: str, shape_class: str) -> None:
        """Prefer a variant for problems of this class, as the tuner does after a measurement."""
        TUNED[device, self.name, shape_class] = variant
        _Changes.count += 1
        self._forget()

    def _forget(self) -> None:
        self._chosen, self._reasons = {}, {}

    def _choose(self, info: DeviceInfo, problem: P) -> Variant[P]:
        invariant = policy().deterministic
        able = {
            name: variant
            for name, variant in self.variants.items()
            if variant.can(info, problem) and (variant.batch_invariant or not invariant)
        }
        if not able:
            known = ", ".join(self.variants)
            raise DeviceError(f"no variant of {self.name} ({known}) takes {problem} on {info.name}")
        wanted = self._forced()
        if wanted is not None:
            if wanted in able:
                return able[wanted]
            log.debug("%s:%s cannot take %s", self.name, wanted, problem)
        if not invariant:
            tuned = _tuned(info.name).get((info.name, self.name, problem.shape_class))
            if tuned in able:
                return able[tuned]
        return min(able.values(), key=lambda variant: variant.cost(info, problem))

    def _forced(self) -> str | None:
        for name, variant in env.kernels().items():
            _check_forced(name, variant, f"LBRX_KERNEL={name}:{variant}")
        for name, variant in policy().forced:
            _check_forced(name, variant, f"forced({name}={variant!r})")
        return {**env.kernels(), **dict(policy().forced)}.get(self.name)


@dataclass(frozen=True)
class Sample:
    """An operation that the tuner times to compare a family's variants."""

    op: str
    specs: tuple[Spec, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, KernelFamily[Any]] = {}
LATER = ("rows", "video_frames", "video_planes")
"""Families that other packages register when they are imported."""
TUNED: dict[tuple[str, str, str], str] = {}
"""Measured choices: (device, family, shape class) to variant."""
_read: set[str] = set()  # devices whose choices have been read


class _Changes:
    """Of what choices are made from: variants and measurements."""

    count = 0


def generation() -> int:
    """A number that changes when a variant is added or the tuner prefers another one."""
    return _Changes.count


def _tuned(device: str) -> Mapping[tuple[str, str, str], str]:
    """The measured choices; those on disk are read on first use."""
    if device not in _read:
        _read.add(device)
        for (family, shape_class), variant in choices.read(device).items():
            TUNED.setdefault((device, family, shape_class), variant)
    return TUNED


def _check_forced(family: str, variant: str, setting: str) -> None:
    """Raise SettingError, with the setting as the user wrote it, if there is no such variant."""
    if family in LATER and family not in FAMILIES:
        return
    if family not in FAMILIES:
        raise SettingError(
            f"{setting}: there is no family {family!r}, it is one of {', '.join(sorted(FAMILIES))}"
        )
    if variant not in FAMILIES[family].variants:
        known = ", ".join(FAMILIES[family].variants)
        raise SettingError(f"{setting}: {family} has no such variant, it has {known}")


Runner = Callable[[Call], tuple[Array, ...]]
RUNNERS: dict[str, Runner] = {}
"""The function that computes each operation, by name."""


def computes(*names: str) -> Callable[[Runner], Runner]:
    """Register the decorated function for these operations."""

    def decorate(runner: Runner) -> Runner:
        for name in names:
            if name in RUNNERS:
                raise ValueError(f"operation {name} has two kernels")
            RUNNERS[name] = runner
        return runner

    return decorate


@dataclass(frozen=True)
class Policy:
    """How kernels are chosen and compiled within a block of code."""

    forced: tuple[tuple[str, str], ...] = ()  # (family, variant)
    deterministic: bool = False
    excess_precision: bool = False


DEFAULT = Policy()
"""The policy outside of all such blocks."""
_policy: ContextVar[Policy] = ContextVar("policy", default=DEFAULT)
policy = _policy.get
"""The policy in force. Nodes of a graph store it, since their kernels are chosen later."""


@contextmanager
def under(wanted: Policy) -> Iterator[None]:
    """A context within which this policy is in force."""
    token = _policy.set(wanted)
    try:
        yield
    finally:
        _policy.reset(token)


def forced(**variants: str) -> AbstractContextManager[None]:
    """A context within which families use the named variants if they support the problem.

    A family or a variant that does not exist raises SettingError.

    >>> x = lbrx.ones((8, 8), device="metal")
    >>> with lbrx.kernels.forced(matmul="serial"):
    ...     y = x @ x
    >>> y[0, 0].item()
    8.0
    """
    for name, variant in variants.items():
        _check_forced(name, variant, f"forced({name}={variant!r})")
    own = policy()
    return under(replace(own, forced=tuple({**dict(own.forced), **variants}.items())))


def deterministic() -> AbstractContextManager[None]:
    """A context within which the bits of a result depend on its inputs alone.

    A row has the same bits in every batch, and reductions and products have the same bits whether
    they are evaluated together with other operations or separately. Elsewhere the same call on the
    same device also repeats its bits, but kernels are chosen by size and by what they are fused
    with, and two kernels may add in different orders.
    """
    return under(replace(policy(), deterministic=True))


def excess_precision() -> AbstractContextManager[None]:
    """A context within which fused kernels may skip the rounding of intermediate results.

    By default every operation's result is rounded to its dtype, so values do not depend on which
    operations share a kernel or on which of them were evaluated. Within this context float16 and
    bfloat16 results between the operations of one kernel may stay float32, and a multiplication
    and an addition may become one fused multiply-add. Long chains of such operations are faster,
    but evaluating an intermediate tensor may then change the results that follow:

    >>> x = lbrx.tensor([60000.0], dtype="float16", device="metal")
    >>> (x * 2 / 2).tolist()
    [inf]
    >>> with lbrx.excess_precision():
    ...     (x * 2 / 2).tolist()
    [60000.0]
    """
    return under(replace(policy(), excess_precision=True))
