"""Differences of two models: as a task vector, or as a LoRA adapter of low rank."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.convert.forms import FLOATS
from lbrx.errors import DtypeError, FormatError, LbrxError
from lbrx.files.formats import Format, plain
from lbrx.files.formats.packaged_models import target_path
from lbrx.files.formats.recipe import ComputedModel, ComputedTensor, Recipe
from lbrx.files.stored.adapters import CONFIG, PREFIX, WEIGHTS, write_adapter
from lbrx.files.stored.recipe_arrays import RecipeArrays
from lbrx.merging.config import parse_model
from lbrx.merging.layers import embedding_name
from lbrx.merging.low_rank import low_rank
from lbrx.merging.parent_models import ParentModel, check_same_architecture, open_parent
from lbrx.merging.plan import stored_tensors
from lbrx.tensors import Tensor
from lbrx.tensors.placement import default_device

Values = NDArray[Any]
Progress = Callable[[int, int], None]
"""A function that is called with the number of values that are done, and that of all."""


@dataclass(frozen=True)
class Difference:
    """A `TensorFunction`: the first source minus the second, in float32."""

    is_elementwise: bool = True

    def __call__(self, sources: Sequence[Tensor]) -> Tensor:
        tuned, base = (source.astype(dt.float32) for source in sources)
        return tuned - base


@dataclass(frozen=True)
class ModelPair:
    """A model and one that was trained from it, with the same tensors."""

    base: ParentModel
    tuned: ParentModel

    @cached_property
    def floats(self) -> dict[str, tuple[Recipe, Recipe]]:
        """The recipes of both by name: of the tuned model, then of the base."""
        return {
            name: (recipe, self.base.recipes[name])
            for name, recipe in self.tuned.recipes.items()
            if recipe.encoding.decoded.is_float
        }


ModelName = str | os.PathLike[str]
"""A model's path or name, or `path+lora`."""


def open_pair(base: ModelName, tuned: ModelName) -> ModelPair:
    """Read the headers of both models.

    Raises FormatError if their tensors differ in names or shapes.
    """
    pair = ModelPair(*(open_parent(parse_model(os.fspath(path)), {}) for path in (base, tuned)))
    check_same_architecture([pair.base, pair.tuned])
    first, second = pair.base.recipes, pair.tuned.recipes
    for name in sorted(first.keys() ^ second.keys()):
        owner, other = (base, tuned) if name in first else (tuned, base)
        raise FormatError(f"{owner} has {name}, and {other} does not: give models of one kind")
    for name, recipe in second.items():
        if recipe.shape != first[name].shape:
            raise FormatError(
                f"{name} is {first[name].shape} in {base} and {recipe.shape} in {tuned}: a "
                "difference needs equal shapes"
            )
    return pair


def task_vector(base: ModelName, tuned: ModelName, dtype: str | None = None) -> ComputedModel:
    """A model whose tensors are those of `tuned` minus those of `base`: computed in float32 and
    rounded to `dtype`, by default the stored type of `tuned`. Conversion writes it."""
    pair = open_pair(base, tuned)
    wanted = _float_type(dtype)
    recipes = dict(pair.tuned.recipes)
    for name, (own, other) in pair.floats.items():
        encoding = plain(wanted or _stored_type(own))
        recipes[name] = ComputedTensor(name, (own, other), encoding, own.shape, Difference())
    return ComputedModel(
        pair.tuned.files.path,
        Format.SAFETENSORS,
        stored_tensors([pair.base, pair.tuned]),
        config=pair.tuned.config,
        generation_config=pair.tuned.files.generation_config,
        tokenizer=pair.tuned.files.tokenizer,
        recipes=recipes,
        companions=pair.tuned.companions,
    )


def _float_type(name: str | None) -> Dtype | None:
    if name is not None and name.lower() not in FLOATS:
        raise DtypeError(f"{name!r:.40} is not a floating type: give f32, f16 or bf16")
    return None if name is None else FLOATS[name.lower()]


def _stored_type(recipe: Recipe) -> Dtype:
    stored = recipe.encoding.dtype
    return stored if stored in FLOATS.values() and stored is not None else dt.float32


@dataclass(frozen=True)
class LoraOptions:
    """How an adapter is extracted."""

    rank: int = 64
    exact: bool = False
    """Whether large matrices get an exact decomposition, which takes many times longer."""
    dtype: str | None = None
    """The type of the adapter's tensors; by default the stored type of the tuned model."""
    force: bool = False
    """Whether files of an existing folder may be replaced."""


