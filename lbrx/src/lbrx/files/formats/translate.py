"""Translation of names and layouts between families of files, as recipes. Nothing is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.errors import FormatError
from lbrx.files.formats import architecture_tables
from lbrx.files.formats.architecture_tables import (
    ARCHITECTURES,
    Architecture,
    NameRule,
    hyperparameters,
    rope_scaling,
)
from lbrx.files.formats.checks import bad, brief, shown
from lbrx.files.formats.containers import mlx
from lbrx.files.formats.descriptor import Inline, ModelFiles, TensorInfo, plain
from lbrx.files.formats.file_formats import conventions_of
from lbrx.files.formats.packings import is_read
from lbrx.files.formats.packings.as_mlx import as_mlx
from lbrx.files.formats.quantized_checkpoints import check_readable
from lbrx.files.formats.recipe import (
    ComputedModel,
    Recipe,
    ReorderedHeads,
    ShiftedTensor,
    StackEntry,
    TensorStack,
    renamed,
    stored,
)

_PACKING = ("quantization", "quantization_config")
_MAX_EXPERTS = 4096
# The tensors of a module. Others, such as qweight, belong to packings that lbrx does not read.
_KINDS = ("weight", "bias")
_NUMBER = re.compile(r"(?<=\.)[0-9]{1,6}(?=\.)")
# Tables of llama.cpp, which Hugging Face has as settings or computes.
_GGUF_ONLY = re.compile(r"rope_freqs|rope_factors_(long|short)|blk\.[0-9]+\.attn_rot_embd")
_HUGGINGFACE_ONLY = re.compile(r".*\.rotary_emb\.inv_freq")
_LANGUAGE_PREFIX = re.compile(r"^(language_model\.(?=model|lm_head)|model\.language_model\.)")
_OTHER_PARTS = re.compile(
    r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|audio_tower|embed_(vision|audio))\."
)
# MLX stacks experts, and calls Mixtral's like those of others.
_MIXTRAL = "block_sparse_moe"
_OF_MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_IN_MLX = {ours: theirs for theirs, ours in _OF_MIXTRAL.items()}
_EXPERT = re.compile(
    r"(.*\.(?:block_sparse_moe|mlp))\.experts\.([0-9]{1,6})\.(w[123]|\w+_proj)\.(.*)"
)
_MLX_STACK = re.compile(
    r"(.*\.(?:block_sparse_moe|mlp))\.switch_mlp\.(gate_proj|down_proj|up_proj)\.(.*)"
)


def config_of(files: ModelFiles) -> Mapping[str, Any]:
    """The config.json, or for a GGUF of a known architecture the one made from its metadata."""
    return conventions_of(files).config(files)


def without_packing(files: ModelFiles, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json without settings of packing."""
    is_packed = conventions_of(files).packs_words or is_read(config)
    dropped = _PACKING if is_packed else ()
    return {key: value for key, value in config.items() if key not in dropped}


def to_huggingface(files: ModelFiles) -> dict[str, Recipe]:
    """Recipes for every tensor under Hugging Face's names and in its layout.

    Raises FormatError for a quantization that lbrx does not read.
    """
    if isinstance(files, ComputedModel):
        return dict(files.recipes)
    check_readable(files)
    return conventions_of(files).tensors(files)


def from_mlx(files: ModelFiles) -> dict[str, Recipe]:
    """From MLX's tensors to Hugging Face's: experts one by one."""
    return _without_stacks(mlx.packed_weights(files))


