"""Dense models as the experts of one mixture, as mergekit-moe makes them.

Everything but the MLPs is the base model's. The router's rows come from prompts or are random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.convert.forms import FLOATS
from lbrx.errors import FormatError
from lbrx.files.formats import Format, Inline, TensorInfo, plain
from lbrx.files.formats.recipe import ComputedModel, ComputedTensor, Recipe, renamed
from lbrx.files.stored.stored_model import StoredModel
from lbrx.merging.config import ModelReference, parse_model
from lbrx.merging.config_fields import Fields, wrong
from lbrx.merging.model_card import card
from lbrx.merging.parent_models import ParentModel, differing_settings, open_parent
from lbrx.merging.plan import MergePlan, stored_tensors
from lbrx.merging.router_rows import ExpertPrompts, GateMode, Rows, prompt_rows, random_rows
from lbrx.merging.tokenizer_companions import staged
from lbrx.models.loading import language_model
from lbrx.tensors import Tensor
from lbrx.tensors.creation import from_numpy

_MAX_EXPERTS = 256
_CONTEXT = 2048  # tokens of a prompt
_MLP = re.compile(r"model\.layers\.([0-9]{1,6})\.mlp\.(gate|up|down)_proj\.weight")


@dataclass(frozen=True)
class Target:
    """An architecture with experts, and how its tensors are called."""

    model_type: str
    class_name: str
    count_key: str
    block: str
    """The module of a layer that has the router and the experts."""
    parts: Mapping[str, str]
    """The names of an expert's matrices by `gate`, `up` and `down`."""
    shared: bool = False
    """Whether it has one more expert, which sees every token."""


_QWEN_PARTS = {part: f"{part}_proj" for part in ("gate", "up", "down")}
MIXTRAL = Target(
    "mixtral",
    "MixtralForCausalLM",
    "num_local_experts",
    "block_sparse_moe",
    {"gate": "w1", "up": "w3", "down": "w2"},
)
QWEN2 = Target("qwen2_moe", "Qwen2MoeForCausalLM", "num_experts", "mlp", _QWEN_PARTS, shared=True)
QWEN3 = Target("qwen3_moe", "Qwen3MoeForCausalLM", "num_experts", "mlp", _QWEN_PARTS)
TARGETS = {"llama": MIXTRAL, "mistral": MIXTRAL, "qwen2": QWEN2, "qwen3": QWEN3}
"""By the model type of the base."""
_NAMES = {"mixtral": MIXTRAL, "qwen": QWEN2, "qwen2": QWEN2, "qwen3": QWEN3}


@dataclass(frozen=True)
class Expert:
    """A model whose MLPs become one expert of each layer."""

    model: ModelReference
    prompts: ExpertPrompts
    noise_scale: float = 0.0
    """The standard deviation of normal numbers that are added to its weights."""
    residual_scale: float = 1.0
    """What its down projections are multiplied by."""


@dataclass(frozen=True)
class MoeConfig:
    """The configuration of a mixture of experts."""

    base_model: ModelReference
    experts: tuple[Expert, ...]
    shared: tuple[Expert, ...] = ()
    gate_mode: GateMode = GateMode.HIDDEN
    experts_per_token: int = 2
    dtype: Dtype | None = None
    """The type of the result; None keeps the types of the models."""
    architecture: str | None = None


def parse_mixture(document: Mapping[str, Any]) -> MoeConfig:
    """Read mergekit-moe's keys. Raises FormatError that names the place of a mistake."""
    fields = Fields(document, "")
    base = parse_model(fields.take("base_model"), "base_model")
    mode = fields.text("gate_mode") or GateMode.HIDDEN
    if mode not in list(GateMode):
        raise wrong("gate_mode", mode, f"one of {', '.join(GateMode)}")
    experts = _experts(fields, "experts", GateMode(mode))
    if not 2 <= len(experts) <= _MAX_EXPERTS:
        raise FormatError(f"experts has {len(experts)} entries: give from 2 to {_MAX_EXPERTS}")
    used = fields.take("experts_per_token")
    used = min(2, len(experts)) if used is None else used
    if type(used) is not int or not 1 <= used <= len(experts):
        raise wrong("experts_per_token", used, f"a number from 1 to {len(experts)}")
    dtype = fields.text("dtype")
    if dtype is not None and dtype not in FLOATS:
        raise wrong("dtype", dtype, f"one of {', '.join(FLOATS)}")
    _check_prompts(experts, GateMode(mode))
    shared = _experts(fields, "shared_experts", GateMode(mode))
    architecture = fields.text("architecture")
    if architecture is not None and architecture not in _NAMES:
        raise wrong("architecture", architecture, f"one of {', '.join(_NAMES)}")
    fields.finish()
    chosen = None if dtype is None else FLOATS[dtype]
    return MoeConfig(base, experts, shared, GateMode(mode), used, chosen, architecture)


def _check_prompts(experts: Sequence[Expert], mode: GateMode) -> None:
    if not mode.is_random and len({expert.prompts for expert in experts}) == 1:
        raise FormatError(
            "all experts have the same prompts, and the router could not tell them apart: give "
            "each prompts of its own, or gate_mode: random"
        )


