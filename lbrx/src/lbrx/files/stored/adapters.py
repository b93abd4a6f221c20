"""LoRA adapters in PEFT's and MLX's layouts, applied to a model's tensors while they are used."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.errors import FormatError
from lbrx.files import formats
from lbrx.files.formats import ModelFiles, TensorInfo, plain
from lbrx.files.formats.checks import bad, brief, finite, read_json, shown
from lbrx.files.formats.recipe import ComputedTensor, Recipe
from lbrx.files.stored.load_and_save import save
from lbrx.tensors import Tensor

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
MLX_WEIGHTS = "adapters.safetensors"
PREFIX = "base_model.model."
_SWITCHES = ("use_rslora", "use_dora", "fan_in_fan_out")
# PEFT changes the model's weights, or how it applies the adapter.
_OF_OTHER_WEIGHTS = ("pissa", "olora", "corda", "loftq")
_NOT_APPLIED = ("layer_replication", "use_qalora", "alora_invocation_tokens")
_LARGEST_SCALE = 65504.0  # the largest float16; trained adapters are multiplied by about 1
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
        config, stored = self.path / CONFIG, self.parts[module]["lora_A"].shape[0]
        key, rank = _of_module(self.settings, "r", "rank_pattern", module)
        if rank != stored or isinstance(rank, bool):
            raise FormatError(
                f"{config}: {key}: {brief(rank)}, and the matrices of {module} have the rank "
                f"{stored}: give the adapter_config.json of these weights"
            )
        key, alpha = _of_module(self.settings, "lora_alpha", "alpha_pattern", module)
        scale = finite(alpha, f"{config}: {key}")
        scale /= math.sqrt(stored) if self.settings.get("use_rslora") else stored
        if abs(scale) > _LARGEST_SCALE:
            raise FormatError(
                f"{config}: {key}: {alpha:g} multiplies the adapter by {scale:g}, and float16 ends "
                f"at {_LARGEST_SCALE:g}: correct it"
            )
        return scale


def read_adapter(path: str | Path) -> Adapter:
    """Read the headers of an adapter's folder, for which one of its files may stand.

    Raises FormatError if it is not a LoRA adapter, or of a kind that lbrx does not apply.
    """
    given = Path(path)
    folder = (
        given.parent if given.name in (CONFIG, MLX_WEIGHTS, *WEIGHTS) and given.is_file() else given
    )
    if not (folder / CONFIG).is_file():
        raise FormatError(f"{folder} has no {CONFIG}: give the folder of a LoRA adapter")
    settings = read_json(folder / CONFIG)
    if (folder / MLX_WEIGHTS).is_file():
        return _read_mlx(folder, settings)
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise FormatError(f"{folder} has none of {', '.join(WEIGHTS)}: the adapter is incomplete")
    _check_settings(folder / CONFIG, settings)
    files = formats.read(file)
    parts, saved = _sorted_tensors(file, files)
    if not parts and not saved:
        raise FormatError(f"{file} has no tensors: the adapter is incomplete")
    for module, tensors in parts.items():
        _check_parts(file, module, tensors, settings)
    return Adapter(folder, files, parts, saved, settings)


def _read_mlx(folder: Path, settings: Mapping[str, Any]) -> Adapter:
    """MLX's: `lora_a` (inputs, rank) and `lora_b` (rank, outputs), with one scale for all."""
    kind = settings.get("fine_tune_type", "lora")
    if kind != "lora":
        raise FormatError(f"{folder / CONFIG}: {brief(kind)} cannot be applied: give one of lora")
    given = settings.get("lora_parameters")
    found = given if isinstance(given, Mapping) else {}
    scale = finite(found.get("scale"), f"{folder / CONFIG}: lora_parameters: scale")
    file = folder / MLX_WEIGHTS
    files = formats.read(file)
    parts: dict[str, dict[str, TensorInfo]] = {}
    for name, info in files.tensors.items():
        module, _, part = name.rpartition(".")
        if part not in ("lora_a", "lora_b") or len(info.shape) != 2 or info.strides is not None:
            raise FormatError(f"{file}: tensor {shown(name)} is not one of a LoRA adapter")
        if not info.encoding.decoded.is_float:
            raise bad(file, f"{info.encoding} is not a type of floats", tensor=name)
        rows, columns = info.shape
        turned = replace(info, shape=(columns, rows), strides=(1, columns))
        parts.setdefault(module, {})[f"lora_{part[-1].upper()}"] = turned
    if not parts:
        raise FormatError(f"{file} has no tensors: the adapter is incomplete")
    for module, tensors in parts.items():
        _check_parts(file, module, tensors, {})
    ranks = {module: tensors["lora_A"].shape[0] for module, tensors in parts.items()}
    alphas = {module: scale * rank for module, rank in ranks.items()}
    patterns = {"rank_pattern": ranks, "alpha_pattern": alphas}
    return Adapter(folder, files, parts, {}, {"r": 0, "lora_alpha": 0, **patterns})


