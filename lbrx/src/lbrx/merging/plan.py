"""The plan of a merge: everything is decided from headers, before tensors are read or written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.convert.forms import FLOATS
from lbrx.errors import FormatError
from lbrx.files.formats import Format, TensorInfo, plain
from lbrx.files.formats.checks import shown
from lbrx.files.formats.recipe import ComputedModel, ComputedTensor, Recipe, nesting_of, renamed
from lbrx.merging.config import MergeConfig, ModelReference, OutputSlice, SliceSource
from lbrx.merging.config_fields import suggestion
from lbrx.merging.layers import (
    LayerNames,
    embedding_name,
    has_vocabulary,
    layer_names,
    rebuilt_lists,
)
from lbrx.merging.merge_function import MergeFunction, frozen
from lbrx.merging.methods import Base, Method
from lbrx.merging.model_card import model_card
from lbrx.merging.parameters import check_names, find_method, resolve
from lbrx.merging.parent_models import (
    ParentModel,
    check_same_architecture,
    differing_settings,
    open_parent,
)
from lbrx.merging.tokenizer_companions import staged, tokenizer_companions
from lbrx.merging.vocabulary import (
    Alignment,
    align,
    aligned_embeddings,
    aligned_summary,
    check_same,
)

# Each layer of a source is some ten recipes.
_MAX_LAYERS = 20_000
# Stages that use earlier ones: recipes are walked recursively, and shared ones once for each use.
_MAX_COMPUTED = 4_096
_MAX_DEPTH = 100


@dataclass(frozen=True)
class MergePlan:
    """A merged model that is not computed yet, and what there is to say about it."""

    config: MergeConfig | None
    """None for a mixture of experts."""
    model: ComputedModel
    models: tuple[ParentModel, ...]
    """The base model or the first, then the others."""
    vocabulary: str
    """One line about the merged vocabulary."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Place:
    """A tensor of the merged model: its name, its tensor in each source of a slice, and where in
    the slice it is, from 0 to 1."""

    name: str
    sources: tuple[str, ...]
    part: OutputSlice
    t: float


@dataclass(frozen=True)
class _Planner:
    """What all tensors of a merge need."""

    config: MergeConfig
    method: Method
    models: Mapping[ModelReference, ParentModel]
    reference: ParentModel
    alignment: Alignment | None
    dtype: Dtype | None
    """The type of the merged tensors; None keeps that of the base model or the first."""
    exact: bool
    """Whether the results stay in float32, for quantizing them, and copies as they are stored."""
    seed: int
    names: Mapping[ModelReference, LayerNames] = field(repr=False)


def plan_merge(
    config: MergeConfig,
    *,
    name: str = "merged",
    stages: Mapping[str, ComputedModel] | None = None,
    seed: int = 0,
    exact: bool = False,
    text: str = "",
    notes: Sequence[str] = (),
) -> MergePlan:
    """Read the headers of all models and decide everything.

    `name` is the merged model's, `stages` are results that the configuration may name as models,
    and `exact` keeps the results in float32, for quantizing them. `text` is the configuration for
    the model card, and `notes` those of earlier stages. Raises FormatError for models that cannot
    be merged and for parameters that the method does not have.
    """
    method = find_method(config.method)
    told = [*notes, *check_names(config, method)]
    models = {ref: open_parent(ref, stages or {}) for ref in _all_references(config)}
    taking_part = [models[ref] for ref in config.references()]
    check_same_architecture(taking_part)
    told += differing_settings(taking_part)
    reference = taking_part[0]
    alignment = None
    if config.tokenizer is not None:
        alignment = align(config.tokenizer, models, reference)
    else:
        told += check_same(taking_part)
    planner = _Planner(
        config,
        method,
        models,
        reference,
        alignment,
        dt.float32 if exact else _result_type(config),
        exact,
        seed,
        {model.reference: layer_names(model) for model in taking_part},
    )
    slices = _slices(planner)
    recipes = {place.name: _merged(planner, place) for place in _places(planner, slices)}
    _check_nesting(config, recipes)
    files = _companions(planner, told)
    files["README.md"] = model_card(config, taking_part, name, text).encode()
    files["mergekit_config.yml"] = text.encode()
    model = _computed_model(planner, slices, recipes, Path(name), files)
    summary = aligned_summary(alignment) if alignment else _same_vocabulary(reference)
    return MergePlan(config, model, tuple(taking_part), summary, tuple(dict.fromkeys(told)))


def _all_references(config: MergeConfig) -> list[ModelReference]:
    """The models that take part, and those that only a tokenizer setting names."""
    result = config.references()
    settings = config.tokenizer
    if settings is not None and isinstance(settings.source, ModelReference):
        result.append(settings.source)
    return list(dict.fromkeys(result))


