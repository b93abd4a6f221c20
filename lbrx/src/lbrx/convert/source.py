"""Rows of a model's tensors, read when they are needed and released afterwards."""

from __future__ import annotations

import threading
from typing import Any

from numpy.typing import NDArray

from lbrx.arrays.storage import Array
from lbrx.files.formats.recipe import Recipe, stored
from lbrx.files.stored.recipe_arrays import RecipeArrays
from lbrx.tensors.derived import column_count, read_rows, row_count, stored_arrays

StoredRows = dict[str, NDArray[Any]]
"""Rows of what a file stores of a tensor: `data`, and for MLX's words `scales` and `biases`."""


def rows_of(recipe: Recipe) -> int:
    return row_count(recipe.shape)


def columns_of(recipe: Recipe) -> int:
    return column_count(recipe.shape)


def scheme_of(recipe: Recipe) -> str | None:
    """The name of the quantization scheme that a tensor is stored in; None for plain elements."""
    return None if recipe.encoding.dtype is not None else recipe.encoding.name.lower()


class TensorReader:
    """Reads ranges of rows of recipes. It may be used by several threads."""

    def __init__(self, device: str | None = None) -> None:
        """`device` computes the recipes that are computed."""
        self._arrays = RecipeArrays(device)
        self._known: dict[Recipe, Array] = {}
        self._lock = threading.Lock()

    def read(self, recipe: Recipe, rows: slice) -> StoredRows:
        """Rows as they are stored: a view of the mapped file where they are contiguous there."""
        parts = stored_arrays(self._array(recipe))
        return {name: read_rows(part, rows) for name, part in parts.items()}

    def values(self, recipe: Recipe, rows: slice) -> NDArray[Any]:
        """Rows as numbers: float32 for quantized tensors, else of the stored type."""
        return read_rows(self._array(recipe), rows)

    def forget(self, recipe: Recipe) -> None:
        """Release the memory of a recipe's stored tensors."""
        with self._lock:
            self._known.pop(recipe, None)
        for info in stored(recipe):
            self._arrays.forget(info)

    def _array(self, recipe: Recipe) -> Array:
        """The same array for all threads: tensors that are inflated are then inflated once."""
        with self._lock:
            if recipe not in self._known:
                self._known[recipe] = self._arrays.array(recipe)
            return self._known[recipe]