def _experts(fields: Fields, key: str, mode: GateMode) -> tuple[Expert, ...]:
    given = fields.take(key)
    if given is None:
        return ()
    if not isinstance(given, list):
        raise wrong(key, given, "a list of experts")
    return tuple(_expert(Fields(one, f"{key}[{i}]"), mode) for i, one in enumerate(given))


def _expert(fields: Fields, mode: GateMode) -> Expert:
    model = parse_model(fields.take("source_model"), fields.place("source_model"))
    prompts = ExpertPrompts(_texts(fields, "positive_prompts"), _texts(fields, "negative_prompts"))
    if not prompts.positive and not mode.is_random:
        place = fields.place("positive_prompts")
        raise wrong(place, None, f"texts that the expert is for, as gate_mode is {mode}")
    scales = {
        name: _number(fields, name, usual)
        for name, usual in (("noise_scale", 0.0), ("residual_scale", 1.0))
    }
    fields.finish()
    return Expert(model, prompts, **scales)


def _texts(fields: Fields, key: str) -> tuple[str, ...]:
    given = fields.take(key)
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(one, str) and one for one in given):
        raise wrong(fields.place(key), given, "a list of texts")
    return tuple(given)


def _number(fields: Fields, key: str, usual: float) -> float:
    given = fields.take(key)
    if given is None:
        return usual
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise wrong(fields.place(key), given, "a number")
    return float(given)


@dataclass(frozen=True)
class ChangedWeight:
    """A `TensorFunction`: the weight plus normal numbers times `noise`, all of it times `scale`.
    The numbers depend on the tensor's name and the seed alone."""

    name: str
    scale: float
    noise: float
    seed: int

    @property
    def is_elementwise(self) -> bool:
        return not self.noise

    def __call__(self, sources: Sequence[Tensor]) -> Tensor:
        (weight,) = sources
        if self.scale == 1 and not self.noise:
            return weight
        result = weight.astype(dt.float32)
        if not self.noise:
            return result * self.scale
        key = np.frombuffer(f"{self.seed} {self.name}".encode(), np.uint8)
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(key.tolist())))
        random = rng.standard_normal(weight.shape, np.float32) * np.float32(self.noise)
        return (result + from_numpy(random, weight.device)) * self.scale


def plan_mixture(
    config: MoeConfig,
    *,
    name: str = "merged",
    seed: int = 0,
    text: str = "",
    device: str | None = None,
) -> MergePlan:
    """The mixture as a model that conversion writes.

    With prompts, the base model reads them on `device` now. `text` is the configuration for the
    model card. Raises FormatError if the models do not fit each other or the architecture.
    """
    base = open_parent(config.base_model, {})
    target = _target(config, base)
    _check_shared(config, target)
    every = [*config.experts, *config.shared]
    parents = [open_parent(expert.model, {}) for expert in every]
    for parent in parents:
        _check_fits(base, parent)
    rows = _router_rows(config, base, seed, device)
    recipes: dict[str, Recipe] = {}
    for name, recipe in base.recipes.items():
        found = _MLP.fullmatch(name)
        if not found:
            recipes[name] = _changed(name, recipe, config)
            continue
        layer, part = found[1], found[2]
        for i, (expert, parent) in enumerate(zip(every, parents, strict=True)):
            own = _expert_name(target, layer, part, i if i < len(config.experts) else None)
            weight = parent.recipes[name]
            recipes[own] = _changed(own, weight, config, expert, part == "down", seed)
    recipes |= {info.name: info for info in _routers(config, target, base, rows)}
    told = f"{target.model_type}: {len(config.experts)} experts, gate_mode {config.gate_mode}."
    files = {
        **base.companions,
        "README.md": card(told, [base, *parents], name, text).encode(),
        "mergekit_moe_config.yml": text.encode(),
    }
    model = ComputedModel(
        Path(name),
        Format.SAFETENSORS,
        stored_tensors([base, *parents]),
        config=_settings(config, target, base),
        generation_config=base.files.generation_config,
        recipes=recipes,
        companions=files,
    )
    notes = differing_settings([base, *parents])
    size = base.recipes["model.embed_tokens.weight"].shape[0]
    summary = f"{size:,} rows, those of the base model"
    return MergePlan(None, staged(model, base), (base, *parents), summary, tuple(notes))


def _target(config: MoeConfig, base: ParentModel) -> Target:
    usual = TARGETS.get(base.model_type or "")
    if usual is None:
        raise FormatError(
            f"{base} is a {base.model_type or 'model without config.json'}, of which lbrx makes no "
            f"mixture of experts: give one of {', '.join(TARGETS)}"
        )
    wanted = _NAMES[config.architecture] if config.architecture else usual
    if wanted is not usual:
        raise FormatError(
            f"architecture: {config.architecture} does not fit {base}, a {base.model_type}: leave "
            f"it out for {usual.model_type}"
        )
    if extra := next((name for name in base.recipes if _has_extra(name, usual)), None):
        raise FormatError(f"{base} has {extra}, for which {usual.model_type} has no place")
    return usual


