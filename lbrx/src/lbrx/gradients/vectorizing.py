"""`vmap`: a function of single examples applied to a batch of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never

from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage import Array
from lbrx.errors import GradientError, ShapeError
from lbrx.ops import TABLE, Op, OpFamily
from lbrx.tensors import wrapping
from lbrx.tensors.core import Tensor, calls
from lbrx.tensors.creation import tensor
from lbrx.tensors.operands import as_scalar
from lbrx.tensors.traced_number import TracedNumber
from lbrx.tensors.wrapping import CustomRule, Wrapper
from lbrx.trees import leaves, tree_map

_ELEMENTWISE = frozenset(
    (
        *(OpFamily.UNARY, OpFamily.BINARY, OpFamily.COMPARISON, OpFamily.TERNARY),
        *(OpFamily.CAST, OpFamily.ACTIVATION),
    )
)
_ALONG_AXIS = frozenset(("softmax", "log_softmax", "cumsum", "cumprod", "sort", "argsort", "topk"))


def vmap(function: Callable[..., Any], in_axes: Any = 0, out_axes: int = 0) -> Callable[..., Any]:
    """A function that applies another one to each example of a batch, in the operations of one.

    in_axes: the axis of examples in all tensors, or a value for each positional argument: an axis,
        or None for an argument that all examples share.
    out_axes: the axis of examples in the results.

    Elementwise operations, reductions, softmax and norms, products, concat, pad and views are
    mapped; any other operation on an example raises GradientError with its name. Axes of different
    sizes raise ShapeError.

    >>> lbrx.vmap(lambda x, y: x @ y)(lbrx.ones((5, 3)), lbrx.ones((5, 3))).shape
    (5,)
    """

    @functools.wraps(function)
    def mapped(*args: Any) -> Any:
        axes = in_axes if isinstance(in_axes, list | tuple) else [in_axes] * len(args)
        if len(axes) != len(args):
            raise TypeError(f"in_axes has {len(axes)} entries for {len(args)} arguments")
        sizes = {
            x.shape[sh.normalize_axis(axis, x.ndim)]
            for arg, axis in zip(args, axes, strict=True)
            if axis is not None
            for x in leaves(arg)
            if isinstance(x, Tensor)
        }
        if len(sizes) != 1:
            found = sh.list_of(sorted(sizes)) if sizes else "none"
            raise ShapeError(f"the mapped axes have the sizes {found}: give axes of one size")
        with wrapping.scope() as level:
            batch = Batch(level, sizes.pop())
            inner = [_split(arg, axis, batch) for arg, axis in zip(args, axes, strict=True)]
            made = function(*inner)
            joined = tree_map(functools.partial(_joined, batch, out_axes), made)
            batch.level = 0
        return joined

    return mapped


def _split(arg: Any, axis: int | None, batch: Batch) -> Any:
    if axis is None:
        return arg
    return tree_map(
        lambda x: Batched(x.moveaxis(axis, 0), batch) if isinstance(x, Tensor) else x, arg
    )


def _joined(batch: Batch, axis: int, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if isinstance(value, Batched) and value.batch is batch:
        return value.full.moveaxis(0, axis)
    return value[None].expand(batch.size, *value.shape).moveaxis(0, axis)


@dataclass
class Batch:
    """One `vmap` in progress."""

    level: int
    """0 once it has ended."""
    size: int


class Batched(Wrapper, Tensor):
    """One example of a batch, to the function; all of them, to operations.

    Its array is that of the first example, so that views are layouts as elsewhere.
    """

    __slots__ = ("batch", "full")

    def __init__(self, full: Tensor, batch: Batch) -> None:
        own, layout = full.array, full.array.layout
        example = Layout(layout.shape[1:], layout.strides[1:], layout.offset)
        super().__init__(Array(own.storage, example, own.dtype))
        self.full = full
        self.batch = batch

    @property
    def level(self) -> int:
        return self.batch.level

    def unwrapped(self) -> Tensor:
        full = self.full
        return Batched(full.unwrapped(), self.batch) if isinstance(full, Wrapper) else self

    def view(self, layout: Layout) -> Tensor:
        shape = (self.batch.size, *layout.shape)
        stride = self.full.array.layout.strides[0]
        whole = Layout(shape, (stride, *layout.strides), layout.offset)
        return Batched(self.full.view(whole), self.batch)

    def with_metadata(self, **changes: str | None) -> Tensor:
        return Batched(self.full.with_metadata(**changes), self.batch)

    def to_device(self, device: str, /, *, stream: None = None) -> Tensor:
        return Batched(self.full.to_device(device, stream=stream), self.batch)

    def numpy(self, *, copy: bool = False) -> Never:
        raise GradientError("an example within vmap has no value: compute it with operations")

    def run_custom(
        self, function: Callable[..., Any], rule: CustomRule | None, values: tuple[Any, ...]
    ) -> Never:
        raise GradientError(f"{function} is not mapped by vmap: call it on the whole batch")

    def run(
        self, name: str, values: Sequence[Any], attributes: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        op, batch = TABLE[name], self.batch
        operands = [_operand(x, self.device) for x in values]
        call = _Call(op, operands, attributes, batch)
        return tuple(Batched(each, batch) for each in call.results())


def _operand(value: Any, device: str) -> Any:
    """An operand with lists and numpy arrays as tensors; numbers take the dtype of the others."""
    is_plain = value is None or isinstance(value, Tensor | TracedNumber)
    return value if is_plain or as_scalar(value) is not None else tensor(value, device=device)


@dataclass
class _Call:
    """An operation of examples, as one of whole batches."""

    op: Op
    operands: Sequence[Any]
    attributes: Mapping[str, Any]
    batch: Batch

    def results(self) -> tuple[Tensor, ...]:
        name, family = self.op.name, self.op.family
        if family in _ELEMENTWISE or name == "copy":
            return self._run(self._aligned(), self.attributes)
        if name in _ALONG_AXIS or family is OpFamily.REDUCTION:
            return self._run([self._full(0)], {**self.attributes, **self._axis()})
        if family is OpFamily.NORM:
            return self._norm()
        if name == "matmul":
            return self._product()
        if name == "concat":
            return self._run([self._full(i) for i in range(len(self.operands))], self._one_axis())
        if name == "pad":
            widths = ((0, 0), *self.attributes["widths"])
            return self._run([self._full(0)], {**self.attributes, "widths": widths})
        raise GradientError(
            f"{name} is not mapped by vmap: call it on the whole batch, outside of the function"
        )

    def _run(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Tensor, ...]:
        return calls(self.op.name, *operands, **attributes)

    def _is_batched(self, place: int) -> bool:
        operand = self.operands[place]
        return isinstance(operand, Batched) and operand.batch is self.batch

    def _full(self, place: int) -> Tensor:
        """An operand with the axis of examples."""
        operand = self.operands[place]
        if self._is_batched(place):
            full: Tensor = operand.full
            return full
        return operand[None].expand(self.batch.size, *operand.shape)  # type: ignore[no-any-return]

    def _aligned(self) -> list[Any]:
        """Operands that broadcast: each batch with as many axes as the example with the most."""
        most = max(x.ndim for x in self.operands if isinstance(x, Tensor))
        found: list[Any] = []
        for i, operand in enumerate(self.operands):
            if not self._is_batched(i):
                found.append(operand)
                continue
            full = operand.full
            gap = [1] * (most - operand.ndim)
            found.append(full.reshape(self.batch.size, *gap, *operand.shape) if gap else full)
        return found

    def _axis(self) -> dict[str, Any]:
        """The attribute axis, counted with the axis of examples."""
        ndim = self.operands[0].ndim
        axis = self.attributes.get("axis", self.op.attributes["axis"])
        if axis is None or isinstance(axis, list | tuple):
            return {"axis": tuple(i + 1 for i in sh.normalize_axes(axis, ndim))}
        return {"axis": sh.normalize_axis(axis, ndim) + 1}

    def _one_axis(self) -> dict[str, Any]:
        return {
            "axis": sh.normalize_axis(self.attributes.get("axis", 0), self.operands[0].ndim) + 1
        }

    def _norm(self) -> tuple[Tensor, ...]:
        names = [each.name for each in self.op.operands]
        shared = [i for i, name in enumerate(names) if name in ("weight", "bias")]
        if any(i < len(self.operands) and self._is_batched(i) for i in shared):
            raise GradientError(
                f"{self.op.name} of weights that differ between examples is not mapped by vmap: "
                "multiply by them"
            )
        operands = [x if i in shared else self._full(i) for i, x in enumerate(self.operands)]
        return self._run(operands, self.attributes)

    def _product(self) -> tuple[Tensor, ...]:
        """Vectors are rows or columns; the axis of examples is a leading one, which broadcasts."""
        x, y = self.operands[:2]
        bias = self.operands[2] if len(self.operands) > 2 else None
        if bias is not None and self._is_batched(2):
            raise GradientError("matmul of a mapped bias: add it with +")
        left, right = self._matrix(0, x.ndim == 1, -2), self._matrix(1, y.ndim == 1, -1)
        most = max(max(x.ndim, 2), max(y.ndim, 2))
        left, right = (
            each.reshape(self.batch.size, *[1] * (most - each.ndim + 1), *each.shape[1:])
            if self._is_batched(i)
            else each
            for i, each in enumerate((left, right))
        )
        (made,) = self._run([left, right, *([] if bias is None else [bias])], self.attributes)
        if y.ndim == 1:
            made = made[..., 0]
        if x.ndim == 1:
            made = made[..., 0, :] if y.ndim > 1 else made[..., 0]
        return (made,)

    def _matrix(self, place: int, is_vector: bool, axis: int) -> Tensor:
        operand = self.operands[place]
        whole: Tensor = operand.full if self._is_batched(place) else operand
        return whole.unsqueeze(axis) if is_vector else whole
