"""The plan of a conversion: everything is decided before tensors are read or written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.convert.forms import FILE_TYPES, FLOATS, Form, chooser
from lbrx.convert.source import columns_of, rows_of, scheme_of
from lbrx.errors import DtypeError, FormatError
from lbrx.files import formats
from lbrx.files.formats import (
    ENCODINGS,
    Format,
    ModelFiles,
    companions,
    plain,
    translate,
    writing,
)
from lbrx.files.formats.checks import check_path
from lbrx.files.formats.containers import mlx
from lbrx.files.formats.descriptor import OutgoingInfo
from lbrx.files.formats.file_formats import FORMATS, FileFormat, conventions_of
from lbrx.files.formats.hub import name_of
from lbrx.files.formats.recipe import ComputedModel, Recipe, stored
from lbrx.files.formats.writing import Output

if TYPE_CHECKING:
    from lbrx.files.formats.imatrix import Importance

_LAYER = re.compile(r"blk\.(\d+)\.")
_QUANTIZATION_VERSION = 2  # the version of GGUF's block formats
_SMALLEST_SHARD = 1000  # bytes
_TOLD = 12  # classes of tensors in a note


@dataclass(frozen=True)
class Settings:
    """The options of a conversion."""

    to: str | None = None
    quantize: str | None = None
    dtype: str | None = None
    """The type of tensors that are not quantized, and of MLX's scales."""
    include: tuple[str, ...] = ()
    """Patterns of names: only matching tensors. A single one may be given as a string."""
    exclude: tuple[str, ...] = ()
    max_shard_size: int | str | None = None
    """A number of bytes, or text like '5GB'."""
    imatrix: Path | None = None
    """llama.cpp's importance matrix."""

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            given = getattr(self, name)
            patterns = (given,) if isinstance(given, str) else tuple(given)
            if not all(isinstance(pattern, str) for pattern in patterns):
                raise TypeError(f"{name}={given!r}: give patterns of names, such as '*.bias'")
            object.__setattr__(self, name, patterns)


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the target: its recipe, its form, and the tensors that the file stores for it."""

    name: str
    recipe: Recipe
    form: Form
    slots: Mapping[str, OutgoingInfo]
    """The stored tensors by part: `data`, and for MLX's words `scales` and `biases`."""
    importance: NDArray[np.float32] | None = None
    """Importance of columns, one row for each stacked matrix; None if the encoder does not use
    it."""

    @property
    def is_kept(self) -> bool:
        """Whether the stored bytes are copied unchanged."""
        if self.form.scheme is not None:
            return self.form.scheme == scheme_of(self.recipe)
        return self.form.dtype is self.recipe.encoding.dtype

    @property
    def rows(self) -> int:
        return rows_of(self.recipe)

    @property
    def columns(self) -> int:
        return columns_of(self.recipe)

    @property
    def nbytes(self) -> int:
        return sum(slot.nbytes for slot in self.slots.values())

    @property
    def stored_as(self) -> str:
        return (self.form.scheme or plain(self.form.dtype).name).upper()


@dataclass(frozen=True)
class ConversionPlan:
    """Everything about a conversion that is decided before a tensor is read."""

    files: ModelFiles
    format: str
    items: tuple[PlannedTensor, ...]
    output: Output
    settings: Settings
    metadata: Mapping[str, Any]
    """The metadata of the target's files."""
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the target's tensors."""
        return sum(item.nbytes for item in self.items)