def _same_vocabulary(reference: ParentModel) -> str:
    name = embedding_name(reference.recipes)
    rows = f"{reference.recipes[name].shape[0]:,} rows" if name else "no embedding"
    return f"{rows}, the same in all models"


def _result_type(config: MergeConfig) -> Dtype | None:
    for key, name in (("out_dtype", config.out_dtype), ("dtype", config.dtype)):
        if name is None:
            continue
        if name.lower() not in FLOATS:
            raise FormatError(
                f"{key} {name!r:.40} is not a floating type{suggestion(name, FLOATS)}"
            )
        return FLOATS[name.lower()]
    return None


def _slices(planner: _Planner) -> tuple[OutputSlice, ...]:
    """The slices of the configuration, or one with all layers of all models."""
    config, method = planner.config, planner.method
    slices = config.body.slices or (_whole_models(planner),)
    layers = sum(last - first for part in slices for first, last in _ranges(part))
    if layers > _MAX_LAYERS:
        problem = f"the merge has {layers:,} layers of its sources"
        raise FormatError(f"{problem}: give slices and models with at most {_MAX_LAYERS:,}")
    for number, part in enumerate(slices):
        _check_slice(planner, part, f"slices[{number}]" if config.body.slices else "the merge")
    if not slices[0].sources:
        raise FormatError(f"{method.name} needs models: list them under models")
    return slices


def _ranges(part: OutputSlice) -> list[tuple[int, int]]:
    return [source.layer_range for source in part.sources]


def _check_nesting(config: MergeConfig, recipes: Mapping[str, Recipe]) -> None:
    """Raises FormatError for tensors that other merges of the same configuration make too long to
    compute: each use of a result computes it again."""
    stage = "the final merge" if config.name is None else f"the merge {shown(config.name)}"
    remedy = "write one of the merges that it uses to files, and give these as a model"
    for name, recipe in recipes.items():
        count, depth = nesting_of(recipe)
        if count > _MAX_COMPUTED:
            problem = f"{name} would be computed from {count - 1:,} others"
            raise FormatError(f"{stage}: {problem}, more than {_MAX_COMPUTED:,}: {remedy}")
        if depth > _MAX_DEPTH:
            problem = f"more than {_MAX_DEPTH} computations follow each other for {name}"
            raise FormatError(f"{stage}: {problem}: {remedy}")


def _whole_models(planner: _Planner) -> OutputSlice:
    config = planner.config
    entries = {entry.model: entry for entry in config.body.models}
    layers = {ref: len(planner.names[ref].layers) for ref in config.references()}
    first = planner.reference.reference
    for reference, count in layers.items():
        if reference in entries and count != layers[first]:
            raise FormatError(
                f"{first} has {layers[first]} layers and {reference} has {count}: choose layers "
                "with slices"
            )
    sources = [
        SliceSource(entry.model, (0, layers[entry.model]), entry.parameters)
        for entry in config.body.models
    ]
    base = config.base_model
    if base is not None and base not in entries and planner.method.base is not Base.UNUSED:
        sources.insert(0, SliceSource(base, (0, layers[base])))
    return OutputSlice(tuple(sources))


def _check_slice(planner: _Planner, part: OutputSlice, place: str) -> None:
    """Raises FormatError if layers do not exist, or if the method takes other numbers of models."""
    method = planner.method
    counts = {last - first for first, last in _ranges(part)}
    if len(counts) > 1:
        ranges = ", ".join(str(list(one)) for one in _ranges(part))
        raise FormatError(f"{place}: the sources have different numbers of layers: {ranges}")
    for source in part.sources:
        layers = len(planner.names[source.model].layers)
        if source.layer_range[1] > layers:
            raise FormatError(
                f"{place}: {source.model} has {layers} layers: layer_range "
                f"{list(source.layer_range)} ends after them"
            )
    _check_tensors(planner, part)
    base = _base_of(planner, part)
    wanted = part.base_model or planner.config.base_model
    if method.base is Base.REQUIRED and wanted is None:
        raise FormatError(f"{method.name} needs a base model: add base_model (--base)")
    if method.base is not Base.UNUSED and wanted is not None and base is None:
        raise FormatError(f"{place} has no source of the base model {wanted}: add its layers")
    least, most = method.models
    count = len(part.sources) - (base is not None)
    if count < least or (most is not None and count > most):
        besides = " besides the base model" if method.base is not Base.UNUSED else ""
        limits = f"{least}" if least == most else f"at least {least}"
        limits = f"{limits} and at most {most}" if most not in (None, least) else limits
        models = "model" if limits == "1" else "models"
        raise FormatError(f"{method.name} merges {limits} {models}{besides}: {place} has {count}")


