"""Merged tensors whose statistics are noted while they are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import PackedStorage
from lbrx.files.formats.recipe import ComputedModel, ComputedTensor, Recipe
from lbrx.files.stored.notes import Notes, note, notes_are_wanted
from lbrx.merging.merge_function import MergeFunction
from lbrx.merging.statistics import MergeSums, ParentSums, merge_sums
from lbrx.tensors import Tensor
from lbrx.tensors.quantized import dequantize


@dataclass(frozen=True)
class ObservedFunction:
    """A `RoundingFunction` that notes the sums of its rounded results."""

    inner: MergeFunction

    @property
    def is_elementwise(self) -> bool:
        return self.inner.is_elementwise

    def __call__(self, sources: Sequence[Tensor]) -> Tensor:
        return self.inner(sources)

    def rounded(self, sources: Sequence[Tensor], dtype: Dtype) -> Tensor:
        result = self.inner(sources).astype(dtype)
        if notes_are_wanted() and all(one.shape == result.shape for one in sources):
            plain = [_plain(one) for one in sources]
            base = plain.pop(0) if self.inner.has_base else None
            sums = merge_sums(result, plain, base)
            note({"tensor": self.inner.name, "sums": sums.numbers()})
        return result


def _plain(tensor: Tensor) -> Tensor:
    """Quantized values decoded."""
    packed = isinstance(tensor.array.storage, PackedStorage)
    return dequantize(tensor) if packed else tensor


def observed(model: ComputedModel) -> ComputedModel:
    """The same model, whose merged tensors note their statistics; those that are only cast do
    not."""
    return replace(model, recipes={name: _observed(one) for name, one in model.recipes.items()})


def _observed(recipe: Recipe) -> Recipe:
    match recipe:
        case ComputedTensor(function=MergeFunction() as inner) if inner.models:
            return replace(recipe, function=ObservedFunction(inner))
    return recipe


def noted_sums(notes: Notes, sizes: Mapping[str, int]) -> dict[str, MergeSums]:
    """The sums of each tensor, from the notes of its pieces. `sizes` are the tensors' numbers of
    elements.

    Parts of a tensor are added. One that was computed whole may have been computed again by a
    resumed run, and counts once.
    """
    sums: dict[str, MergeSums] = {}
    for fact in notes:
        if isinstance(fact, Mapping) and fact.get("tensor") in sizes:
            name, found = fact["tensor"], _read(fact["sums"])
            is_whole = found.values == sizes[name]
            sums[name] = found if is_whole or name not in sums else sums[name] + found
    return sums


def _read(numbers: Mapping[str, Any]) -> MergeSums:
    parents = tuple(ParentSums(**row) for row in numbers["parents"])
    return MergeSums(**{**numbers, "parents": parents})