def _has_extra(name: str, target: Target) -> bool:
    """Whether a tensor is a bias that the architecture with experts does not have."""
    biased = r".*\.self_attn\.o_proj\.bias|.*\.mlp\..*\.bias"
    if target is MIXTRAL:
        biased += r"|.*\.self_attn\..*\.bias"
    return re.fullmatch(biased, name) is not None


def _check_shared(config: MoeConfig, target: Target) -> None:
    count = len(config.shared)
    if target.shared and count != 1:
        raise FormatError(
            f"{target.model_type} has one shared expert, and shared_experts has {count}: give one"
        )
    if not target.shared and count:
        raise FormatError(f"{target.model_type} has no shared experts: remove shared_experts")


def _check_fits(base: ParentModel, other: ParentModel) -> None:
    if other.model_type != base.model_type:
        raise FormatError(
            f"{other} is a {other.model_type} and {base} a {base.model_type}: give experts of the "
            "base's architecture"
        )
    for name, recipe in base.recipes.items():
        if _MLP.fullmatch(name):
            found = other.recipes.get(name)
            if found is None or found.shape != recipe.shape:
                shape = "missing" if found is None else f"of shape {found.shape}"
                raise FormatError(
                    f"{name} is {shape} in {other} and of shape {recipe.shape} in {base}: give "
                    "experts of one size"
                )


def _expert_name(target: Target, layer: str, part: str, index: int | None) -> str:
    """The name of an expert's matrix; that of the shared expert without an index."""
    place = "shared_expert" if index is None else f"experts.{index}"
    return f"model.layers.{layer}.{target.block}.{place}.{target.parts[part]}.weight"


def _changed(
    name: str,
    recipe: Recipe,
    config: MoeConfig,
    expert: Expert | None = None,
    is_output: bool = False,
    seed: int = 0,
) -> Recipe:
    """A tensor with the wanted type, noise and scale; as it is stored if it has them already."""
    scale = expert.residual_scale if expert is not None and is_output else 1.0
    noise = expert.noise_scale if expert is not None else 0.0
    is_same = config.dtype in (None, recipe.encoding.dtype) or not recipe.encoding.decoded.is_float
    if scale == 1 and not noise and is_same:
        return renamed(recipe, name)
    dtype = config.dtype or recipe.encoding.decoded
    function = ChangedWeight(name, scale, noise, seed)
    return ComputedTensor(name, (recipe,), plain(dtype), recipe.shape, function)


def _router_rows(config: MoeConfig, base: ParentModel, seed: int, device: str | None) -> Rows:
    every = [*config.experts, *config.shared]
    layers, hidden = (base.setting(key) for key in ("num_hidden_layers", "hidden_size"))
    if config.gate_mode.is_random:
        return random_rows(config.gate_mode, layers, len(every), hidden, seed)
    model = language_model(
        StoredModel(_alone(base), base.recipes),
        context=min(_CONTEXT, base.setting("max_position_embeddings") or _CONTEXT),
        device=device,
    )
    return prompt_rows(config.gate_mode, model, [one.prompts for one in every], layers)


def _alone(parent: ParentModel) -> ComputedModel:
    """A parent as a model of its own, with its adapter."""
    model = ComputedModel(
        parent.files.path,
        Format.SAFETENSORS,
        parent.files.tensors,
        config=parent.config,
        generation_config=parent.files.generation_config,
        recipes=parent.recipes,
        companions=parent.companions,
    )
    return staged(model, parent)


def _routers(
    config: MoeConfig, target: Target, base: ParentModel, rows: Rows
) -> Iterator[TensorInfo]:
    """The router of each layer, and the gate of the shared expert."""
    usual = base.recipes["model.embed_tokens.weight"].encoding.dtype
    dtype = config.dtype or usual or dt.float32
    count = len(config.experts)
    for layer, of_layer in enumerate(rows):
        block = f"model.layers.{layer}.{target.block}"
        parts = {f"{block}.gate.weight": of_layer[:count]}
        if target.shared:
            parts[f"{block}.shared_expert_gate.weight"] = of_layer[count:]
        for name, values in parts.items():
            data = np.ascontiguousarray(values).astype(dtype.numpy)
            yield TensorInfo(name, plain(dtype), data.shape, Inline(data.tobytes()))


def _settings(config: MoeConfig, target: Target, base: ParentModel) -> dict[str, Any]:
    """The config.json."""
    counts = {one.count_key for one in TARGETS.values()}
    result = {
        **{key: value for key, value in base.config.items() if key not in counts},
        "model_type": target.model_type,
        "architectures": [target.class_name],
        target.count_key: len(config.experts),
        "num_experts_per_tok": config.experts_per_token,
        "sliding_window": None,
    }
    if target is not MIXTRAL:
        wide = base.setting("intermediate_size")
        result |= {"moe_intermediate_size": wide, "norm_topk_prob": True}
        result |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False}
    if target.shared:
        result["shared_expert_intermediate_size"] = base.setting("intermediate_size")
    return result