def _check_tensors(planner: _Planner, part: OutputSlice) -> None:
    """Raises FormatError if a source has tensors that the first one lacks: they would be lost."""
    first = part.sources[0]
    for source in part.sources[1:]:
        mine, theirs = planner.names[first.model], planner.names[source.model]
        count = min(first.layer_range[1] - first.layer_range[0], len(theirs.layers))
        pairs = [
            (mine.layers[first.layer_range[0] + i], theirs.layers[source.layer_range[0] + i])
            for i in range(count)
        ]
        pairs.append(((*mine.before, *mine.after), (*theirs.before, *theirs.after)))
        for own, other in pairs:
            more = [name for name in other if name not in own and "lm_head" not in name]
            if more:
                raise FormatError(
                    f"{source.model} has {more[0]}, which {first.model} does not have: merge "
                    "models of one architecture"
                )


def _base_of(planner: _Planner, part: OutputSlice) -> int | None:
    """The number of the source that is the base model, where the method uses one."""
    wanted = part.base_model or planner.config.base_model
    if planner.method.base is Base.UNUSED or wanted is None:
        return None
    found = (i for i, source in enumerate(part.sources) if source.model == wanted)
    return next(found, None)


def _places(planner: _Planner, slices: Sequence[OutputSlice]) -> Iterator[_Place]:
    """The tensors of the merged model in order. Those before the layers have the sources of the
    first slice and those after them the sources of the last; both have t = 0."""
    names = planner.names[planner.reference.reference]
    for name in names.before:
        yield _Place(name, (name,) * len(slices[0].sources), slices[0], 0.0)
    layer = 0
    for part in slices:
        firsts = [source.layer_range[0] for source in part.sources]
        count = part.sources[0].layer_range[1] - firsts[0]
        for i in range(count):
            owners = [planner.names[source.model] for source in part.sources]
            t = i / (count - 1) if count > 1 else 1.0
            for rest in owners[0].layers[firsts[0] + i]:
                sources = [own.name(n + i, rest) for own, n in zip(owners, firsts, strict=True)]
                yield _Place(names.name(layer, rest), tuple(sources), part, t)
            layer += 1
    for name in names.after:
        if not _is_tied(planner.reference, name):
            yield _Place(name, (name,) * len(slices[-1].sources), slices[-1], 0.0)


def _is_tied(model: ParentModel, name: str) -> bool:
    """Whether a tensor is the output projection of a model that uses its embedding for it."""
    return "lm_head" in name and bool(model.setting("tie_word_embeddings"))


def _merged(planner: _Planner, place: _Place) -> Recipe:
    """The recipe of one tensor. Raises FormatError for missing tensors and different shapes."""
    part, method = place.part, planner.method
    models = [planner.models[source.model] for source in part.sources]
    pairs = zip(models, place.sources, strict=True)
    recipes = [_source(planner, model, name) for model, name in pairs]
    base = _base_of(planner, part)
    if planner.alignment is not None and has_vocabulary(place.name):
        recipes = aligned_embeddings(planner.alignment, models, recipes, base)
    _check_shapes(place, models, recipes)
    main = recipes[0 if base is None else base]
    if not main.encoding.decoded.is_float:
        return renamed(main, place.name)
    shared = (part.parameters, planner.config.body.parameters, planner.config.parameters)
    own = [
        frozen(resolve(method.own, (source.parameters, *shared), name, place.t))
        for i, (source, name) in enumerate(zip(part.sources, place.sources, strict=True))
        if i != base
    ]
    others = [recipe for i, recipe in enumerate(recipes) if i != base]
    function = MergeFunction(
        method.name,
        place.name,
        base is not None,
        frozen(resolve(method.parameters, shared, place.name, place.t)),
        tuple(own),
        planner.seed if method.is_random else 0,
        tuple(str(model) for i, model in enumerate(models) if i != base),
    )
    if _is_copy(function):
        return _copied(planner, others[0], place.name)
    sources = (*([] if base is None else [main]), *others)
    encoding = plain(planner.dtype or _stored_type(planner, main))
    return ComputedTensor(place.name, sources, encoding, main.shape, function)


def _is_copy(function: MergeFunction) -> bool:
    """Whether the result is the tensor of one model as it is."""
    return function.method == "passthrough" and dict(function.own[0])["scale"] in (None, 1.0)


def _copied(planner: _Planner, recipe: Recipe, name: str) -> Recipe:
    """A tensor with its stored bytes, or cast where the configuration asks for another type."""
    wanted = planner.dtype
    if isinstance(recipe, ComputedTensor):
        wanted = wanted or _stored_type(planner, recipe)
    elif planner.exact:
        wanted = None
    if wanted in (None, recipe.encoding.dtype):
        return renamed(recipe, name)
    function = MergeFunction("passthrough", name, False, (), (frozen({"scale": None}),))
    assert wanted is not None
    return ComputedTensor(name, (recipe,), plain(wanted), recipe.shape, function)


