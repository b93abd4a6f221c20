"""Recipes as arrays: the only place that interprets `files/formats/recipe.py`.

The arrays are lazy, so both users read what they need: tensors read all of it at the first use,
and conversion reads ranges of rows (`derived.read_rows`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage import Array, CpuStorage, LazyStorage, MmapStorage, Storage, ViewStorage
from lbrx.files.formats import Deflated, FileRange, TensorInfo
from lbrx.files.formats.containers.zip_archive import inflate
from lbrx.files.formats.recipe import (
    ComputedTensor,
    PackedWeight,
    Recipe,
    ReorderedHeads,
    RepackedTensor,
    ShiftedTensor,
    StackEntry,
    TensorStack,
)
from lbrx.files.formats.remote_files import ensure, local_path
from lbrx.files.stored.computed_arrays import computed
from lbrx.tensors import derived


class RecipeArrays:
    """Lazy arrays over mapped files. Each file is mapped once, as one range."""

    def __init__(self, device: str | None = None) -> None:
        """`device` computes the tensors that are computed: by default the default device."""
        self._device = device
        self._mapped: dict[Path, MmapStorage] = {}

    def array(self, recipe: Recipe) -> Array:
        """The elements of a recipe; quantized ones stay packed."""
        match recipe:
            case TensorInfo():
                return self._stored(recipe)
            case ReorderedHeads(source=source):
                return derived.take_rows(self.array(source), recipe.order())
            case StackEntry(source=source, index=index):
                return derived.take_part(self.array(source), index)
            case TensorStack(sources=sources):
                return derived.stack([self.array(source) for source in sources])
            case ShiftedTensor(source=source, by=by):
                return derived.shift(self.array(source), by)
            case ComputedTensor(sources=sources):
                return computed(recipe, [self.array(source) for source in sources], self._device)
            case PackedWeight():
                parts = {name: self.array(part) for name, part in recipe.parts.items()}
                return derived.packed(recipe.scheme, parts, recipe.shape)
            case RepackedTensor():
                return self._repacked(recipe)

    def _repacked(self, recipe: RepackedTensor) -> Array:
        """The result of a recipe's function of arrays, made at the first use."""
        dtype = recipe.encoding.decoded
        sources = [self.array(source) for source in recipe.sources]

        def whole() -> NDArray[Any]:
            values = recipe.function([source.numpy() for source in sources])
            return np.ascontiguousarray(values.reshape(recipe.shape), dtype.numpy)

        nbytes = math.prod(recipe.shape) * dtype.itemsize
        return Array(LazyStorage(nbytes, whole), sh.contiguous(recipe.shape), dtype)

    def forget(self, info: TensorInfo) -> None:
        """Release the mapped pages of a stored tensor. They are read again at the next use."""
        source = info.source
        if isinstance(source, FileRange) and source.file in self._mapped:
            self._mapped[source.file].forget(source.offset, source.nbytes)

    def _stored(self, info: TensorInfo) -> Array:
        """A tensor as it is stored in a file."""
        storage = self._storage(info)
        encoding = info.encoding
        if encoding.dtype is None:
            rows = (*info.shape[:-1], encoding.bytes_for(info.shape[-1] if info.shape else 1))
            strides = info.strides or sh.contiguous_strides(rows)
            blocks = Array(storage, Layout(rows, strides), dt.uint8)
            return derived.packed(encoding.name.lower(), {"data": blocks}, info.shape)
        strides = info.strides or sh.contiguous_strides(info.shape)
        return Array(storage, Layout(info.shape, strides), encoding.dtype)

    def _storage(self, info: TensorInfo) -> Storage:
        source = info.source
        if isinstance(source, FileRange):
            ensure(source.file, source.offset, source.nbytes)
            return ViewStorage(self._file(source.file), source.offset, source.nbytes)
        if isinstance(source, Deflated):
            return LazyStorage(source.nbytes, lambda: _inflated(source))
        return CpuStorage(np.frombuffer(source.data, np.uint8))

    def _file(self, path: Path) -> MmapStorage:
        """One mapping for the whole file: a device then shares it as one buffer."""
        if path not in self._mapped:
            self._mapped[path] = MmapStorage(local_path(path))
        return self._mapped[path]


def _inflated(packed: Deflated) -> NDArray[np.uint8]:
    """A compressed array, inflated chunk by chunk."""
    result = np.empty(packed.skip + packed.nbytes, np.uint8)
    at = 0
    with packed.file.open("rb") as file:
        file.seek(packed.offset)
        for part in inflate(packed.file, file, packed.packed, result.nbytes):
            result[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
    return result[packed.skip :]
