"""Rows of a model's tensors, read when they are needed and let go afterwards."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.formats import ModelFiles, TensorInfo
from lbrx.formats.recipe import Packed, Part, Recipe, Rows, Shifted, Stack, stored
from lbrx.storage import PackedStorage
from lbrx.tensor.derived import decoded
from lbrx.tensor.stored_model import StoredModel

Index = slice | NDArray[np.intp]
Parts = dict[str, NDArray[Any]]
"""`data`, and beside MLX's words `scales` and `biases`: arrays of rows."""


def row_count(recipe: Recipe) -> int:
    """A tensor's rows are those of all axes but the last, one after the other."""
    return math.prod(recipe.shape[:-1])


def columns(recipe: Recipe) -> int:
    return recipe.shape[-1] if recipe.shape else 1


def scheme_of(recipe: Recipe) -> str | None:
    """The name of the blocks that a tensor is stored as; None for plain elements."""
    return None if recipe.encoding.dtype is not None else recipe.encoding.name.lower()


class TensorReader:
    """The tensors of a model. Any thread may read."""

    def __init__(self, files: ModelFiles) -> None:
        self._model = StoredModel(files, {})
        self._known: dict[TensorInfo, NDArray[Any]] = {}
        self._lock = threading.Lock()

    def read(self, recipe: Recipe, rows: Index) -> Parts:
        """Rows as they are stored: a view of the mapped file where they lie together."""
        match recipe:
            case TensorInfo():
                return {"data": self._stored(recipe)[rows]}
            case Packed(weight=weight, scales=scales, biases=biases):
                named = {"data": weight, "scales": scales, "biases": biases}
                return {name: self._stored(info)[rows] for name, info in named.items() if info}
            case Rows(source=source) if len(source.shape) == 1:
                return {"data": self.read(source, rows)["data"][:, recipe.order()]}
            case Rows(source=source):
                return self.read(source, recipe.order()[rows])
            case Part(source=source, index=index):
                return self.read(source, _moved(rows, index * row_count(recipe)))
            case Stack(sources=sources):
                return self._stacked(sources, rows)
            case Shifted(source=source, by=by):
                values = self.values(source, rows).astype(np.float32)
                return {"data": values + np.float32(by)}

    def values(self, recipe: Recipe, rows: Index) -> NDArray[Any]:
        """Rows as numbers: float32 if they are stored as blocks."""
        parts = self.read(recipe, rows)
        scheme = scheme_of(recipe)
        if scheme is None:
            return parts["data"]
        data = parts.pop("data")
        return decoded(scheme, data, parts, (len(data), columns(recipe)))

    def forget(self, recipe: Recipe) -> None:
        """Give back what its stored tensors take in memory."""
        for info in stored(recipe):
            with self._lock:
                self._known.pop(info, None)
            self._model.forget(info)

    def _stacked(self, sources: tuple[Recipe, ...], rows: Index) -> Parts:
        assert isinstance(rows, slice)  # only whole heads change places, and heads are not stacked
        each = row_count(sources[0])
        found = []
        for i in range(rows.start // each, -(-rows.stop // each)):
            inside = slice(max(rows.start - i * each, 0), min(rows.stop - i * each, each))
            found.append(self.read(sources[i], inside))
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def _stored(self, info: TensorInfo) -> NDArray[Any]:
        """All rows. What is not mapped as it lies is made once and kept until it is forgotten."""
        with self._lock:
            known = self._known.get(info)
            if known is None:
                array = self._model.stored(info)
                if isinstance(array.storage, PackedStorage):
                    array = array.storage.parts["data"]
                width = array.layout.shape[-1] if array.layout.shape else 1
                rows = row_count(info)
                known = np.ascontiguousarray(array.numpy()).reshape(rows, width)
                self._known[info] = known
            return known


def _moved(rows: Index, by: int) -> Index:
    return slice(rows.start + by, rows.stop + by) if isinstance(rows, slice) else rows + by