def from_gguf(files: ModelFiles) -> dict[str, Recipe]:
    """From GGUF's names and layout to Hugging Face's."""
    architecture = architecture_tables.of_gguf(files.metadata)
    if architecture is None:
        name = files.metadata.get("general.architecture")
        known = ", ".join(sorted({a.gguf for a in ARCHITECTURES.values()}))
        problem = f"{brief(name)} has no table of names: the known ones are {known}"
        raise bad(files.path, problem, field="metadata 'general.architecture'")
    config = config_of(files)
    rules = {rule.gguf: rule for rule in architecture.rules}
    result: dict[str, Recipe] = {}
    for name, info in files.tensors.items():
        stem, _, kind = name.rpartition(".")
        if _GGUF_ONLY.fullmatch(stem):
            continue
        template, numbers = _template(stem, ("layer",))
        if template not in rules or kind not in _KINDS:
            problem = f"{architecture.gguf}'s table has no such name"
            raise bad(files.path, problem, tensor=name)
        for recipe in _towards_huggingface(rules[template], numbers, kind, info, config):
            if recipe.name in result:
                raise bad(
                    files.path, f"has the same name as another tensor, {recipe.name}", tensor=name
                )
            result[recipe.name] = recipe
    return result


def _template(stem: str, names: tuple[str, ...]) -> tuple[str, dict[str, int]]:
    """A name with its numbers replaced by `{layer}` and the like, and the numbers."""
    numbers = [int(found) for found in _NUMBER.findall(f"{stem}.")]
    kinds = iter(names)
    template = _NUMBER.sub(lambda _: f"{{{next(kinds, 'other')}}}", f"{stem}.")
    return template[:-1], dict(zip(names, numbers, strict=False))


def _towards_huggingface(
    rule: NameRule, numbers: dict[str, int], kind: str, info: TensorInfo, config: Mapping[str, Any]
) -> list[Recipe]:
    if "{expert}" in rule.huggingface:
        names = [f"{rule.huggingface.format(**numbers, expert=e)}.{kind}" for e in _experts(info)]
        return [StackEntry(name, info, e) for e, name in enumerate(names)]
    name = f"{rule.huggingface.format(**numbers)}.{kind}"
    if rule.row and kind == "weight" and len(info.shape) == 1:
        return [replace(info, name=name, shape=(1, *info.shape), strides=None)]
    if rule.heads:
        return [_in_heads(name, info, config, rule.heads, pairs=False)]
    if rule.shift:
        return [ShiftedTensor(name, info, -rule.shift)]
    return [renamed(info, name)]


def _unfit(recipe: Recipe, problem: str, field: str = "shape") -> FormatError:
    """An error about a tensor that names its file."""
    source = next((info.source for info in stored(recipe)), Inline(b""))
    file = "a computed tensor" if isinstance(source, Inline) else source.file
    return bad(file, problem, tensor=recipe.name, field=field)


def _experts(stack: Recipe) -> range:
    """The indices of the experts in a stack, whose number is limited against hostile files."""
    count = stack.shape[0] if len(stack.shape) == 3 else 0
    if not 0 < count <= _MAX_EXPERTS:
        raise _unfit(stack, f"shape {stack.shape} is not a stack of 1 to {_MAX_EXPERTS} experts")
    return range(count)


def _in_heads(
    name: str, source: Recipe, config: Mapping[str, Any], key: str, pairs: bool
) -> Recipe:
    heads = config.get(key)
    if not isinstance(heads, int) or heads < 1 or not source.shape or source.shape[0] % (2 * heads):
        raise _unfit(
            source, f"shape {source.shape} cannot be divided into {brief(heads)} heads ({key})"
        )
    if len(source.shape) == 1 and source.encoding.elements > 1:
        raise _unfit(source, f"blocks of {source.encoding} cannot be reordered within a row")
    if isinstance(source, ReorderedHeads) and (source.heads, source.pairs) == (heads, not pairs):
        return renamed(source.source, name)
    return ReorderedHeads(name, source, heads, pairs)


def _shifted(name: str, source: Recipe, by: float) -> Recipe:
    """A shift that undoes another gives the source itself, without rounding."""
    if isinstance(source, ShiftedTensor) and source.by == -by:
        return renamed(source.source, name)
    return ShiftedTensor(name, source, by)


