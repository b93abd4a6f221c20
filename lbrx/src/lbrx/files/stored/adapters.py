"""LoRA adapters in PEFT's layout, applied to a model's tensors while they are used."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx import dtype as dt
from lbrx import formats
from lbrx.errors import FormatError
from lbrx.formats import ModelFiles, TensorInfo, plain
from lbrx.formats.checks import read_json
from lbrx.formats.recipe import ComputedTensor, Recipe
from lbrx.tensor import Tensor

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|"
    r"lora_magnitude_vector)(\.default)?(\.weight)?"
)
# `base_layer` is what an adapter changes: embeddings are saved with it.
_SAVED = re.compile(
    r"(?P<name>.+?)(\.modules_to_save|\.base_layer)?(\.default)?\.(?P<kind>weight|bias)"
)


@dataclass(frozen=True)
class LoraUpdate:
    """W + scale B A, in float32, for sources (W, A, B). With a fourth source, DoRA's magnitudes,
    each row is then scaled to its magnitude."""

    scale: float
    transposed: bool = False
    """Whether W is the transpose of B A, as embeddings are and layers that store [in, out]."""

    @property
    def is_elementwise(self) -> bool:
        return False

    def __call__(self, sources: Sequence[Tensor]) -> Tensor:
        weight, a, b = (source.astype(dt.float32) for source in sources[:3])
        update = b @ a
        result: Tensor = weight + (update.T if self.transposed else update) * self.scale
        if len(sources) == 4:
            norms = (result * result).sum(axis=1, keepdims=True).sqrt()
            result = result * (sources[3].astype(dt.float32).reshape(-1, 1) / norms)
        return result


@dataclass(frozen=True)
class Adapter:
    """The tensors of an adapter by the module of the model that they belong to."""

    path: Path
    files: ModelFiles
    parts: Mapping[str, Mapping[str, TensorInfo]]
    """For each module: `lora_A`, `lora_B`, and with DoRA `lora_magnitude_vector`."""
    saved: Mapping[str, TensorInfo]
    """Whole tensors that the adapter replaces, by name."""
    settings: Mapping[str, Any]

    def scale(self, module: str) -> float:
        """lora_alpha / r, or / sqrt(r) with rsLoRA; both can depend on the module's name."""
        rank = _patterned(self.settings.get("rank_pattern"), module, self.settings.get("r"))
        alpha = _patterned(
            self.settings.get("alpha_pattern"), module, self.settings.get("lora_alpha")
        )
        if not isinstance(alpha, int | float) or not isinstance(rank, int) or rank < 1:
            raise FormatError(f"{self.path / CONFIG}: r and lora_alpha are not numbers: add them")
        return float(alpha) / (math.sqrt(rank) if self.settings.get("use_rslora") else rank)


def read_adapter(path: str | Path) -> Adapter:
    """Read the headers of an adapter's folder.

    Raises FormatError if it is not a LoRA adapter, or of a kind that lbrx does not apply.
    """
    folder = Path(path)
    if not (folder / CONFIG).is_file():
        raise FormatError(f"{folder} has no {CONFIG}: give the folder of a LoRA adapter")
    settings = read_json(folder / CONFIG)
    if settings.get("peft_type", "LORA") != "LORA":
        kind = settings["peft_type"]
        raise FormatError(f"{folder}: {kind!r:.40} adapters cannot be merged: give one of LoRA")
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise FormatError(f"{folder} has none of {', '.join(WEIGHTS)}: the adapter is incomplete")
    files = formats.read(file)
    parts: dict[str, dict[str, TensorInfo]] = {}
    saved: dict[str, TensorInfo] = {}
    for name, info in files.tensors.items():
        own = name.removeprefix(PREFIX)
        if found := _PART.fullmatch(own):
            kind = found["part"].replace("lora_embedding_", "lora_")
            parts.setdefault(found["module"], {})[kind] = info
        elif whole := _SAVED.fullmatch(own):
            saved[f"{whole['name']}.{whole['kind']}"] = info
        else:
            raise FormatError(f"{file}: tensor {name!r} is not one of a LoRA adapter")
    for module, tensors in parts.items():
        if not {"lora_A", "lora_B"} <= tensors.keys():
            raise FormatError(f"{file}: {module} has lora_A or lora_B alone: it is incomplete")
    return Adapter(folder, files, parts, saved, settings)


def apply_adapter(recipes: Mapping[str, Recipe], adapter: Adapter) -> dict[str, Recipe]:
    """A model's recipes under Hugging Face's names with an adapter applied, in float32.

    Raises FormatError if the adapter belongs to another model.
    """
    result = dict(recipes)
    for name, info in adapter.saved.items():
        if name not in recipes or recipes[name].shape != info.shape:
            found = recipes[name].shape if name in recipes else "not there"
            raise FormatError(f"{adapter.path} has {name} of {info.shape}; in the model: {found}")
        result[name] = TensorInfo(name, info.encoding, info.shape, info.source, info.strides)
    for module, parts in adapter.parts.items():
        name = f"{module}.weight"
        if name not in recipes:
            raise FormatError(f"{adapter.path} changes {name}, which the model does not have")
        result[name] = _updated(result[name], parts, adapter, module)
    return result


def _updated(
    weight: Recipe, parts: Mapping[str, TensorInfo], adapter: Adapter, module: str
) -> ComputedTensor:
    a, b = parts["lora_A"], parts["lora_B"]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        raise FormatError(f"{adapter.path}: {module} has {a.shape} and {b.shape}: not a product")
    shape = (b.shape[0], a.shape[1])
    is_embedding = "embed" in module.rpartition(".")[2]
    transposed = is_embedding or bool(adapter.settings.get("fan_in_fan_out"))
    shape = shape[::-1] if transposed else shape
    if weight.shape != shape:
        raise FormatError(
            f"{adapter.path}: {module} changes a matrix of {shape}, and the model's is "
            f"{weight.shape}: the adapter belongs to another model"
        )
    magnitudes = parts.get("lora_magnitude_vector")
    if magnitudes is not None and transposed:
        raise FormatError(f"{adapter.path}: {module}: DoRA of transposed weights is not supported")
    sources: tuple[Recipe, ...] = (
        (weight, a, b) if magnitudes is None else (weight, a, b, magnitudes)
    )
    function = LoraUpdate(adapter.scale(module), transposed)
    return ComputedTensor(weight.name, sources, plain(dt.float32), weight.shape, function)


def _patterned(patterns: object, module: str, usual: object) -> object:
    """The value of the name that is the end of a module's. PEFT takes regular expressions too; of
    these only an anchor at the start is understood."""
    for pattern, value in patterns.items() if isinstance(patterns, Mapping) else ():
        name = str(pattern).removeprefix("^")
        if not re.fullmatch(r"[\w.]+", name):
            raise FormatError(f"the pattern {pattern!r:.80} of an adapter: give names of modules")
        if module == name or (name == pattern and module.endswith(f".{name}")):
            return value
    return usual