def make_plan(
    source: str | Path | ModelFiles, target: str | Path, settings: Settings
) -> ConversionPlan:
    """Read the source's headers and decide everything. The source may be a `ComputedModel`, whose
    tensors are computed while they are written.

    Raises FormatError, DtypeError or QuantizationError for what cannot be converted.
    """
    files = source if isinstance(source, ModelFiles) else formats.read(source)
    _check_shard_size(settings.max_shard_size)
    path = Path(target) if Path(target).name not in ("", "..") else Path(target).resolve()
    check_path(path)
    target_format = _target_format(path, settings)
    _check_target(files, path)
    format = target_format.name
    config = translate.config_of(files)
    recipes, notes = _named(files, config, target_format)
    importance = _importance(settings, target_format)
    facts = _facts(files, config, recipes, bool(importance))
    dtype = _float_type(settings.dtype)
    # Only models with a known configuration get llama.cpp's rules for small tensors.
    for_llama = bool(config) and (not conventions_of(files).mixtures or dtype is not None)
    form_of = chooser(format, settings.quantize, dtype, facts, for_llama)
    items = tuple(
        _item(name, recipe, form_of(name, recipe), importance.get(name))
        for name, recipe in _wanted(files, recipes, settings).items()
    )
    if not items:
        raise FormatError(f"{files.path}: no tensor is left by --include and --exclude")
    if importance and all(item.importance is None for item in items):
        problem = "no tensor gets a type whose encoder uses importance: leave it out"
        raise FormatError(f"{settings.imatrix}: {problem}")
    metadata = _metadata(files, config, target_format, settings, items)
    output = writing.plan(
        path,
        [slot for item in items for slot in item.slots.values()],
        metadata,
        target_format,
        max_shard_size=settings.max_shard_size,
        files=_companions(files, config, items) if target_format.is_folder(path) else {},
    )
    _check_source_stays(files, output)
    return ConversionPlan(files, format, items, output, settings, metadata, notes)


def _importance(settings: Settings, format: FileFormat) -> Importance:
    path, wanted = settings.imatrix, settings.quantize
    if path is None:
        return {}
    if not format.conventions.mixtures or wanted is None or wanted.lower() in FLOATS:
        raise FormatError(f"{path}: importance is for GGUF's mixtures: add --quantize q4_k_m")
    from lbrx.files.formats import imatrix

    return imatrix.read(path)


def _target_format(path: Path, settings: Settings) -> FileFormat:
    if settings.to is None and not path.suffix:
        wanted = (settings.quantize or "").upper()
        folders = (each for each in FORMATS.whole().values() if each.shards is not None)
        return next((each for each in folders if each.holds(wanted)), FORMATS[Format.SAFETENSORS])
    if settings.to is None and path.suffix not in (known := writing.extensions()):
        raise FormatError(f"{path} does not end in {', '.join(known)}: give --to")
    return writing.format_for(path, settings.to)


def _check_shard_size(size: int | str | None) -> None:
    """Raises FormatError for shards so small that a unit is probably missing."""
    if size is not None and writing.parse_size(size) < _SMALLEST_SHARD:
        raise FormatError(f"{size!r} is too small for a shard: write it like '5GB' or '512MiB'")


def _check_target(files: ModelFiles, path: Path) -> None:
    own = () if isinstance(files, ComputedModel) else (files.path,)
    if path.resolve() in {file.resolve() for file in (*own, *files.paths)}:
        raise FormatError(f"{path} is also the source: give another name")


def _check_source_stays(files: ModelFiles, output: Output) -> None:
    """Raises FormatError if the target would replace the weights of the source."""
    if not output.is_folder:
        return
    replaced = {output.path / name for name in output.layouts}
    replaced.update(file for pattern in writing.OLD_WEIGHTS for file in output.path.glob(pattern))
    if lost := {file.resolve() for file in replaced} & {file.resolve() for file in files.paths}:
        raise FormatError(
            f"{min(lost)} belongs to the source and would be replaced: give another name"
        )


def _float_type(name: str | None) -> Dtype | None:
    if name is not None and name.lower() not in FLOATS:
        raise DtypeError(f"{name!r} is not a floating type: give f32, f16 or bf16")
    return None if name is None else FLOATS[name.lower()]


