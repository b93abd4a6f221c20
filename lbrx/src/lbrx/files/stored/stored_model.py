"""Models on disk as mappings of names to tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from lbrx.arrays.storage import PackedStorage
from lbrx.files import formats
from lbrx.files.formats import Inline, ModelFiles, translate
from lbrx.files.formats.recipe import Recipe, stored
from lbrx.files.stored.recipe_arrays import RecipeArrays
from lbrx.tensors.core import Metadata, Tensor


def open_model(path: str | PathLike[str]) -> StoredModel:
    """Open the model in a file or a folder of any format. Tensors are mapped when they are used.

    Raises `FormatError` for a path that does not exist, is not a model, or is damaged.

        model = lbrx.open_model("model.gguf")
        model.metadata["general.name"], model["token_embd.weight"].shape
    """
    files = formats.read(fspath(path))
    return StoredModel(files, files.tensors)


class StoredModel(Mapping[str, Tensor]):
    """A read-only mapping of names to tensors over mapped files, under the stored names or, after
    `canonical()`, under Hugging Face's.

    Each look-up makes a new tensor, so that memory is bounded by what the caller keeps.
    """

    def __init__(
        self,
        files: ModelFiles,
        recipes: Mapping[str, Recipe],
        arrays: RecipeArrays | None = None,
    ) -> None:
        self.files = files
        self.recipes = recipes
        self._arrays = RecipeArrays() if arrays is None else arrays

    def __getitem__(self, name: str) -> Tensor:
        return self.made(self.recipes[name], name)

    def made(self, recipe: Recipe, name: str) -> Tensor:
        """The tensor that a recipe makes of these files."""
        array = self._arrays.array(recipe)
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
        """The file or folder that was opened."""
        return self.files.path

    @property
    def format(self) -> str:
        """The name of the format: `safetensors`, `gguf`, `mlx` ..."""
        return self.files.format

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the weights' files: GGUF's keys, safetensors' `__metadata__`."""
        return self.files.metadata

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The content of config.json. For a GGUF it is made from metadata."""
        return translate.config_of(self.files)

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """The contents of generation_config.json; empty if there is none."""
        return self.files.generation_config

    @property
    def tokenizer(self) -> Path | Mapping[str, Any] | None:
        """The tokenizer's file, or the keys of a GGUF's metadata that describe it."""
        if self.files.tokenizer is not None:
            return self.files.tokenizer
        return {k: v for k, v in self.metadata.items() if k.startswith("tokenizer.")} or None

    def canonical(self) -> StoredModel:
        """The same model with Hugging Face's names and layout."""
        result = StoredModel(self.files, translate.to_huggingface(self.files), self._arrays)
        # The tensors know their packing now; `save` writes it again where the format keeps it.
        result.config = translate.without_packing(self.files, self.config)
        return result

    def _origin(self, recipe: Recipe) -> str:
        source = next((info.source for info in stored(recipe)), Inline(b""))
        return str(self.path if isinstance(source, Inline) else source.file)
