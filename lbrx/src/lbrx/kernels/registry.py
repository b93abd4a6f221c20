"""The registry of kernels: families, and the variants of each.

A family is one module with one shader stem. It describes a computation as a problem, a frozen
dataclass. A variant says which problems it supports and what they cost, and launches them. The
variant is chosen by LBRX_KERNEL, else by the tuner's measurements, else by estimated cost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from lbrx import env
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.device_info import DeviceKind
from lbrx.entry_points import Registry
from lbrx.errors import DeviceError, SettingError
from lbrx.kernels import choices
from lbrx.kernels.costs import EMULATED
from lbrx.metal import DeviceInfo
from lbrx.ops import TABLE, Attributes, Op, Spec

log = logging.getLogger("lbrx")
ENTRY_POINTS = "lbrx.kernels"
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
    """One operation of a plan. Inputs are on the device, except scalars, which are on the host."""

    builder: Builder
    op: Op
    inputs: tuple[Array | None, ...]
    attributes: Attributes
    outputs: tuple[Spec, ...]


@dataclass(frozen=True)
class Variant(Generic[P]):
    """One way to compute a family's problems."""

    name: str
    launch: Callable[..., None]
    """Adds its steps to a builder, given the problem and the family's operands."""
    can: Callable[[DeviceInfo, P], bool]
    """Hard limits only: required device features, dtypes, alignment."""
    cost: Callable[[DeviceInfo, P], float]
    """Relative to the other variants of the family; the lowest is chosen."""
    batch_invariant: bool
    """Whether a row of the result has the same bits in every batch."""
    made_for: DeviceKind | None = None
    """The kind of device that it is made for, None for all."""
    only: bool = False
    """Whether devices of other kinds cannot take it."""


@dataclass(frozen=True)
class Choice(Generic[P]):
    """The variant for a problem, and what decided: a setting, the tuner, or costs."""

    variant: Variant[P]
    others: tuple[Variant[P], ...]
    """Those that it was compared with."""
    info: DeviceInfo
    problem: P
    decided: str = ""

    def reason(self) -> str:
        """A short text that says why the variant was chosen."""
        return self._reason

    @cached_property
    def _reason(self) -> str:
        if self.decided or not self.others:
            return self.decided or "the only one"
        chosen_cost, *costs = (
            each.cost(self.info, self.problem) for each in (self.variant, *self.others)
        )
        others = (f"{each.name} {cost:.3g}" for each, cost in zip(self.others, costs, strict=True))
        return f"cost {chosen_cost:.3g}, not {', '.join(others)}"


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
        self._chosen: dict[object, Choice[P]] = {}
        self._device: DeviceInfo | None = None  # for which the choices were made
        FAMILIES[name] = self

    def variant(
        self,
        name: str,
        *,
        can: Callable[[DeviceInfo, P], bool] = lambda info, problem: True,
        cost: Callable[[DeviceInfo, P], float] = lambda info, problem: 1.0,
        batch_invariant: bool = True,
        made_for: DeviceKind | None = None,
        only: bool = False,
    ) -> Callable[[LaunchFunction], LaunchFunction]:
        """Register the decorated function as a variant. Devices of another kind than it is made for
        take it last, or not at all if it is for that kind only."""

        @wraps(can)
        def able(info: DeviceInfo, problem: P) -> bool:
            return (not only or made_for is None or made_for.suits(info)) and can(info, problem)

        @wraps(cost)
        def priced(info: DeviceInfo, problem: P) -> float:
            foreign = made_for is not None and not made_for.suits(info)
            return cost(info, problem) + (EMULATED if foreign else 0.0)

        def decorate(launch: LaunchFunction) -> LaunchFunction:
            added = Variant(name, launch, able, priced, batch_invariant, made_for, only)
            self.variants[name] = added
            _Changes.count += 1
            return launch

        return decorate

    def run(
        self, b: Builder, problem: P, *operands: Any, op: str = "", as_for: P | None = None
    ) -> None:
        """Add the steps of the chosen variant, or of the one chosen for another problem. They are
        counted under the operation's name, by default the family's."""
        choice = self._choice(b.info, problem if as_for is None else as_for)
        variant = choice.variant
        variant.launch(b.named(op or self.name, variant.name, choice.reason), problem, *operands)

    def choose(self, info: DeviceInfo, problem: P) -> Variant[P]:
        """The variant for a problem on a device."""
        return self._choice(info, problem).variant

    def _choice(self, info: DeviceInfo, problem: P) -> Choice[P]:
        if info is not self._device:
            self._chosen = {}
            self._device = info
        key = (problem, policy(), env.kernel_setting())
        chosen = self._chosen.get(key)
        if chosen is None:
            if len(self._chosen) >= REMEMBERED:
                self._chosen = {}
            chosen = self._chosen[key] = self._choose(info, problem)
        return chosen

    def prefer(self, variant: str, device: str, shape_class: str) -> None:
        """Prefer a variant for problems of this class, as the tuner does after a measurement."""
        TUNED[device, self.name, shape_class] = variant
        _Changes.count += 1
        self._chosen = {}

    def _choose(self, info: DeviceInfo, problem: P) -> Choice[P]:
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
                return Choice(able.pop(wanted), (), info, problem, "forced")
            log.debug("%s:%s cannot take %s", self.name, wanted, problem)
        if not invariant:
            tuned = _tuned(info.name).get((info.name, self.name, problem.shape_class))
            if tuned in able:
                return Choice(able.pop(tuned), (), info, problem, "tuned")
        cheapest = min(able, key=lambda name: able[name].cost(info, problem))
        return Choice(able.pop(cheapest), tuple(able.values()), info, problem)

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


FAMILIES: Registry[KernelFamily[Any]] = Registry(ENTRY_POINTS)
LATER = ("rows",)
"""Families that other packages of lbrx register when they are imported."""
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
RUNNERS: Registry[Runner] = Registry(ENTRY_POINTS)
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


Describe = Callable[[Builder], tuple[Array, ...]]
"""Adds steps to a plan, and returns their results."""


def operation(
    name: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any] = MappingProxyType({})
) -> Describe:
    """What adds an operation with these operands, which are in memory, to a plan."""
    op = TABLE[name]
    bound = op.bind(attributes)
    outputs = op.infer(
        [None if x is None else Spec(x.layout.shape, x.dtype) for x in inputs], bound
    )
    return lambda b: RUNNERS[name](Call(b, op, tuple(inputs), bound, outputs))


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


_AS_IT_IS = nullcontext()


def under(wanted: Policy) -> AbstractContextManager[None]:
    """A context within which this policy is in force."""
    return _AS_IT_IS if wanted is policy() else _under(wanted)


@contextmanager
def _under(wanted: Policy) -> Iterator[None]:
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
    outer = policy()
    return under(replace(outer, forced=tuple({**dict(outer.forced), **variants}.items())))


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
