"""Models on disk as mappings of names to tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx import formats
from lbrx import shape as sh
from lbrx.formats import Deflated, FileRange, Format, Inline, ModelFiles, TensorInfo, translate
from lbrx.formats.containers.zip_archive import inflate
from lbrx.formats.recipe import Packed, Part, Recipe, Rows, Shifted, Stack, stored
from lbrx.shape import Layout
from lbrx.storage import (
    Array,
    CpuStorage,
    LazyStorage,
    MmapStorage,
    PackedStorage,
    Storage,
    ViewStorage,
)
from lbrx.tensor import derived
from lbrx.tensor.core import Metadata, Tensor


def open_model(path: str | PathLike[str]) -> StoredModel:
    """The model in a file or a folder, of any format. Tensors are mapped when they are used."""
    files = formats.read(Path(path))
    return StoredModel(files, files.tensors)


class StoredModel(Mapping[str, Tensor]):
    """Tensors under their names, over the mapped files: as they are stored, or `canonical()`.

    A tensor is made anew by each look-up, so that memory is bounded by what the caller keeps.
    """

    def __init__(
        self,
        files: ModelFiles,
        recipes: Mapping[str, Recipe],
        mapped: dict[Path, MmapStorage] | None = None,
    ) -> None:
        self.files = files
        self.recipes = recipes
        self._mapped = {} if mapped is None else mapped

    def __getitem__(self, name: str) -> Tensor:
        recipe = self.recipes[name]
        array = self._array(recipe)
        packing = array.storage.scheme if isinstance(array.storage, PackedStorage) else None
        return Tensor(array, Metadata(name, self._origin(recipe), packing))

    def __iter__(self) -> Iterator[str]:
        return iter(self.recipes)

    def __len__(self) -> int:
        return len(self.recipes)

    def __repr__(self) -> str:
        return f"<StoredModel {self.path}: {len(self)} tensors, {self.format}>"

    @property
    def path(self) -> Path:
        return self.files.path

    @property
    def format(self) -> Format:
        return self.files.format

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the weights' files say beside tensors."""
        return self.files.metadata

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """As in config.json; for a GGUF of a known architecture, made of its metadata."""
        return translate.config_of(self.files)

    @property
    def generation_config(self) -> Mapping[str, Any]:
        return self.files.generation_config

    @property
    def tokenizer(self) -> Path | Mapping[str, Any] | None:
        """The tokenizer's file, or a GGUF's metadata about it."""
        if self.files.tokenizer is not None:
            return self.files.tokenizer
        return {k: v for k, v in self.metadata.items() if k.startswith("tokenizer.")} or None

    def canonical(self) -> StoredModel:
        """The same with Hugging Face's names and layout."""
        result = StoredModel(self.files, translate.to_huggingface(self.files), self._mapped)
        # How MLX packs weights is known to the tensors now; savers say it anew where it is kept.
        result.config = translate.without_packing(self.files, self.config)
        return result

    def _origin(self, recipe: Recipe) -> str:
        source = next(stored(recipe)).source
        return str(self.path if isinstance(source, Inline) else source.file)

    def _array(self, recipe: Recipe) -> Array:
        match recipe:
            case TensorInfo():
                return self.stored(recipe)
            case Rows(source=source):
                return derived.take_rows(self._array(source), recipe.order())
            case Part(source=source, index=index):
                return derived.take_part(self._array(source), index)
            case Stack(sources=sources):
                return derived.stack([self._array(source) for source in sources])
            case Shifted(source=source, by=by):
                return derived.shift(self._array(source), by)
            case Packed(weight=weight, scales=scales, biases=biases):
                named = {"data": weight, "scales": scales, "biases": biases}
                parts = {name: self.stored(info) for name, info in named.items() if info}
                return derived.packed(recipe.scheme, parts, recipe.shape)

    def forget(self, info: TensorInfo) -> None:
        """Give back the memory that a stored tensor's mapped bytes take; they can be read again."""
        source = info.source
        if isinstance(source, FileRange) and source.file in self._mapped:
            self._mapped[source.file].forget(source.offset, source.nbytes)

    def stored(self, info: TensorInfo) -> Array:
        """A tensor as it lies in a file."""
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
            return ViewStorage(self._file(source.file), source.offset, source.nbytes)
        if isinstance(source, Deflated):
            return LazyStorage(source.nbytes, lambda: _inflated(source))
        return CpuStorage(np.frombuffer(source.data, np.uint8))

    def _file(self, path: Path) -> MmapStorage:
        """One mapping for all of a file, which a device then shares as one buffer."""
        if path not in self._mapped:
            self._mapped[path] = MmapStorage(path)
        return self._mapped[path]


def _inflated(packed: Deflated) -> NDArray[np.uint8]:
    """A compressed array, chunk by chunk."""
    result = np.empty(packed.skip + packed.nbytes, np.uint8)
    at = 0
    with packed.file.open("rb") as file:
        file.seek(packed.offset)
        for part in inflate(packed.file, file, packed.packed, result.nbytes):
            result[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
    return result[packed.skip :]
