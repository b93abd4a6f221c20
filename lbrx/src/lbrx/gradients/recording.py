"""What a function computes, as records that gradients follow backwards.

Within a gradient, tensors that depend on its arguments are `Recorded`. An operation on them makes a
`Record`: where its operands come from, and a function from the gradients of its results to those of
its operands, which holds what the rules of the operation read and nothing else. Views are no
records: a tensor knows its record and, as every tensor, its layout over the record's result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from lbrx.arrays.dtype import DtypeLike
from lbrx.arrays.shape import Layout, Shape
from lbrx.arrays.storage import Array
from lbrx.errors import GradientError
from lbrx.ops import TABLE, Op
from lbrx.ops.vjp import NotDifferentiable, Rule, Vjp
from lbrx.tensors.core import Tensor, calls
from lbrx.tensors.operands import prepare
from lbrx.tensors.traced_number import TracedNumber
from lbrx.tensors.wrapping import CustomRule, Wrapper

Pull = Callable[[Sequence[Tensor | None]], Sequence[Tensor | None]]
"""From the gradients of all results to those of the recorded operands; None stands for zeros."""

Key = tuple[int, int, Layout]

# Operations whose rules only pass a number on; rules of others compute with it, which would read
# the number of a traced function as a constant without saying so.
_NUMBERS_STAY_OPEN = frozenset(("add", "subtract", "multiply", "divide", "where"))
_serials = count()


_current: ContextVar[Scope | None] = ContextVar("scope", default=None)


class Scope:
    """One gradient in progress. It is entered while the function runs and is followed."""

    __slots__ = ("_token", "captured", "level", "redirected")

    def __init__(self, level: int) -> None:
        self.level = level
        """0 once it has ended."""
        self.captured: dict[Key, Recorded] | None = None
        """While a checkpointed function runs: what it uses besides its arguments, which is then
        not recorded."""
        self.redirected: Mapping[Key, Recorded] | None = None
        """While it runs again: other tensors for these."""

    def __enter__(self) -> Scope:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
        self.level = 0


def current_scope() -> Scope | None:
    """The innermost gradient in progress."""
    return _current.get()


class Record:
    """One call: where its recorded operands come from, and how gradients pass through it."""

    __slots__ = ("layouts", "pull", "serial", "sources")

    def __init__(
        self, sources: Sequence[Source], layouts: Sequence[Layout], pull: Pull | None
    ) -> None:
        self.serial = next(_serials)
        """Later records have larger ones."""
        self.sources = sources
        self.layouts = layouts
        """Of each result, as the record made it: contiguous."""
        self.pull = pull


@dataclass(frozen=True)
class Source:
    """A view of a result of a record, as an operand of another."""

    record: Record
    index: int
    layout: Layout
    dtype: DtypeLike
    device: str

    @property
    def base(self) -> Layout:
        """The layout of the whole result."""
        return self.record.layouts[self.index]


class Recorded(Wrapper, Tensor):
    """A tensor that depends on what a gradient is taken of."""

    __slots__ = ("index", "record", "scope", "value")

    def __init__(self, value: Tensor, scope: Scope, record: Record, index: int = 0) -> None:
        super().__init__(value.array, value.metadata)
        self.value = value
        self.scope = scope
        self.record = record
        self.index = index

    @property
    def level(self) -> int:
        return self.scope.level

    def unwrapped(self) -> Tensor:
        return self.value.unwrapped() if isinstance(self.value, Wrapper) else self.value

    @property
    def key(self) -> Key:
        """Which result it is a view of, and through which layout."""
        return self.record.serial, self.index, self.array.layout

    def source(self) -> Source:
        """Where its gradient goes."""
        place = self.array.layout
        return Source(self.record, self.index, place, self.dtype, self.device)

    def view(self, layout: Layout) -> Tensor:
        return Recorded(self.value.view(layout), self.scope, self.record, self.index)

    def with_metadata(self, **changes: str | None) -> Tensor:
        changed = self.value.with_metadata(**changes)
        return Recorded(changed, self.scope, self.record, self.index)

    def to_device(self, device: str, /, *, stream: None = None) -> Tensor:
        here = self.device
        if device == here:
            return self
        moved = self.value.to_device(device, stream=stream)
        return recorded([self], [moved], lambda g: [_moved(g[0], here)])[0]

    def numpy(self, *, copy: bool = False) -> Any:
        return self.value.numpy(copy=copy)

    def run(
        self, name: str, values: Sequence[Any], attributes: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        op, scope = TABLE[name], self.scope
        operands = [redirected(value) for value in values]
        if any(x.level > scope.level for x in operands if isinstance(x, Wrapper)):
            return calls(name, *operands, **attributes)
        inputs = [_plain(x, op, scope) for x in operands]
        results = calls(name, *inputs, **attributes)
        if scope.captured is not None or not any(each.dtype.is_float for each in results):
            return results
        places = [i for i, x in enumerate(operands) if belongs(x, scope)]
        given = {k: float(v) if isinstance(v, TracedNumber) else v for k, v in attributes.items()}
        pull = _pull_of(op, inputs, results, op.bind(given), places)
        return recorded([operands[i] for i in places], results, pull)

    def run_custom(
        self, function: Callable[..., Any], rule: CustomRule | None, values: tuple[Any, ...]
    ) -> Any:
        if rule is None:
            raise GradientError(
                f"{function} has no gradient: give it vjp=, a function from its inputs, the "
                "gradients of its outputs and the outputs to the gradients of the inputs"
            )
        return _run_custom(function, rule, values, self.scope)


def _moved(g: Tensor | None, device: str) -> Tensor | None:
    return None if g is None else g.to_device(device)


def belongs(value: Any, scope: Scope) -> bool:
    """Whether a value is a tensor of this gradient."""
    return isinstance(value, Recorded) and value.scope is scope


def redirected(value: Any) -> Any:
    """The tensor that stands for a captured one while a checkpointed function runs again."""
    while isinstance(value, Recorded) and value.scope.redirected is not None:
        other = value.scope.redirected.get(value.key)
        if other is None:
            break
        value = other
    return value


def _plain(value: Any, op: Op, scope: Scope) -> Any:
    """An operand as the enclosing gradient, or the device, gets it."""
    if belongs(value, scope):
        if scope.captured is not None:
            scope.captured.setdefault(value.key, value)
        return value.value
    if isinstance(value, TracedNumber) and op.name not in _NUMBERS_STAY_OPEN:
        return float(value)
    return value


def recorded(
    operands: Sequence[Recorded], results: Sequence[Tensor], pull: Pull
) -> tuple[Tensor, ...]:
    """Results that are computed from recorded operands; only floating ones depend on them."""
    record = Record(
        [operand.source() for operand in operands], [r.array.layout for r in results], pull
    )
    scope = operands[0].scope
    return tuple(
        Recorded(result, scope, record, i) if result.dtype.is_float else result
        for i, result in enumerate(results)
    )


def _run_custom(
    function: Callable[..., Any], rule: CustomRule, values: tuple[Any, ...], scope: Scope
) -> Any:
    """Results whose gradients a rule passes on. What the function uses besides its arguments is a
    constant."""
    from lbrx.trees import leaves, tree_map

    operands = [each for each in map(redirected, leaves(values)) if belongs(each, scope)]
    inputs = tree_map(lambda x: x.value if belongs(x, scope) else x, values)
    kept, scope.captured = scope.captured, {}
    try:
        outputs = function(*inputs)
    finally:
        scope.captured = kept
    if kept is not None:
        kept.update((each.key, each) for each in operands)
        return outputs
    results = [x for x in leaves(outputs) if isinstance(x, Tensor)]
    is_own = [belongs(x, scope) for x in leaves(values)]

    def pull(given: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        whole = iter(
            _zeros(x.shape, x.dtype, x.device) if g is None and x.dtype.is_float else g
            for g, x in zip(given, results, strict=True)
        )
        cotangents = tree_map(lambda x: next(whole) if isinstance(x, Tensor) else None, outputs)
        found = rule(inputs, cotangents, outputs)
        gradients = list(leaves(found if isinstance(found, list | tuple) else (found,)))
        if len(gradients) != len(is_own):
            raise TypeError(
                f"the vjp of {function} returns {len(gradients)} gradients for {len(is_own)} "
                "arguments: return one for each, or None"
            )
        return [g for g, own in zip(gradients, is_own, strict=True) if own]

    made = iter(recorded(operands, results, pull))
    return tree_map(lambda x: next(made) if isinstance(x, Tensor) else x, outputs)


# ---- rules of operations ----


def _pull_of(
    op: Op,
    inputs: Sequence[Any],
    results: Sequence[Tensor],
    attributes: Mapping[str, Any],
    places: Sequence[int],
) -> Pull:
    """How gradients pass through a call, with what the rules read."""
    column = op.vjp
    if not isinstance(column, Vjp):
        return _refusal(op, column)
    tensors = _tensors(op, inputs)
    names = [operand.name for operand in op.operands_of(len(inputs))]
    reads = column.read_for({names[i] for i in places})
    facts: dict[str, Any] = {name: attributes[name] for name in reads & attributes.keys()}
    facts["shapes"] = [None if x is None else x.shape for x in tensors]
    for operand in op.operands:
        if operand.name in reads:
            own = [x for x, name in zip(tensors, names, strict=True) if name == operand.name]
            is_last = op.variadic and operand is op.operands[-1]
            facts[operand.name] = own if is_last else own[0] if own else None
    if "output" in reads:
        facts["output"] = results[0] if len(results) == 1 else tuple(results)
    specs = [
        (result.shape, result.dtype, result.device) if result.dtype.is_float else None
        for result in results
    ]
    return _Rules(op, column, facts, specs, [(i, names[i]) for i in places]).gradients


@dataclass(frozen=True)
class _Rules:
    """The rules of a call with what they read."""

    op: Op
    column: Vjp
    facts: Mapping[str, Any]
    specs: Sequence[Any]
    """Shape, dtype and device of each floating result."""
    wanted: Sequence[tuple[int, str]]
    """Places and names of the operands whose gradients are wanted."""

    def gradients(self, given: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        whole = [
            _zeros(*spec) if g is None and spec is not None else g
            for g, spec in zip(given, self.specs, strict=True)
        ]
        facts = {**self.facts, "g": whole[0] if len(whole) == 1 else tuple(whole)}
        together = self.column.together
        if together is not None:
            found = self._apply(together, facts)
            missing = [name for _, name in self.wanted if name not in found]
            if missing:
                raise self._no_rule(missing[0])
            return [found[name] for _, name in self.wanted]
        return [self._of_operand(place, name, facts) for place, name in self.wanted]

    def _of_operand(self, place: int, name: str, facts: dict[str, Any]) -> Tensor | None:
        rule = self.column.rules.get(name)
        if rule is None:
            raise self._no_rule(name)
        found: Tensor | None = self._apply(rule, {**facts, "at": place})
        return found

    def _apply(self, rule: Rule, facts: Mapping[str, Any]) -> Any:
        return rule(**{name: facts[name] for name in self.column.parameters[rule]})

    def _no_rule(self, operand: str) -> GradientError:
        return GradientError(
            f"{self.op.name} has no gradient for its operand {operand}: "
            "give a tensor that does not depend on the arguments, or use stop_gradient"
        )


def _zeros(shape: Shape, dtype: DtypeLike, device: str) -> Tensor:
    from lbrx.tensors.creation import zeros

    return zeros(shape, dtype, device)


def _refusal(op: Op, column: NotDifferentiable | None) -> Pull:
    reason = "it has no rule: register one with lbrx.ops.vjp, or use stop_gradient"

    def refuse(_: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        raise GradientError(
            f"{op.name} has no gradient: {reason if column is None else column.reason}"
        )

    return refuse


def _tensors(op: Op, inputs: Sequence[Any]) -> list[Tensor | None]:
    """The operands with numbers, lists and numpy arrays as tensors, as the operation reads them."""
    if all(x is None or isinstance(x, Tensor) for x in inputs):
        return list(inputs)
    plain = [x.unwrapped() if isinstance(x, Wrapper) else x for x in inputs]
    _, arrays = prepare(op, plain)
    return [
        x if x is None or isinstance(x, Tensor) else Tensor(_needed(array))
        for x, array in zip(inputs, arrays, strict=True)
    ]


def _needed(array: Array | None) -> Array:
    assert array is not None
    return array


def leaf(value: Tensor, scope: Scope) -> Recorded:
    """A tensor of which a gradient is taken: its record has no sources."""
    layout = value.array.layout
    if not layout.is_contiguous:
        value = value.contiguous()
    return Recorded(value, scope, Record((), [value.array.layout], None))


def relocated(layout: Layout, base: Layout) -> Layout:
    """A layout counted from the first element of the base."""
    return replace(layout, offset=layout.offset - base.offset)