def _check_settings(config: Path, settings: Mapping[str, Any]) -> None:
    """Raises FormatError for settings of the wrong kind, used or not."""
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA":
        raise FormatError(f"{config}: {brief(kind)} adapters cannot be merged: give one of LoRA")
    for key in _SWITCHES:
        if not isinstance(settings.get(key, False), bool | None):
            raise FormatError(f"{config}: {key}: {brief(settings[key])}: write true or false")
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_OF_OTHER_WEIGHTS):
        raise FormatError(
            f"{config}: init_lora_weights: {brief(start)}: the adapter is for weights that PEFT "
            "computes from the model's: save it with path_initial_model_for_weight_conversion"
        )
    for key in _NOT_APPLIED:
        if settings.get(key):
            raise FormatError(f"{config}: {key} is set, which lbrx does not apply: use PEFT")
    for key in ("r", "lora_alpha"):
        finite(settings.get(key), f"{config}: {key}")
    for key in ("rank_pattern", "alpha_pattern"):
        given = settings.get(key)
        if not isinstance(given, Mapping | None):
            raise FormatError(f"{config}: {key}: {brief(given)}: write names with numbers")
        for name, value in (given or {}).items():
            finite(value, f"{config}: {key}: {shown(name)}")


def _sorted_tensors(
    file: Path, files: ModelFiles
) -> tuple[dict[str, dict[str, TensorInfo]], dict[str, TensorInfo]]:
    """The parts of products by module, and whole tensors by name."""
    parts: dict[str, dict[str, TensorInfo]] = {}
    saved: dict[str, TensorInfo] = {}
    for name, info in files.tensors.items():
        own = name.removeprefix(PREFIX)
        group, key = saved, ""
        if found := _PART.fullmatch(own):
            group = parts.setdefault(found["module"], {})
            key = found["part"].replace("lora_embedding_", "lora_")
        elif whole := _SAVED.fullmatch(own):
            key = f"{whole['name']}.{whole['kind']}"
        else:
            raise FormatError(f"{file}: tensor {shown(name)} is not one of a LoRA adapter")
        if key in group:
            raise bad(file, "another tensor has the same place in the model", tensor=name)
        if not info.encoding.decoded.is_float:
            raise bad(file, f"{info.encoding} is not a type of floats", tensor=name)
        group[key] = info
    return parts, saved


def _check_parts(
    file: Path, module: str, tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]
) -> None:
    if not {"lora_A", "lora_B"} <= tensors.keys():
        raise FormatError(f"{file}: {module} has lora_A or lora_B alone: it is incomplete")
    a, b = tensors["lora_A"].shape, tensors["lora_B"].shape
    if len(a) != 2 or len(b) != 2 or a[0] != b[1] or not a[0]:
        raise FormatError(f"{file}: {module} has matrices of {a} and {b}: not a product")
    has_magnitudes = "lora_magnitude_vector" in tensors
    if has_magnitudes is not bool(settings.get("use_dora")):
        found = "magnitudes" if has_magnitudes else "no magnitudes"
        raise FormatError(
            f"{file}: {module} has {found}, and use_dora is {brief(settings.get('use_dora'))}: "
            f"give the {CONFIG} of these weights"
        )
    if has_magnitudes and tensors["lora_magnitude_vector"].size != b[0]:
        shape = tensors["lora_magnitude_vector"].shape
        raise FormatError(f"{file}: {module} has magnitudes of {shape} for {b[0]} rows")


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


def _of_module(
    settings: Mapping[str, Any], usual: str, patterns: str, module: str
) -> tuple[str, Any]:
    """A setting's value for a module, and its key for messages. A pattern is a name that is the end
    of the module's. PEFT takes regular expressions too; of these only an anchor at the start is
    understood."""
    for pattern, value in (settings.get(patterns) or {}).items():
        name = pattern.removeprefix("^")
        if not re.fullmatch(r"[\w.]+", name):
            raise FormatError(f"{patterns}: {shown(pattern)} is not a name: give names of modules")
        if module == name or (name == pattern and module.endswith(f".{name}")):
            return f"{patterns}: {shown(pattern)}", value
    return usual, settings.get(usual)


def write_adapter(target: Path, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Write an adapter's files, elsewhere first; adapter_config.json gets its name last."""
    target.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".lbrx-", dir=target))
    try:
        save(folder / WEIGHTS[0], tensors, {"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        for name in (WEIGHTS[0], CONFIG):
            os.replace(folder / name, target / name)
    finally:
        shutil.rmtree(folder)