def _without_stacks(tensors: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """MLX's tensors with each stack of experts as one tensor for each."""
    result: dict[str, Recipe] = {}
    for name, recipe in tensors.items():
        found = _MLX_STACK.fullmatch(name)
        if not found:
            result[name] = recipe
            continue
        part = _OF_MIXTRAL[found[2]] if found[1].endswith(_MIXTRAL) else found[2]
        for expert in _experts(recipe):
            own = f"{found[1]}.experts.{expert}.{part}.{found[3]}"
            result[own] = StackEntry(own, recipe, expert)
    return result


def to_mlx(tensors: Mapping[str, Recipe], config: Mapping[str, Any]) -> dict[str, Recipe]:
    """From Hugging Face's tensors to MLX's: the same names, with experts stacked. Of a multimodal
    model the language part is kept, under one of its two names."""
    architecture = known_architecture(config, "MLX")
    result: dict[str, Recipe] = {}
    experts: dict[str, dict[int, Recipe]] = {}
    prefix = "language_model." if any(map(_LANGUAGE_PREFIX.match, tensors)) else ""
    exact = {name: as_mlx(recipe) for name, recipe in tensors.items()}
    for tensor in _named_by(architecture, exact, config):
        found = _EXPERT.fullmatch(tensor.name)
        if found:
            part = _IN_MLX.get(found[3], found[3])
            stack = f"{prefix}{found[1]}.switch_mlp.{part}.{found[4]}"
            experts.setdefault(stack, {})[int(found[2])] = tensor.recipe
        else:
            name = prefix + tensor.name
            if name in result:
                raise _unfit(tensor.recipe, f"has the same name as another tensor, {name}", "name")
            result[name] = renamed(tensor.recipe, name)
    return result | {name: _stacked(name, parts) for name, parts in experts.items()}


class _NamedTensor(NamedTuple):
    """A tensor of the language model, and the rule of its name."""

    name: str
    recipe: Recipe
    rule: NameRule
    numbers: dict[str, int]
    kind: str


def _named_by(
    architecture: Architecture, tensors: Mapping[str, Recipe], config: Mapping[str, Any]
) -> Iterator[_NamedTensor]:
    """The tensors of the language model under its own names. Raises FormatError for one that is
    not in the table."""
    rules = {rule.huggingface: rule for rule in architecture.rules}
    flat = hyperparameters.flat_config(architecture, config)
    for name, recipe in tensors.items():
        own = _LANGUAGE_PREFIX.sub(_language, name)
        stem, _, kind = own.rpartition(".")
        if _HUGGINGFACE_ONLY.fullmatch(name) or _OTHER_PARTS.match(name):
            continue
        if _is_copy_of_embedding(stem, flat):
            continue
        template, numbers = _template(stem, ("layer", "expert"))
        if template not in rules or kind not in _KINDS:
            problem = f"{architecture.model_type}'s table has no {shown(name)}"
            raise _unfit(recipe, problem, "name")
        yield _NamedTensor(own, recipe, rules[template], numbers, kind)


def left_out(files: ModelFiles, recipes: Iterable[Recipe]) -> dict[str, int]:
    """The numbers of stored tensors that no recipe uses, by class of names. Tables that config.json
    has as settings do not count."""
    used = {_place(info) for recipe in recipes for info in stored(recipe)}
    counts: Counter[str] = Counter()
    for name, info in files.tensors.items():
        if _place(info) not in used and not _GGUF_ONLY.fullmatch(name.rpartition(".")[0]):
            part = _OTHER_PARTS.match(name)
            counts[f"{part[0]}*" if part else _NUMBER.sub("*", name)] += 1
    return dict(counts.most_common())


def _place(info: TensorInfo) -> tuple[object, ...]:
    return info.source, info.shape, info.strides


def unsaid_in_gguf(config: Mapping[str, Any]) -> list[str]:
    """The settings of a model for which GGUF has no keys."""
    return hyperparameters.unsaid(known_architecture(config), config)


def to_gguf(tensors: Mapping[str, Recipe], config: Mapping[str, Any]) -> dict[str, Recipe]:
    """From Hugging Face's tensors to GGUF's names and llama.cpp's layout."""
    architecture = known_architecture(config)
    flat = hyperparameters.flat_config(architecture, config)
    result: dict[str, Recipe] = {}
    experts: dict[str, dict[int, Recipe]] = {}
    for _, recipe, rule, numbers, kind in _named_by(architecture, tensors, config):
        target = f"{rule.gguf.format(**numbers)}.{kind}"
        if target in result:
            raise _unfit(recipe, f"has the same name as another tensor, {target}", "name")
        if "expert" in numbers:
            experts.setdefault(target, {})[numbers["expert"]] = recipe
        else:
            result[target] = _towards_gguf(target, rule, recipe, flat)
    for target, parts in experts.items():
        result[target] = _stacked(target, parts)
    return _rope_tables(flat) | result


def _language(found: re.Match[str]) -> str:
    return "" if found[0] == "language_model." else "model."


def _is_copy_of_embedding(stem: str, config: Mapping[str, Any]) -> bool:
    return stem == "lm_head" and bool(config.get("tie_word_embeddings"))


def known_architecture(config: Mapping[str, Any], family: str = "GGUF") -> Architecture:
    """The table of a config.json's model type. Raises FormatError if there is none."""
    architecture = architecture_tables.of_config(config)
    if architecture is None:
        known = ", ".join(ARCHITECTURES)
        raise FormatError(
            f"model_type {brief(config.get('model_type'))} of config.json has no table of "
            f"{family}'s names: the known ones are {known}"
        )
    return architecture


def _towards_gguf(name: str, rule: NameRule, recipe: Recipe, config: Mapping[str, Any]) -> Recipe:
    if rule.heads:
        return _in_heads(name, recipe, config, rule.heads, pairs=True)
    return _shifted(name, recipe, rule.shift) if rule.shift else renamed(recipe, name)


def _stacked(name: str, parts: Mapping[int, Recipe]) -> Recipe:
    if sorted(parts) != list(range(len(parts))):
        found = f"of the experts of {name} the file has only {sorted(parts)[:20]}"
        raise _unfit(next(iter(parts.values())), found)
    return stack_of(name, [parts[expert] for expert in range(len(parts))])


def stack_of(name: str, parts: Sequence[Recipe]) -> Recipe:
    """The matrices of experts in one tensor: the stored one if they are the parts of one."""
    sources = tuple(parts)
    if any((s.shape, s.encoding) != (sources[0].shape, sources[0].encoding) for s in sources):
        raise _unfit(sources[0], "the experts of its layer differ in shape or type")
    whole = _whole_stack(sources)
    return renamed(whole, name) if whole else TensorStack(name, sources)


def _whole_stack(parts: tuple[Recipe, ...]) -> Recipe | None:
    """The stacked tensor that these are all entries of, in order; None if they are not."""
    first = parts[0]
    if not isinstance(first, StackEntry) or first.source.shape[0] != len(parts):
        return None
    in_order = all(
        isinstance(part, StackEntry) and part.source == first.source and part.index == i
        for i, part in enumerate(parts)
    )
    return first.source if in_order else None


def _rope_tables(config: Mapping[str, Any]) -> dict[str, Recipe]:
    """RoPE factors that GGUF stores as tensors."""
    match rope_scaling.kind_of(rope_scaling.scaling_of(config)):
        case "llama3":
            tables = {"rope_freqs.weight": rope_scaling.llama3_factors(config)}
        case "longrope" | "su":
            tables = rope_scaling.long_factors(config)
        case _:
            return {}
    return {
        name: TensorInfo(
            name, plain(dt.float32), values.shape, Inline(values.astype(np.float32).tobytes())
        )
        for name, values in tables.items()
    }