def _stored_type(planner: _Planner, recipe: Recipe) -> Dtype:
    """The type of a merged tensor where the configuration gives none: the stored one. Results of
    adapters and alignments are float32 on the way, and have the type of what they change."""
    while isinstance(recipe, ComputedTensor) and not isinstance(recipe.function, MergeFunction):
        recipe = recipe.sources[0]
    stored = recipe.encoding.dtype
    if stored is not None:
        return stored if stored in FLOATS.values() else dt.float32
    declared = str(planner.reference.setting("torch_dtype"))
    return FLOATS.get(declared, dt.float16)  # the type of GGUF's scales


def _source(planner: _Planner, model: ParentModel, name: str) -> Recipe:
    """A model's tensor. The output projection of tied embeddings is the embedding."""
    if name in model.recipes:
        return model.recipes[name]
    embedding = embedding_name(model.recipes)
    if _is_tied(model, name) and embedding is not None:
        return model.recipes[embedding]
    raise FormatError(
        f"{model} has no tensor {name}, which {planner.reference} has: merge models of one "
        "architecture"
    )


def _check_shapes(place: _Place, models: Sequence[ParentModel], recipes: Sequence[Recipe]) -> None:
    for model, recipe in zip(models, recipes, strict=True):
        if recipe.shape != recipes[0].shape:
            rows_only = recipe.shape[1:] == recipes[0].shape[1:]
            aligned = ": add tokenizer_source to align vocabularies"
            other = ": merge models of one size"
            remedy = aligned if rows_only and has_vocabulary(place.name) else other
            raise FormatError(
                f"{place.name} is {recipes[0].shape} in {models[0]} and {recipe.shape} in "
                f"{model}{remedy}"
            )


def _tokenizer_donor(planner: _Planner) -> ParentModel:
    """The model whose tokenizer the merged model has."""
    settings = planner.config.tokenizer
    if settings is not None and isinstance(settings.source, ModelReference):
        return planner.models[settings.source]
    return planner.reference


def _companions(planner: _Planner, notes: list[str]) -> dict[str, bytes]:
    """The tokenizer's files."""
    donor = _tokenizer_donor(planner)
    files = planner.alignment.companions if planner.alignment else donor.companions
    return tokenizer_companions(planner.config, list(planner.models.values()), files, notes)


def _computed_model(
    planner: _Planner,
    slices: Sequence[OutputSlice],
    recipes: Mapping[str, Recipe],
    path: Path,
    files: Mapping[str, bytes],
) -> ComputedModel:
    donor = _tokenizer_donor(planner)
    model = ComputedModel(
        path,
        Format.SAFETENSORS,
        stored_tensors(list(planner.models.values())),
        config=_merged_config(planner, slices, donor),
        generation_config=donor.files.generation_config,
        recipes=recipes,
        companions=files,
    )
    return staged(model, donor)


def stored_tensors(models: Sequence[ParentModel]) -> dict[str, TensorInfo]:
    """The stored tensors of all models and adapters."""
    result: dict[str, TensorInfo] = {}
    for number, model in enumerate(models):
        adapter = model.adapter.files.tensors if model.adapter else {}
        for group in (model.files.tensors, adapter):
            result |= {f"{number}:{name}": info for name, info in group.items()}
    return result


_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def _merged_config(
    planner: _Planner, slices: Sequence[OutputSlice], donor: ParentModel
) -> dict[str, Any]:
    """The reference's config.json with the merged model's layers and vocabulary."""
    config = {k: v for k, v in planner.reference.config.items() if k != "_name_or_path"}
    changes: dict[str, Any] = {}
    layers = len(planner.names[planner.reference.reference].layers)
    if planner.config.body.slices:
        order = [n for part in slices for n in range(*part.sources[0].layer_range)]
        changes["num_hidden_layers"] = len(order)
        inside = config.get("text_config")
        for settings in (config, inside if isinstance(inside, Mapping) else {}):
            changes |= rebuilt_lists(settings, layers, [min(n, layers - 1) for n in order])
    if planner.alignment is not None:
        changes["vocab_size"] = planner.alignment.size
        changes |= {key: donor.config[key] for key in _TOKEN_IDS if key in donor.config}
    if not config:
        return {}
    nested = config.get("text_config")
    if not isinstance(nested, Mapping):
        return {**config, **changes}
    inner = {key: value for key, value in changes.items() if key in nested}
    outer = {key: value for key, value in changes.items() if key not in nested or key in config}
    return {**config, **outer, "text_config": {**nested, **inner}}
