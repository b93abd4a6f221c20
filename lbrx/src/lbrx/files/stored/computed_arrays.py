"""Arrays that a function of a recipe computes on a device when they are first used."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.arrays.storage import Array, LazyStorage, ViewStorage
from lbrx.errors import DtypeError, ShapeError
from lbrx.files.formats.recipe import ComputedTensor
from lbrx.tensors import derived
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import from_numpy
from lbrx.tensors.derived import RowIndex, RowStorage
from lbrx.tensors.placement import default_device

IN_FLIGHT = 1 << 24  # elements


class _Gate:
    """Lets threads compute whole tensors together up to a number of elements, and larger ones one
    at a time: their intermediate results take memory. A thread that is inside may enter again,
    since a source may be computed too."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._elements = 0
        self._own = threading.local()

    @contextmanager
    def passing(self, elements: int) -> Iterator[None]:
        if getattr(self._own, "inside", False):
            yield
            return
        with self._changed:
            self._changed.wait_for(
                lambda: not self._elements or self._elements + elements <= IN_FLIGHT
            )
            self._elements += elements
        self._own.inside = True
        try:
            yield
        finally:
            self._own.inside = False
            with self._changed:
                self._elements -= elements
                self._changed.notify_all()


_WHOLE = _Gate()


def computed(recipe: ComputedTensor, sources: Sequence[Array], device: str | None) -> Array:
    """The result of a recipe's function: the whole of it at the first use, or ranges of rows where
    each element depends on the same elements only."""
    dtype = recipe.encoding.dtype
    if dtype is None:
        problem = f"a computed tensor has plain elements, not {recipe.encoding}"
        raise DtypeError(f"tensor {recipe.name!r}: {problem}: quantize it where it is written")
    shape = recipe.shape
    place = default_device() if device is None else device
    by_rows = recipe.function.is_elementwise and all(s.layout.shape == shape for s in sources)

    def whole() -> NDArray[Any]:
        with _WHOLE.passing(math.prod(shape)):
            return _result(recipe, [_on_device(array, place) for array in sources], shape)

    def rows(index: RowIndex) -> NDArray[Any]:
        parts = [_rows_on_device(array, index, place) for array in sources]
        return _result(recipe, parts, parts[0].shape)

    if by_rows and sources:
        return derived.by_rows(shape, dtype, rows)
    return Array(LazyStorage(math.prod(shape) * dtype.itemsize, whole), sh.contiguous(shape), dtype)


def _result(recipe: ComputedTensor, sources: Sequence[Tensor], shape: Shape) -> NDArray[Any]:
    """The function's result in the recipe's type. Raises ShapeError for another shape."""
    dtype, function = recipe.encoding.dtype, recipe.function
    assert dtype is not None
    # `isinstance` of a protocol takes as long as a small kernel.
    rounded: Callable[[Sequence[Tensor], Dtype], Tensor] | None = getattr(function, "rounded", None)
    result = function(sources).astype(dtype) if rounded is None else rounded(sources, dtype)
    if result.shape != shape:
        raise ShapeError(f"tensor {recipe.name!r}: {result.shape} was computed instead of {shape}")
    return result.numpy()


def _on_device(array: Array, device: str) -> Tensor:
    """A source on a device: shared where it is a part of a mapped file. Metal has no float64."""
    if array.dtype is dt.float64 and device == "metal":
        return Tensor(array).astype(dt.float32).to_device(device)
    return Tensor(array).to_device(device)


def _rows_on_device(array: Array, index: RowIndex, device: str) -> Tensor:
    """Some rows of a source as a matrix on a device. A range of rows of a file is shared."""
    shape = array.layout.shape
    if isinstance(array.storage, RowStorage) or not isinstance(index, slice):
        return from_numpy(derived.read_rows(array, index), device)
    if isinstance(array.storage, ViewStorage) and array.layout == sh.contiguous(shape):
        row = derived.column_count(shape) * array.dtype.itemsize
        rows = index.stop - index.start
        part = ViewStorage(array.storage, index.start * row, rows * row)
        layout = sh.contiguous((rows, derived.column_count(shape)))
        return _on_device(Array(part, layout, array.dtype), device)
    matrix = Tensor(array).reshape(derived.row_count(shape), derived.column_count(shape))
    return _on_device(matrix[index].array, device)
