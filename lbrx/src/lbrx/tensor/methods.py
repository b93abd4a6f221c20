"""The operation table as methods, so that a new operation needs no line here."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from lbrx.ops import TABLE, Op

Run = Callable[[Op, list[Any], dict[str, Any]], Any]


def method(op: Op, run: Run) -> Callable[..., Any]:
    """Operands first, then attributes, all by place or by name; the first operand is self."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    operands = [
        Parameter(operand.name, kind, default=None if operand.optional else Parameter.empty)
        for operand in op.operands[1:]
    ]
    attributes = [Parameter(name, kind, default=d) for name, d in op.attributes.items()]
    # Python wants what has a default last.
    parameters = sorted(operands + attributes, key=lambda p: p.default is not Parameter.empty)
    signature = Signature(parameters)
    names = [p.name for p in parameters]
    defaults = {p.name: p.default for p in parameters if p.default is not Parameter.empty}

    def bound_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A signature's own `bind` takes longer than all else that a call does.
        placed = dict(zip(names, args, strict=False))
        given = {**defaults, **placed, **kwargs}
        if len(given) != len(names) or len(placed) < len(args) or placed.keys() & kwargs.keys():
            try:
                signature.bind(*args, **kwargs)
            except TypeError as problem:
                raise TypeError(f"{op.name}{signature}: {problem}") from None
        values = [self, *(given.pop(operand.name) for operand in operands)]
        return run(op, values, given)

    bound_method.__name__ = bound_method.__qualname__ = op.name
    bound_method.__doc__ = op.reference.__doc__ or f"{op.name} of each element."
    own = Parameter("self", Parameter.POSITIONAL_ONLY)
    vars(bound_method)["__signature__"] = Signature([own, *parameters])
    return bound_method


def add_methods(tensor: type, run: Run) -> None:
    """Give the class a method for every operation that works on a first tensor."""
    for op in TABLE.values():
        if op.operands and not op.variadic:
            setattr(tensor, op.name, method(op, run))
