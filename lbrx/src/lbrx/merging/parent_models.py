"""The models of a merge, by their headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lbrx.errors import FormatError
from lbrx.files import formats
from lbrx.files.formats import ModelFiles, architecture_tables, companions, translate
from lbrx.files.formats.file_formats import conventions_of
from lbrx.files.formats.packaged_models import model_path
from lbrx.files.formats.recipe import ComputedModel, Recipe
from lbrx.merging.config import ModelReference

if TYPE_CHECKING:
    from lbrx.files.stored.adapters import Adapter


@dataclass(frozen=True)
class ParentModel:
    """A model that takes part in a merge, with its adapter applied."""

    reference: ModelReference
    files: ModelFiles
    config: Mapping[str, Any]
    """The config.json, or what a GGUF's metadata says, without settings of a quantization."""
    recipes: Mapping[str, Recipe]
    """Its tensors under Hugging Face's names."""
    adapter: Adapter | None = None

    def __str__(self) -> str:
        return str(self.reference)

    @property
    def model_type(self) -> str | None:
        name = self.config.get("model_type")
        return name if isinstance(name, str) else None

    @cached_property
    def companions(self) -> Mapping[str, bytes]:
        """The files of its folder besides the weights and config.json, made from metadata for a
        GGUF."""
        found = companions.folder_files(self.files, self.config)
        return {name: content for name, content in found.items() if name != "config.json"}

    def setting(self, key: str) -> Any:
        """A hyperparameter; those of a multimodal model's text part are one level deeper."""
        inside = self.config.get("text_config")
        nested = inside.get(key) if isinstance(inside, Mapping) else None
        return self.config.get(key, nested)


def open_parent(reference: ModelReference, stages: Mapping[str, ComputedModel]) -> ParentModel:
    """A model by its path, or by the name of an earlier stage of the same configuration.

    Raises LbrxError if there is no such model, or if the adapter does not fit it.
    """
    files: ModelFiles
    if reference.path in stages:
        files = stages[reference.path]
    else:
        files = formats.read(model_path(reference.path))
    config = translate.without_packing(files, translate.config_of(files))
    recipes = translate.to_huggingface(files)
    if reference.lora is None:
        return ParentModel(reference, files, config, recipes)
    from lbrx.files.stored.adapters import apply_adapter, read_adapter

    adapter = read_adapter(model_path(reference.lora))
    return ParentModel(reference, files, config, apply_adapter(recipes, adapter), adapter)


def check_same_architecture(models: list[ParentModel]) -> None:
    """Raises FormatError if the models are of different kinds."""
    first = models[0]
    for other in models[1:]:
        if first.model_type != other.model_type and _families(first) != _families(other):
            raise FormatError(
                f"{first} is a {first.model_type or 'model without config.json'} and {other} a "
                f"{other.model_type or 'model without config.json'}: merge models of one "
                "architecture"
            )


def _families(model: ParentModel) -> object:
    """What two models must share: GGUF calls several types of models llama."""
    if not conventions_of(model.files).describes_itself:
        return model.model_type
    table = architecture_tables.of_config(model.config)
    return model.model_type if table is None else table.gguf


_SHARED_SETTINGS = (
    *("num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta", "rope_scaling"),
    *("hidden_act", "rms_norm_eps", "sliding_window"),
)


def differing_settings(models: list[ParentModel]) -> list[str]:
    """Notes about hyperparameters in which the models differ: the merged model has the first's."""
    notes = []
    for key in _SHARED_SETTINGS:
        values = [model.setting(key) for model in models]
        for model, value in zip(models, values, strict=True):
            if value is not None and values[0] is not None and value != values[0]:
                notes.append(
                    f"{key} is {value} in {model} and {values[0]} in {models[0]}, whose is kept"
                )
    return notes