def _named(
    files: ModelFiles, config: Mapping[str, Any], format: FileFormat
) -> tuple[Mapping[str, Recipe], tuple[str, ...]]:
    """Recipes under the target's names, and notes for the user."""
    source, target = conventions_of(files), format.conventions
    if source.describes_itself:
        if source is target:
            return files.tensors, ()
        if not config and target.rename is None:
            name = files.metadata.get("general.architecture")
            note = f"architecture {name!r} has no table: tensors keep GGUF's names"
            return files.tensors, (note,)
    tensors = translate.to_huggingface(files)
    if target.rename is None:
        return tensors, tuple(_left_out(files, tensors, format.name))
    if not config:
        lost = ", and no metadata is written" if target.describes_itself else ""
        return tensors, (f"there is no config.json: tensors keep their names{lost}",)
    notes = _unsaid(files, config) if target.describes_itself else []
    tensors = target.rename(tensors, config)
    return tensors, (*notes, *_left_out(files, tensors, format.name))


def _unsaid(files: ModelFiles, config: Mapping[str, Any]) -> list[str]:
    """Notes about what a GGUF does not say of a model."""
    notes = [] if files.tokenizer else ["there is no tokenizer: the GGUF has no vocabulary"]
    if unsaid := translate.unsaid_in_gguf(config):
        notes.append(f"GGUF has no keys for {', '.join(unsaid)}: they are lost")
    return notes


def _left_out(files: ModelFiles, recipes: Mapping[str, Recipe], format: str) -> list[str]:
    """A note about the tensors that the target does not have."""
    if isinstance(files, ComputedModel):  # a merge need not use all tensors of its models
        return []
    counts = translate.left_out(files, recipes.values())
    if not counts:
        return []
    number = sum(counts.values())
    told = [f"{name} ({count})" for name, count in list(counts.items())[:_TOLD]]
    told += ["..."] if len(counts) > _TOLD else []
    what, them = ("tensor is", "it") if number == 1 else ("tensors are", "them")
    reason = f"as {format} has no names for {them}"
    return [f"{number} {what} left out, {reason}: {', '.join(told)}"]


def _facts(
    files: ModelFiles, config: Mapping[str, Any], recipes: Mapping[str, Recipe], importance: bool
) -> quant.ModelFacts:
    layers = [int(found[1]) for name in recipes if (found := _LAYER.match(name))]
    prefix = f"{files.metadata.get('general.architecture')}."
    counts = [
        config.get(key, files.metadata.get(prefix + own))
        for key, own in (
            ("num_attention_heads", "attention.head_count"),
            ("num_key_value_heads", "attention.head_count_kv"),
            ("num_local_experts", "expert_count"),
        )
    ]
    heads, shared, experts = (n if isinstance(n, int) and n > 0 else 0 for n in counts)
    return quant.ModelFacts(
        layers=max(layers, default=0) + 1,
        tied_embeddings="output.weight" not in recipes,
        queries_per_key=heads // shared if heads and shared else 1,
        experts=experts,
        importance=importance,
    )


def _wanted(
    files: ModelFiles, recipes: Mapping[str, Recipe], settings: Settings
) -> dict[str, Recipe]:
    """The tensors that the patterns select, by the name in the target or in the source."""
    original = {info.source: name for name, info in files.tensors.items()}
    result = {}
    for name, recipe in recipes.items():
        names = {name}
        if files.tensors.get(name) is not recipe:  # tensors of PyTorch may share one source
            names.update(original.get(info.source, name) for info in stored(recipe))
        included = not settings.include or _match(names, settings.include)
        if included and not _match(names, settings.exclude):
            result[name] = recipe
    return result