@dataclass
class ExtractedLora:
    """An adapter in memory, and how much of the difference it has."""

    rank: int
    tensors: dict[str, Values] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    """The rank of each module."""
    whole: list[str] = field(default_factory=list)
    """Tensors that are stored as they are in the tuned model: vectors."""
    squares: float = 0.0
    kept_squares: float = 0.0

    @property
    def kept(self) -> float:
        """The share of the matrices' squared difference that the adapter has."""
        return self.kept_squares / self.squares if self.squares else 1.0

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self.tensors.values())

    def config(self, base: str) -> dict[str, Any]:
        """PEFT's adapter_config.json. alpha is the rank, so that the product has the factor 1."""
        smaller = {module: rank for module, rank in self.ranks.items() if rank != self.rank}
        saved = {name.rpartition(".")[0] for name in self.whole if not name.endswith(".bias")}
        biases = any(name.endswith(".bias") for name in self.whole)
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.rank,
            "lora_dropout": 0.0,
            "target_modules": sorted({module.rpartition(".")[2] for module in self.ranks}),
            "modules_to_save": sorted(saved) or None,
            "bias": "all" if biases else "none",
            "rank_pattern": smaller,
            "alpha_pattern": smaller,
            "fan_in_fan_out": False,
            "inference_mode": True,
        }


def extract_lora(
    base: ModelName,
    tuned: ModelName,
    out: str | os.PathLike[str],
    options: LoraOptions | None = None,
    *,
    device: str | None = None,
    progress: Progress = lambda done, total: None,
) -> ExtractedLora:
    """Write the difference of two models as a LoRA adapter in PEFT's layout.

    Each matrix D that differs becomes B A with A = sqrt(S) V^T and B = U sqrt(S) of the first
    `rank` singular values; other tensors that differ are stored whole. The factors stay in memory
    until the end. Raises FormatError for models that do not fit each other.
    """
    wanted = options or LoraOptions()
    if wanted.rank < 1:
        raise LbrxError(f"a rank of {wanted.rank} is too small: give 1 or more")
    target = target_path(out)
    if target.exists() and not wanted.force and any((target / n).exists() for n in _names()):
        raise LbrxError(f"{target} has an adapter already: give another name, or --force")
    pair = open_pair(base, tuned)
    extraction = _Extraction(pair, wanted, default_device() if device is None else device)
    total = sum(math.prod(own.shape) for own, _ in pair.floats.values())
    done = 0
    for name, (own, _) in pair.floats.items():
        extraction.add(name)
        done += math.prod(own.shape)
        progress(done, total)
    if not extraction.result.tensors:
        raise FormatError(f"{tuned} does not differ from {base}: there is nothing to extract")
    _write(target, extraction.result, os.fspath(base))
    return extraction.result


def _names() -> tuple[str, ...]:
    return CONFIG, WEIGHTS[0]


class _Extraction:
    """Adds what an adapter has of each tensor: two factors, or the whole of it."""

    def __init__(self, pair: ModelPair, options: LoraOptions, device: str) -> None:
        self.result = ExtractedLora(options.rank)
        self._pair = pair
        self._options = options
        self._device = device
        self._arrays = RecipeArrays(device)
        self._embedding = embedding_name(pair.tuned.recipes)

    def add(self, name: str) -> None:
        own, other = self._pair.floats[name]
        dtype = _float_type(self._options.dtype) or _stored_type(own)
        recipe = ComputedTensor(name, (own, other), plain(dt.float32), own.shape, Difference())
        change = Tensor(self._arrays.array(recipe))
        if not change.numpy().any():
            return
        if len(own.shape) == 2 and name.endswith(".weight"):
            self._add_factors(name.removesuffix(".weight"), change, dtype)
            return
        self.result.whole.append(name)
        whole = Tensor(self._arrays.array(own)).numpy()
        module, _, kind = name.rpartition(".")
        # PEFT wraps a layer that has an adapter, and its bias is then that of `base_layer`.
        wrapped = ".base_layer" if kind == "bias" and self._has_factors(f"{module}.weight") else ""
        self.result.tensors[f"{PREFIX}{module}{wrapped}.{kind}"] = whole.astype(dtype.numpy)

    def _has_factors(self, name: str) -> bool:
        """Whether a module is a matrix, to which PEFT gives factors."""
        weight = self._pair.tuned.recipes.get(name)
        return weight is not None and len(weight.shape) == 2

    def _add_factors(self, module: str, change: Tensor, dtype: Dtype) -> None:
        is_embedding = f"{module}.weight" == self._embedding
        matrix = change.to_device(self._device)
        rank = min(self._options.rank, *change.shape)
        # PEFT's factors of an embedding are those of its transpose.
        factors = low_rank(matrix.T if is_embedding else matrix, rank, exact=self._options.exact)
        part, end = ("lora_embedding_", "") if is_embedding else ("lora_", ".weight")
        for letter, factor in (("A", factors.a), ("B", factors.b)):
            key = f"{PREFIX}{module}.{part}{letter}{end}"
            self.result.tensors[key] = factor.astype(dtype.numpy)
        self.result.ranks[module] = rank
        squares = float(np.vdot(change.numpy(), change.numpy()))
        self.result.squares += squares
        self.result.kept_squares += factors.kept * squares


def _write(target: Path, adapter: ExtractedLora, base: str) -> None:
    """Write an extracted adapter."""
    write_adapter(target, adapter.tensors, adapter.config(base))


def applied(base: str, lora: str) -> dict[str, Any]:
    """The configuration of a merge that applies an adapter to a model."""
    model = {"model": {"model": base, "lora": lora}}
    return {"merge_method": "passthrough", "models": [model]}
