"""Python's operators (`+`, `@`, `<`, ...) as operations of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

import numpy as np

from lbrx.tensors.foreign_names import TENSOR_NAMES

if TYPE_CHECKING:
    from lbrx.tensors.core import Tensor


def _never_equal(other: object) -> bool:
    """Whether no tensor can equal the value."""
    return other is None or isinstance(other, str | bytes)


_UFUNCS = {
    np.add: "add",
    np.subtract: "subtract",
    np.multiply: "multiply",
    np.divide: "divide",
    np.floor_divide: "floor_divide",
    np.remainder: "remainder",
    np.divmod: "floor_divide and remainder",
    np.power: "pow",
    np.matmul: "matmul",
    np.bitwise_and: "bitwise_and",
    np.bitwise_or: "bitwise_or",
    np.bitwise_xor: "bitwise_xor",
    np.left_shift: "bitwise_left_shift",
    np.right_shift: "bitwise_right_shift",
    np.equal: "equal",
    np.not_equal: "not_equal",
    np.less: "less",
    np.less_equal: "less_equal",
    np.greater: "greater",
    np.greater_equal: "greater_equal",
}
"""What numpy calls for the operators of its arrays, and the operation that is the same."""


class _NameElsewhere:
    """An attribute of other libraries' tensors: reading it raises AttributeError with what to write
    instead. A `__getattr__` would make every attribute of tensors slower."""

    def __init__(self, name: str, remedy: str) -> None:
        self._name = name
        self._remedy = remedy

    def __get__(self, tensor: object, kind: type) -> Never:
        text = f"'Tensor' object has no attribute {self._name!r}: {self._remedy}"
        raise AttributeError(text, name=self._name, obj=kind if tensor is None else tensor)


class _TensorType(type):
    """The type of tensor classes: `dir` and `help` leave out what other libraries have."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if name not in TENSOR_NAMES]


class Operators(metaclass=_TensorType):
    """The operators of Tensor. Operands may be tensors, arrays, lists and numbers; they broadcast.

    `/` always gives a floating dtype, `//` and `%` round down as in Python. `&`, `|`, `^` and `~`
    are bitwise, and logical on bool. Comparisons are elementwise and give bool.
    """

    __slots__ = ()

    # `==` is elementwise, so tensors are hashed by identity.
    __hash__ = object.__hash__

    if TYPE_CHECKING:

        @staticmethod
        def _call(name: str, *values: Any, **attributes: Any) -> Tensor: ...
        @property
        def _tensor(self) -> Tensor: ...

    def __dir__(self) -> list[str]:
        """The names of attributes, without those that other libraries have."""
        return [name for name in super().__dir__() if name not in TENSOR_NAMES]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """`array + tensor` is a tensor, and `array += tensor` changes the array, as `out` does.

        numpy's other universal functions take tensors as arrays, and return arrays.
        """
        if any(isinstance(target, Operators) for target in options.get("out", ())):
            raise TypeError("out= is a tensor, and tensors are values: give a numpy array")
        is_operator = any(isinstance(x, np.ndarray | np.generic) for x in inputs)
        if is_operator and method == "__call__" and not options and ufunc in _UFUNCS:
            left, right = inputs
            if ufunc is np.divmod:
                return self._call("floor_divide", left, right), self._call("remainder", left, right)
            return self._call(_UFUNCS[ufunc], left, right)
        arrays = [x._tensor.numpy() if isinstance(x, Operators) else x for x in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __add__(self, other: Any) -> Tensor:
        return self._call("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return self._call("add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return self._call("subtract", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return self._call("subtract", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return self._call("multiply", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return self._call("multiply", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return self._call("divide", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._call("divide", other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return self._call("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return self._call("floor_divide", other, self)

    def __mod__(self, other: Any) -> Tensor:
        return self._call("remainder", self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return self._call("remainder", other, self)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return other // self, other % self

    def __pow__(self, other: Any) -> Tensor:
        return self._call("pow", self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return self._call("pow", other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return self._call("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return self._call("matmul", other, self)

    def __and__(self, other: Any) -> Tensor:
        return self._call("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Tensor:
        return self._call("bitwise_and", other, self)

    def __or__(self, other: Any) -> Tensor:
        return self._call("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Tensor:
        return self._call("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Tensor:
        return self._call("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return self._call("bitwise_xor", other, self)

    def __lshift__(self, other: Any) -> Tensor:
        return self._call("bitwise_left_shift", self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return self._call("bitwise_left_shift", other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return self._call("bitwise_right_shift", self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return self._call("bitwise_right_shift", other, self)

    def __neg__(self) -> Tensor:
        return self._call("negative", self)

    def __pos__(self) -> Tensor:
        return self._call("copy", self)

    def __abs__(self) -> Tensor:
        return self._call("abs", self)

    def __round__(self, decimals: int | None = None) -> Tensor:
        return self._tensor.round(decimals or 0)

    def __invert__(self) -> Tensor:
        return self._call("bitwise_invert", self)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        # Python then compares identities, so that `x == None` and `x == "text"` are False.
        return NotImplemented if _never_equal(other) else self._call("equal", self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return NotImplemented if _never_equal(other) else self._call("not_equal", self, other)

    def __lt__(self, other: Any) -> Tensor:
        return self._call("less", self, other)

    def __le__(self, other: Any) -> Tensor:
        return self._call("less_equal", self, other)

    def __gt__(self, other: Any) -> Tensor:
        return self._call("greater", self, other)

    def __ge__(self, other: Any) -> Tensor:
        return self._call("greater_equal", self, other)


for _name, _remedy in TENSOR_NAMES.items():
    setattr(Operators, _name, _NameElsewhere(_name, _remedy))