def _match(names: set[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _item(
    name: str,
    recipe: Recipe,
    form: Form,
    importance: NDArray[np.float32] | None,
) -> PlannedTensor:
    if form.scheme is None:
        slots = {"data": OutgoingInfo(name, plain(form.dtype), recipe.shape)}
    elif form.scheme.upper() in ENCODINGS:
        slots = {"data": OutgoingInfo(name, ENCODINGS[form.scheme.upper()], recipe.shape)}
    else:
        slots = _word_slots(name, recipe, form)
    heeded = importance is not None and _heeds_importance(form)
    return PlannedTensor(
        name, recipe, form, slots, _in_rows(name, recipe, importance) if heeded else None
    )


def _heeds_importance(form: Form) -> bool:
    return form.scheme in quant.SCHEMES and quant.find(form.scheme).heeds_importance


def _in_rows(
    name: str, recipe: Recipe, importance: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Importance as rows: one, or one for each matrix of a stack."""
    assert importance is not None
    matrices = math.prod(recipe.shape[:-2])
    if importance.size not in (columns_of(recipe), matrices * columns_of(recipe)):
        problem = f"{importance.size:,} numbers do not fit shape {recipe.shape}"
        raise FormatError(f"importance of {name!r}: {problem}")
    return importance.reshape(-1, columns_of(recipe))


def _word_slots(name: str, recipe: Recipe, form: Form) -> dict[str, OutgoingInfo]:
    scheme = quant.find(form.scheme or "")
    slots = {}
    for part in scheme.fields:
        own = name if part == "data" else f"{name.removesuffix('.weight')}.{part}"
        kept = scheme.keeps_dtype and part != "data"
        dtype = form.dtype if kept else dt.parse(scheme.layout[part].base)
        slots[part] = OutgoingInfo(own, plain(dtype), scheme.part_shape(part, recipe.shape))
    return slots


def _metadata(
    files: ModelFiles,
    config: Mapping[str, Any],
    format: FileFormat,
    settings: Settings,
    items: Sequence[PlannedTensor],
) -> Mapping[str, Any]:
    """The metadata of the weights' files."""
    if not format.conventions.describes_itself:
        return format.marks(files)
    if not conventions_of(files).describes_itself and not config:
        return {"general.name": name_of(files.path)}
    result = companions.gguf_metadata(files, config)
    number = _file_type(files, settings)
    if number is not None:
        result["general.file_type"] = number
    if settings.imatrix is not None:
        result["quantize.imatrix.file"] = settings.imatrix.name
        heeded = sum(item.importance is not None for item in items)
        result["quantize.imatrix.entries_count"] = heeded
    if any(item.form.scheme for item in items):
        result["general.quantization_version"] = _QUANTIZATION_VERSION
    return result


def _file_type(files: ModelFiles, settings: Settings) -> int | None:
    wanted = settings.quantize and settings.quantize.lower()
    if wanted is None:
        number = files.metadata.get("general.file_type")
        return number if isinstance(number, int) else None
    return FILE_TYPES[FLOATS[wanted]] if wanted in FLOATS else quant.find_mixture(wanted).file_type


def _companions(
    files: ModelFiles,
    config: Mapping[str, Any],
    items: Sequence[PlannedTensor],
) -> dict[str, bytes]:
    """The files of a folder besides the weights."""
    result = companions.folder_files(files, config)
    own = json.loads(result.get("config.json", b"{}"))
    if own:
        own |= {"torch_dtype": _usual_type(items).name}
    schemes = {
        item.name.removesuffix(".weight"): item.form.scheme
        for item in items
        if item.form.scheme and item.form.scheme.upper() not in ENCODINGS
    }
    if schemes:
        chosen = mlx.quantization_config(schemes)
        own |= {"quantization": chosen, "quantization_config": chosen}
    if own:
        result["config.json"] = (json.dumps(own, indent=2, ensure_ascii=False) + "\n").encode()
    return result


def _usual_type(items: Sequence[PlannedTensor]) -> Dtype:
    """The floating type that most values have."""
    counts: dict[Dtype, int] = {}
    for item in items:
        if item.form.dtype.is_float:
            counts[item.form.dtype] = counts.get(item.form.dtype, 0) + math.prod(item.recipe.shape)
    return max(counts, key=counts.__getitem__, default=dt.float32)
