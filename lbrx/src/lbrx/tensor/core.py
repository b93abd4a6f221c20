"""The Tensor that users see."""

from __future__ import annotations

import difflib
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype, DtypeLike
from lbrx.errors import DeviceError, ShapeError
from lbrx.ops import TABLE
from lbrx.quant import QuantizationInfo
from lbrx.shape import Axes, Layout, Shape
from lbrx.storage import Array, Storage, Unrealised
from lbrx.tensor import dlpack, indexing
from lbrx.tensor import placement as devices
from lbrx.tensor.number import TracedNumber, traced_function
from lbrx.tensor.operands import move, placed, prepare
from lbrx.tensor.operation_methods import OperationMethods
from lbrx.tensor.operators import Operators

_KDL_CPU = (1, 0)
_SHOWN_ELEMENTS = 200
ARRAY_API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
"""Versions of the Python array API standard whose names `lbrx` has."""


@dataclass(frozen=True)
class Metadata:
    """What is known of a tensor beside its elements. Results of operations have none."""

    name: str | None = None
    source: str | None = None
    """Where it was read from."""
    quantization: str | None = None
    """The block format of its bytes."""


class Tensor(Operators, OperationMethods):
    """Elements of one type in a shape, on one device.

    Views (slices, transpose, permute, expand, squeeze, reshape where strides permit) share storage
    with the tensor they come from. Every operation of `lbrx.ops` that takes a tensor is a method.
    """

    __slots__ = ("__weakref__", "array", "metadata")

    def __init__(self, array: Array, metadata: Metadata | None = None) -> None:
        self.array = array
        self.metadata = metadata or Metadata()

    @property
    def shape(self) -> Shape:
        return self.array.layout.shape

    @property
    def dtype(self) -> Dtype:
        return self.array.dtype

    @property
    def device(self) -> str:
        return self.array.storage.device

    @property
    def storage(self) -> Storage:
        """Who holds the bytes; what is pending is computed for it."""
        storage = self.array.storage
        return storage.realised() if isinstance(storage, Unrealised) else storage

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return self.array.layout.size

    def numel(self) -> int:
        """The number of elements, as `size`."""
        return self.size

    @property
    def nbytes(self) -> int:
        """The bytes of its elements, each counted once for every place it appears in."""
        return self.size * self.dtype.itemsize

    @property
    def quantization(self) -> QuantizationInfo[Tensor] | None:
        """How its values are stored, if they are quantized: scheme, scales, zero points or biases.
        A view has it too, if it shows whole rows."""
        from lbrx.tensor.quantized import quantization  # which is about tensors

        return quantization(self)

    @property
    def is_contiguous(self) -> bool:
        return self.array.layout.is_contiguous

    def with_metadata(self, **changes: str | None) -> Tensor:
        """The same tensor under another name, source or quantization."""
        return Tensor(self.array, replace(self.metadata, **changes))

    @staticmethod
    def _call(name: str, *values: Any, **attributes: Any) -> Tensor:
        return call(name, *values, **attributes)

    @staticmethod
    def _calls(name: str, *values: Any, **attributes: Any) -> tuple[Any, ...]:
        return calls(name, *values, **attributes)

    # Views

    def view(self, layout: Layout) -> Tensor:
        """Other elements, or another order, of the same storage."""
        return Tensor(replace(self.array, layout=layout))

    def __getitem__(self, key: Any) -> Tensor:
        return indexing.index(self, key)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Another shape; a view where the strides permit, else a copy. One size may be -1."""
        wanted = _sizes(shape)
        layout = sh.reshape(self.array.layout, wanted)
        return self.view(layout) if layout else self.contiguous().reshape(wanted)

    def flatten(self) -> Tensor:
        return self.reshape(-1)

    def permute(self, *axes: int | Sequence[int]) -> Tensor:
        """The axes in another order."""
        return self.view(sh.permute(self.array.layout, _sizes(axes)))

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """The axes in another order: all reversed without arguments, two swapped for two integers
        (as torch), else a permutation of all of them, also as one sequence (as numpy)."""
        order = _sizes(axes) if axes else tuple(reversed(range(self.ndim)))
        if len(order) == 2 and len(axes) == 2:
            return self.view(sh.transpose(self.array.layout, *order))
        return self.permute(order)

    @property
    def T(self) -> Tensor:
        """All axes in reverse order, as numpy's."""
        return self.transpose()

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped: each matrix of a stack transposed."""
        return self.transpose(-2, -1)

    def expand(self, *shape: int | Sequence[int]) -> Tensor:
        """Broadcast without a copy; -1 keeps a size."""
        return self.view(sh.expand(self.array.layout, _sizes(shape)))

    def squeeze(self, axis: Axes = None) -> Tensor:
        return self.view(sh.squeeze(self.array.layout, axis))

    def unsqueeze(self, axis: int) -> Tensor:
        return self.view(sh.unsqueeze(self.array.layout, axis))

    def contiguous(self) -> Tensor:
        """Itself if its elements are in order already, else a copy in which they are."""
        return self if self.is_contiguous else self._call("copy", self)

    # To and from elsewhere

    def astype(self, dtype: DtypeLike) -> Tensor:
        """Itself if it has that type already, else a copy."""
        wanted = dt.parse(dtype)
        return self if wanted is self.dtype else self._call("cast", self, dtype=wanted)

    def to_device(self, device: str, /, *, stream: None = None) -> Tensor:
        """The tensor on a device: itself if it is there already, else a copy, with its metadata.

        Host memory that a GPU can use is not copied to metal; `numpy()` shows metal's memory
        without a copy. A stream is not supported: each device has one queue.
        """
        if stream is not None:
            raise DeviceError(f"stream={stream!r}: a device has one queue, leave the stream out")
        if device == self.device:
            return self
        return Tensor(move(self.array, device), self.metadata)

    def to(self, *targets: DtypeLike) -> Tensor:
        """The tensor on a device, as a dtype, or both: `x.to("cpu")`, `x.to("cpu", "float16")`."""
        result = self
        for target in targets:
            if isinstance(target, str) and target in devices.NAMES:
                result = result.to_device(target)
            else:
                result = result.astype(target)
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
        """NumPy's functions take tensors for arrays of its own, and give those."""
        return function(*_with_arrays(args), **_with_arrays(kwargs))

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        """The module with the functions of the Python array API standard: lbrx itself."""
        if api_version not in (None, *ARRAY_API_VERSIONS):
            known = ", ".join(ARRAY_API_VERSIONS)
            raise ValueError(f"api_version={api_version!r} is not supported: give one of {known}")
        return sys.modules["lbrx"]  # which imports this module, not the other way round

    def __dlpack__(self, **kwargs: Any) -> object:
        """A DLPack capsule over the tensor's memory, or a copy with copy=True.

        Consumers must not write into it. With `max_version=(1, 0)` or later the capsule says that
        it is read-only; the older protocol has no way to.
        """
        return dlpack.export(self.array, kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _KDL_CPU

    def __reduce__(self) -> tuple[Any, ...]:
        values = np.ascontiguousarray(self.numpy())
        return _unpickle, (values.tobytes(), self.shape, self.dtype, self.device, self.metadata)

    def item(self) -> bool | int | float:
        """The only element, as a Python number."""
        if self.size != 1:
            raise ShapeError(f"item() of shape {self.shape}: index one element, or use tolist()")
        value: bool | int | float = self._readable().item()
        return value

    def tolist(self) -> Any:
        return self._readable().tolist()

    def _readable(self) -> NDArray[Any]:
        values = self.numpy()
        return values.astype(np.float32) if self.dtype is dt.bfloat16 else values

    # Python's protocols

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(f"shape {self.shape} is neither true nor false: use any() or all()")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer or self.ndim:
            raise TypeError(f"{self.dtype} of shape {self.shape} is no index: only an integer is")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar tensor has no length")
        return self.shape[0]

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("tensors are values and have no item assignment: use where() or scatter()")

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


def _sizes(given: Sequence[Any]) -> tuple[int, ...]:
    """Sizes or axes given one by one or as one sequence."""
    first = given[0] if given else ()
    sizes = first if len(given) == 1 and isinstance(first, Sequence) else given
    return tuple(operator.index(n) for n in sizes)


def _with_arrays(value: Any) -> Any:
    """A function's arguments with arrays for tensors, also within lists such as concatenate's."""
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


def calls(name: str, *values: Any, **attributes: Any) -> tuple[Any, ...]:
    """Run an operation by name. Returns a tensor for each of its results."""
    op = TABLE[name]
    device, arrays = prepare(op, values)
    if traced_function() is not None:
        attributes = {
            k: float(v) if isinstance(v, TracedNumber) else v for k, v in attributes.items()
        }
    results = devices.get(device).run(op, arrays, op.bind(attributes))
    return tuple(Tensor(array) for array in results)


def apply(name: str, *operands: Any, **attributes: Any) -> Any:
    """Run any operation of `lbrx.ops.TABLE` by name, also one that was registered from outside.

    Returns a tensor, or a tuple of them where the operation has several results.
    """
    if name not in TABLE:
        near = difflib.get_close_matches(name, TABLE)
        hint = f"did you mean {near[0]!r}?" if near else "lbrx.ops.TABLE has them all"
        raise KeyError(f"there is no operation {name!r}: {hint}")
    results = calls(name, *operands, **attributes)
    return results[0] if len(results) == 1 else results


def call(name: str, *values: Any, **attributes: Any) -> Tensor:
    """Run an operation that has one result, by name."""
    result: Tensor
    (result,) = calls(name, *values, **attributes)
    return result
