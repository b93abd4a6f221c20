"""The Tensor class, and calls of operations by name."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype, DtypeLike
from lbrx.arrays.shape import Axes, Layout, Shape
from lbrx.arrays.storage import Array, Storage, Unrealised
from lbrx.errors import DeviceError, DtypeError, ShapeError
from lbrx.ops import TABLE
from lbrx.quant import QuantizationInfo
from lbrx.tensors import dlpack, indexing, wrapping
from lbrx.tensors import placement as devices
from lbrx.tensors.function_methods import FunctionMethods
from lbrx.tensors.operands import move, placed, plain_operands, prepare
from lbrx.tensors.operation_methods import OperationMethods
from lbrx.tensors.operators import Operators
from lbrx.tensors.traced_number import TracedNumber, traced_function

if TYPE_CHECKING:
    from lbrx.tensors.at import At

_SHOWN_ELEMENTS = 200
ARRAY_API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
"""Versions of the Python array API standard that `__array_namespace__` accepts."""


@dataclass(frozen=True)
class Metadata:
    """Facts about a tensor that was read from a file. Results of operations do not have them."""

    name: str | None = None
    source: str | None = None
    """The file it was read from."""
    quantization: str | None = None
    """The quantization scheme of its storage."""


_NO_METADATA = Metadata()


def calls(name: str, *values: Any, **attributes: Any) -> tuple[Any, ...]:
    """Run an operation of the table by name. Returns a tuple with a tensor for each result."""
    if wrapping.open_scopes and (wrapped := wrapping.results(name, values, attributes)) is not None:
        return wrapped
    return tuple([Tensor(array) for array in _results(name, values, attributes)])


def call(name: str, *values: Any, **attributes: Any) -> Tensor:
    """Run an operation of the table that has one result, by name."""
    if wrapping.open_scopes and (wrapped := wrapping.results(name, values, attributes)) is not None:
        (tensor,) = wrapped
        return tensor
    (array,) = _results(name, values, attributes)
    return Tensor(array)


def _results(name: str, values: Sequence[Any], attributes: dict[str, Any]) -> tuple[Array, ...]:
    op = TABLE[name]
    device, arrays = plain_operands(op, values) or prepare(op, values)
    if attributes and traced_function() is not None:
        attributes = {
            k: float(v) if isinstance(v, TracedNumber) else v for k, v in attributes.items()
        }
    bound = op.bind(attributes) if attributes or op.defaults is None else op.defaults
    return (devices.MADE.get(device) or devices.get(device)).run(op, arrays, bound)


class Tensor(Operators, FunctionMethods, OperationMethods):
    """An n-dimensional array of one dtype on one device, "cpu" or "metal".

    Tensors are created with `lbrx.tensor`, `lbrx.zeros` and other functions, not with this class.
    They are values: no operation changes a tensor, and item assignment raises TypeError. On metal
    operations are computed when their values are needed, or by `lbrx.eval`.

    Operands broadcast and are promoted to one dtype; Python numbers take the dtype of the tensor.
    Views (slices, transpose, permute, expand, squeeze, and reshape where the strides permit) share
    memory with the tensor they come from. `metadata` holds the name and source of a tensor that was
    read from a file; `array` is the internal record of storage, layout and dtype.

    >>> x = lbrx.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (x.T @ x + 1).sum(axis=0).tolist()
    [26.0, 36.0]
    """

    __slots__ = ("__weakref__", "array", "metadata")

    def __init__(self, array: Array, metadata: Metadata | None = None) -> None:
        if not isinstance(array, Array):
            raise TypeError(f"Tensor of {array!r:.80}: use lbrx.tensor to make one")
        self.array = array
        self.metadata = metadata or _NO_METADATA

    @property
    def shape(self) -> Shape:
        """The size of each axis, a tuple of integers; () for a scalar."""
        return self.array.layout.shape

    @property
    def dtype(self) -> Dtype:
        """The element type. It also equals its name: `x.dtype == "float32"`."""
        return self.array.dtype

    @property
    def device(self) -> str:
        """The name of the device that holds the elements, "cpu" or "metal"."""
        return self.array.storage.device

    @property
    def storage(self) -> Storage:
        """The memory that holds the elements. Pending values are computed first."""
        storage = self.array.storage
        return storage.realised() if isinstance(storage, Unrealised) else storage

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.array.layout.size

    def numel(self) -> int:
        """The number of elements, as `size` (torch's name)."""
        return self.size

    @property
    def itemsize(self) -> int:
        """Bytes of an element, as `dtype.itemsize`."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """size * dtype.itemsize. The memory may be smaller (a broadcast view, quantized values)."""
        return self.size * self.dtype.itemsize

    @property
    def quantization(self) -> QuantizationInfo[Tensor] | None:
        """The quantization scheme with its scales, zero points or biases.

        None if the tensor is not quantized, or is a view that does not consist of complete rows.
        """
        from lbrx.tensors.quantized import quantization  # imports this module

        return quantization(self)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are in memory in row-major order without gaps."""
        return self.array.layout.is_contiguous

    def with_metadata(self, **changes: str | None) -> Tensor:
        """The same tensor with other metadata: `x.with_metadata(name="w")`."""
        return Tensor(self.array, replace(self.metadata, **changes))

    @property
    def _tensor(self) -> Tensor:
        """The tensor itself, with its type, for methods of base classes."""
        return self

    _call = staticmethod(call)
    _calls = staticmethod(calls)

    # Views

    def view(self, layout: Layout) -> Tensor:
        """A tensor over the same memory with another shape, strides or offset.

        `reshape` takes sizes; anything else than a Layout raises TypeError.
        """
        if not isinstance(layout, Layout):
            raise TypeError(f"view({layout!r}): give a Layout, or use reshape for other sizes")
        return Tensor(replace(self.array, layout=layout))

    @property
    def at(self) -> At:
        """Functional item assignment: a new tensor with some elements changed.

        >>> x = lbrx.zeros(4)
        >>> x.at[1:3].set(5.0).tolist(), x.at[[0, 0]].add(1.0).tolist()
        ([0.0, 5.0, 5.0, 0.0], [2.0, 0.0, 0.0, 0.0])
        """
        from lbrx.tensors.at import At  # which is about tensors

        return At(self)

    def __getitem__(self, key: Any) -> Tensor:
        """The elements at an index, with numpy's rules.

        Integers, slices, None and `...` give views. Masks (bool) and integer arrays, lists and
        tensors give copies; on metal their values are read by the host. An index outside an axis
        raises IndexError, another type TypeError, floating indices DtypeError, and shapes that do
        not fit ShapeError.

        >>> x = lbrx.arange(6).reshape(2, 3)
        >>> x[1, ::2].tolist(), x[:, [2, 0]].tolist(), x[x > 3].tolist()
        ([3, 5], [[2, 0], [5, 3]], [4, 5])
        """
        return indexing.index(self, key)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The elements in row-major order in another shape of the same size.

        One size may be -1: it follows from the others. The result is a view where the strides
        permit, else a copy. A shape of another size raises ShapeError.

        >>> lbrx.arange(6).reshape(2, -1).shape
        (2, 3)
        """
        wanted = _sizes(shape)
        layout = sh.reshape(self.array.layout, wanted)
        return self.view(layout) if layout else self.contiguous().reshape(wanted)

    def flatten(self) -> Tensor:
        """The elements in row-major order as a vector, as `reshape(-1)`."""
        return self.reshape(-1)

    def ravel(self) -> Tensor:
        """The elements in row-major order as a vector, as `reshape(-1)` (numpy's name)."""
        return self.reshape(-1)

    def permute(self, *axes: int | Sequence[int]) -> Tensor:
        """A view with the axes in another order: axis i of the result is axis axes[i].

        All axes must be named once, otherwise ShapeError is raised.

        >>> lbrx.zeros((2, 3, 4)).permute(2, 0, 1).shape
        (4, 2, 3)
        """
        return self.view(sh.permute(self.array.layout, _sizes(axes)))

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """A view with the axes in another order.

        Without arguments all axes are reversed. Two integers swap these two axes (as in torch);
        otherwise the arguments, or one sequence, are a permutation of all axes (as in numpy).

        >>> x = lbrx.zeros((2, 3, 4))
        >>> x.transpose().shape, x.transpose(0, 1).shape, x.transpose((1, 2, 0)).shape
        ((4, 3, 2), (3, 2, 4), (3, 4, 2))
        """
        order = _sizes(axes) if axes else tuple(reversed(range(self.ndim)))
        if len(order) == 2 and len(axes) == 2:
            return self.view(sh.transpose(self.array.layout, *order))
        return self.permute(order)

    @property
    def T(self) -> Tensor:
        """A view with all axes in reverse order, as in numpy."""
        return self.transpose()

    @property
    def mT(self) -> Tensor:
        """A view with the last two axes swapped: each matrix of a stack transposed."""
        return self.transpose(-2, -1)

    def expand(self, *shape: int | Sequence[int]) -> Tensor:
        """A view broadcast to a shape; -1 keeps the size of an axis.

        Axes of size 1 are repeated and new axes are added in front, without a copy. A shape to
        which the tensor does not broadcast raises ShapeError.

        >>> lbrx.tensor([[1], [2]]).expand(-1, 3).tolist()
        [[1, 1, 1], [2, 2, 2]]
        """
        return self.view(sh.expand(self.array.layout, _sizes(shape)))

    def squeeze(self, axis: Axes = None) -> Tensor:
        """A view without the given axes, or without all axes of size 1.

        A given axis of another size raises ShapeError.
        """
        return self.view(sh.squeeze(self.array.layout, axis))

    def unsqueeze(self, axis: int) -> Tensor:
        """A view with a new axis of size 1 at position `axis` of the result."""
        return self.view(sh.unsqueeze(self.array.layout, axis))

    def contiguous(self) -> Tensor:
        """The tensor itself if it is contiguous, else a contiguous copy."""
        return self if self.is_contiguous else self._call("copy", self)

    # Conversion to other dtypes, devices and libraries

    def astype(self, dtype: DtypeLike) -> Tensor:
        """The elements converted to a dtype; the tensor itself if it has that dtype.

        Floats are truncated to integers; one outside the integer's range becomes its nearest value,
        and NaN becomes 0. bool is True where an element is not zero. float64 on metal raises
        DtypeError.

        >>> lbrx.tensor([1.9, -1.9]).astype("int32").tolist()
        [1, -1]
        """
        wanted = dt.parse(dtype)
        return self if wanted is self.dtype else self._call("cast", self, dtype=wanted)

    def to_device(self, device: str, /, *, stream: None = None) -> Tensor:
        """The tensor on a device: itself if it is there, else a copy with the same metadata.

        Host memory that a GPU can address is shared with metal instead of copied. The stream of
        the array API standard is not supported: each device has one queue. An unknown device or a
        stream raises DeviceError.
        """
        if stream is not None:
            raise DeviceError(f"stream={stream!r} is not supported: leave it out")
        if device == self.device:
            return self
        return Tensor(move(self.array, device), self.metadata)

    def to(self, *targets: DtypeLike) -> Tensor:
        """The tensor on a device, with a dtype, or both, in the given order.

        >>> x = lbrx.ones(2).to("cpu", "float16")
        >>> x.device, x.dtype
        ('cpu', lbrx.float16)
        """
        result = self
        for target in targets:
            if isinstance(target, str) and target in devices.NAMES:
                result = result.to_device(target)
            else:
                result = result.astype(_target(target))
        return result

    def numpy(self, *, copy: bool = False) -> NDArray[Any]:
        """A read-only numpy array over the same memory, or a writable copy.

        A tensor is a value that others may share, so its memory cannot be written through
        numpy. bfloat16 is the type of ml_dtypes.

        >>> x = lbrx.ones(3)
        >>> a = x.numpy(copy=True)
        >>> a[0] = 5  # x is still [1, 1, 1]
        """
        values = self.array.numpy()
        return values.copy() if copy else values

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        """For `np.asarray`: read-only, unless `copy` or `dtype` makes it a copy."""
        values = self.numpy()
        if dtype is not None and dtype != values.dtype:
            if copy is False:
                raise ValueError(f"{self.dtype} cannot become {dtype} without a copy")
            return values.astype(dtype)
        return values.copy() if copy else values

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        """numpy's functions accept tensors as numpy arrays, and return numpy arrays."""
        return function(*_with_arrays(args), **_with_arrays(kwargs))

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        """The module with the functions of the Python array API standard: `lbrx`.

        An api_version other than those in `ARRAY_API_VERSIONS` raises ValueError.
        """
        if api_version not in (None, *ARRAY_API_VERSIONS):
            known = ", ".join(ARRAY_API_VERSIONS)
            raise ValueError(f"api_version={api_version!r} is not supported: give one of {known}")
        return sys.modules["lbrx"]  # an import would be circular

    def __dlpack__(self, **kwargs: Any) -> object:
        """A DLPack capsule over the tensor's memory, or a copy with copy=True.

        Consumers must not write into it. With `max_version=(1, 0)` or later the capsule says that
        it is read-only; the older protocol has no way to. On an NVIDIA GPU it is memory of the GPU,
        whose values are computed for any `stream`, or not waited for if that is -1.
        """
        return dlpack.export(self.array, kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        """kDLCPU, because the host reads the memory of both devices, or kDLCUDA and the number of
        the NVIDIA GPU whose memory it is."""
        return dlpack.device_of(self.array)

    def __reduce__(self) -> tuple[Any, ...]:
        from lbrx.tensors.quantized import stored_parts, unpickled  # imports this module

        if (stored := stored_parts(self)) is not None:
            return unpickled, (*stored, self.metadata)
        values = np.ascontiguousarray(self.numpy())
        return _unpickle, (values.tobytes(), self.shape, self.dtype, self.device, self.metadata)

    def item(self) -> bool | int | float:
        """The value of a tensor with one element, as a Python bool, int or float.

        Another size raises ShapeError.
        """
        if self.size != 1:
            raise ShapeError(
                f"item() of shape {self.shape} has {self.size} elements: index one, or use tolist()"
            )
        value: bool | int | float = self._readable().item()
        return value

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers; a number for a scalar tensor."""
        return self._readable().tolist()

    def _readable(self) -> NDArray[Any]:
        """The elements as numpy prints and converts them: it does neither for bfloat16."""
        values = self.numpy()
        return values.astype(np.float32) if self.dtype is dt.bfloat16 else values

    # Special methods of Python

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(
                f"a tensor of shape {self.shape} does not have one truth value: use any() or all()"
            )
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer or self.ndim:
            raise TypeError(
                f"{self.dtype} of shape {self.shape} is not an index: give an integer scalar"
            )
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar tensor does not have a length: use size")
        return self.shape[0]

    def __contains__(self, value: Any) -> bool:
        equal: Any = self == value
        return equal is not False and bool(equal.any())

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            "tensors are values and have no item assignment: use x = x.at[...].set(...)"
        )

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __repr__(self) -> str:
        values = np.array2string(
            self._readable(), separator=", ", prefix="tensor(", threshold=_SHOWN_ELEMENTS
        )
        facts = [f"shape={self.shape}", f"dtype={self.dtype}", f"device={self.device!r}"]
        if self.metadata.name:
            facts.append(f"name={self.metadata.name!r}")
        gap = "\n       " if "\n" in values else " "
        return f"tensor({values},{gap}{', '.join(facts)})"


def _target(given: DtypeLike) -> Dtype:
    """The dtype that `to` was given, where it may as well be given a device."""
    try:
        return dt.parse(given)
    except DtypeError as problem:
        places = " and ".join(map(repr, devices.NAMES))
        raise DtypeError(f"{problem}; devices are {places}") from None


def _sizes(given: Sequence[Any]) -> tuple[int, ...]:
    """Sizes or axes given one by one or as one sequence."""
    first = given[0] if given else ()
    sizes = first if len(given) == 1 and isinstance(first, Sequence) else given
    return tuple(operator.index(n) for n in sizes)


def _with_arrays(value: Any) -> Any:
    """Arguments of a numpy function with tensors as arrays, also within lists, tuples and dicts."""
    match value:
        case Tensor():
            return value.numpy()
        case list():
            return [_with_arrays(item) for item in value]
        case tuple():
            return tuple(_with_arrays(item) for item in value)
        case dict():
            return {key: _with_arrays(item) for key, item in value.items()}
    return value


def _unpickle(data: bytes, shape: Shape, dtype: Dtype, device: str, metadata: Metadata) -> Tensor:
    values = np.frombuffer(data, dtype.numpy).reshape(shape)
    return Tensor(placed(values, dtype, device), metadata)


def apply(name: str, *operands: Any, **attributes: Any) -> Any:
    """Run any operation of `lbrx.ops.TABLE` by name, also one registered outside lbrx.

    Returns a tensor, or a tuple if the operation has several results. An unknown name raises
    KeyError.

    >>> lbrx.apply("multiply", lbrx.tensor([1, 2]), 3).tolist()
    [3, 6]
    """
    if name not in TABLE:
        import difflib  # few programs need it

        near = difflib.get_close_matches(name, TABLE.whole())
        hint = f"did you mean {near[0]!r}?" if near else "give a name in lbrx.ops.TABLE"
        raise KeyError(f"there is no operation {name!r}: {hint}")
    results = calls(name, *operands, **attributes)
    return results[0] if len(results) == 1 else results
