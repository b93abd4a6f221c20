"""Translation of hyperparameters between config.json and GGUF's keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import FormatError
from lbrx.files.formats.architecture_tables import Architecture, rope_scaling
from lbrx.files.formats.checks import bad, finite
from lbrx.files.formats.descriptor import FileRange, Inline, ModelFiles, TensorInfo

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_GGUF_TOKENS = {"pad_token_id": "padding_token_id"}
_REALS = (
    *("rms_norm_eps", "rope_theta", "rope_local_base_freq"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"),
    *("logit_scale", "layer_norm_eps", "norm_epsilon"),
)
_FLAGS = ("norm_topk_prob",)
_ROTARY = ("rope_theta", "partial_rotary_factor")  # at one of two places in config.json
_ORIGINAL = "original_max_position_embeddings"
_CONTEXT = "max_position_embeddings"
_NEAR = "attention.sliding_window_pattern"
_MAX_FACTORS = 1 << 20
_MAX_LAYERS = 1 << 16
_ACTIVATIONS = ("hidden_act", "hidden_activation")
_YARN = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")


# Other keys of config.json for the same setting. The first one that it has counts.
_OTHER_KEYS = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head", "num_heads"),
    "max_position_embeddings": ("n_positions",),
    "intermediate_size": ("n_inner",),
    "hidden_act": ("activation_function",),
    "rms_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "num_local_experts": ("num_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts": ("num_local_experts",),
    "num_experts_per_tok": ("moe_k", "moe_topk"),
    "partial_rotary_factor": ("rotary_pct",),
    "rope_theta": ("rotary_emb_base",),
}


def flat_config(architecture: Architecture | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's settings under usual keys and with defaults, taken out of a multimodal
    model's config.json."""
    inner = config.get("text_config")
    merged = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    match merged.get("rope_parameters"):
        case {"full_attention": dict() as far, "sliding_attention": {"rope_theta": near}}:
            merged |= {"rope_parameters": far, "rope_local_base_freq": near}
    turned = merged.get("rope_parameters")
    if isinstance(turned, Mapping):
        merged |= {key: turned[key] for key in _ROTARY if turned.get(key) is not None}
    for key, others in _OTHER_KEYS.items():
        found = next((merged[other] for other in others if merged.get(other) is not None), None)
        if found is not None:
            merged.setdefault(key, found)
    if isinstance(kinds := merged.get("layers_block_type"), list):
        merged.setdefault("num_hidden_layers", len(kinds))
    if architecture is not None:
        kept = {k: v for k, v in architecture.constants.items() if k == "tie_word_embeddings"}
        merged = {**architecture.defaults, **kept, **merged}
    if merged.get("num_key_value_heads") is None and "num_attention_heads" in merged:
        merged["num_key_value_heads"] = merged["num_attention_heads"]
    return merged


def to_gguf(architecture: Architecture, config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF's metadata for the hyperparameters of a config.json."""
    flat = flat_config(architecture, config)
    prefix = architecture.gguf
    result: dict[str, Any] = {"general.architecture": prefix, "general.type": "model"}
    for setting in architecture.settings:
        key = f"{prefix}.{setting.gguf}"
        if setting.huggingface in _FLAGS and isinstance(flat.get(setting.huggingface), bool):
            result[key] = flat[setting.huggingface]
        elif flat.get(setting.huggingface) is not None:
            kind = float if setting.huggingface in _REALS else int
            result[key] = rope_scaling.number(flat, setting.huggingface, kind)
            if setting.huggingface == "num_hidden_layers" and result[key] > _MAX_LAYERS:
                problem = f"{result[key]:,} is not a number up to {_MAX_LAYERS:,}"
                raise FormatError(f"config.json: num_hidden_layers: {problem}")
        elif setting.absent is not None:
            result[key] = setting.absent
    share = 1.0
    if flat.get(architecture.rotary_share) is not None:
        share = rope_scaling.number(flat, architecture.rotary_share, float)
    result[f"{prefix}.rope.dimension_count"] = int(rope_scaling.head_size(flat) * share)
    if near := _near_layers(architecture, flat):
        result[f"{prefix}.{_NEAR}"] = near
    return result | {f"{prefix}.{key}": value for key, value in _gguf_scaling(flat).items()}


def _near_layers(architecture: Architecture, config: Mapping[str, Any]) -> list[bool]:
    """For each layer, whether it has a sliding window; empty if they are the architecture's usual
    ones."""
    count, every = config.get("num_hidden_layers"), architecture.far_every
    if not every or not isinstance(count, int):
        return []
    usual = [bool(layer % every) for layer in range(1, count + 1)]
    kinds, other = config.get("layer_types"), config.get("sliding_window_pattern")
    if isinstance(kinds, list) and len(kinds) == count:
        near = [kind == "sliding_attention" for kind in kinds]
    elif isinstance(other, int) and other > 0:
        near = [bool(layer % other) for layer in range(1, count + 1)]
    else:
        return []
    return [] if near == usual else near


def _gguf_scaling(config: Mapping[str, Any]) -> dict[str, Any]:
    scaling = rope_scaling.scaling_of(config)
    match rope_scaling.kind_of(scaling):
        case "linear" | "yarn" as kind:
            factor = rope_scaling.number(scaling, "factor", float)
            result = {"rope.scaling.type": kind, "rope.scaling.factor": factor}
            if scaling.get(_ORIGINAL) is not None:
                original = rope_scaling.number(scaling, _ORIGINAL, int)
                result["rope.scaling.original_context_length"] = original
            return result
        case "longrope" | "su":
            return {
                "rope.scaling.type": "longrope",
                "rope.scaling.attn_factor": rope_scaling.attention_factor(config),
                "rope.scaling.original_context_length": rope_scaling.original_context(config),
            }
    return {}


def unsaid(architecture: Architecture, config: Mapping[str, Any]) -> list[str]:
    """The settings that change results and for which GGUF has no key."""
    flat = flat_config(architecture, config)
    held = {setting.huggingface for setting in architecture.settings}
    usual = architecture.constants
    lost = [n for n in _ACTIVATIONS if n in usual and flat.get(n) not in (None, usual[n])]
    # llama.cpp does not read GGUF's key for it.
    lost += [n for n in _FLAGS if n in usual and bool(flat.get(n)) != usual[n]]
    if flat.get("sliding_window") and "sliding_window" not in held:
        window = rope_scaling.number(flat, "sliding_window", int)
        is_used = flat.get("use_sliding_window") is not False
        context = rope_scaling.number({_CONTEXT: window + 1, **flat}, _CONTEXT, int)
        lost += ["sliding_window"] if is_used and window < context else []
    if flat.get("query_pre_attn_scalar") not in (None, _scaled_by(architecture, flat)):
        lost.append("query_pre_attn_scalar")
    every, turned = usual.get("no_rope_layer_interval"), flat.get("no_rope_layers")
    if every and isinstance(turned, list):
        alike = [int(layer % every != 0) for layer in range(1, len(turned) + 1)]
        lost += ["no_rope_layers"] if turned != alike else []
    scaling = rope_scaling.scaling_of(flat)
    if rope_scaling.kind_of(scaling) == "yarn":
        lost += [f"rope_scaling's {name}" for name in _YARN if scaling.get(name) is not None]
    return lost


def _scaled_by(architecture: Architecture, config: Mapping[str, Any]) -> int:
    """The number by whose square root llama.cpp divides queries."""
    layers = config.get("num_hidden_layers")
    if architecture.scaled_by_width and layers == architecture.scaled_by_width:
        heads = rope_scaling.number(config, "num_attention_heads", int)
        return rope_scaling.number(config, "hidden_size", int) // heads
    return rope_scaling.head_size(config)


def to_config(architecture: Architecture, files: ModelFiles) -> dict[str, Any]:
    """The config.json for a GGUF."""
    metadata, prefix = files.metadata, architecture.gguf
    config: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
    }
    for setting in architecture.settings:
        key = f"{prefix}.{setting.gguf}"
        flag = files.metadata.get(key) if setting.huggingface in _FLAGS else None
        value = flag if isinstance(flag, bool) else _number(files, key)
        if value is not None and value != setting.absent:
            config[setting.huggingface] = _shortest(value)
    config = {**architecture.constants, **config}
    embedding = files.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) == 2:
        config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in files.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in files.tensors
    if "blk.0.ffn_down.bias" in files.tensors:
        config["mlp_bias"] = True
    for key in _TOKEN_IDS:
        value = _number(files, f"tokenizer.ggml.{_GGUF_TOKENS.get(key, key)}")
        if value is not None:
            config[key] = value
    _add_attention(config, architecture, metadata)
    _add_scaling(config, files, prefix)
    return config


def _number(files: ModelFiles, key: str) -> float | None:
    """A number of a GGUF's metadata; None where it is missing, or an array with one for each
    layer."""
    value = files.metadata.get(key)
    if value is None or (isinstance(value, Sequence) and not isinstance(value, str)):
        return None
    return finite(value, f"{files.path}: metadata {key!r}")


def _shortest(value: float) -> float:
    """The shortest decimal number that is the same float32, the type of GGUF's floats."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _add_attention(
    config: dict[str, Any], architecture: Architecture, metadata: Mapping[str, Any]
) -> None:
    near = metadata.get(f"{architecture.gguf}.{_NEAR}")
    if isinstance(near, Sequence) and not isinstance(near, str):
        kinds = {False: "full_attention", True: "sliding_attention"}
        config["layer_types"] = [kinds[bool(is_near)] for is_near in near]
    elif isinstance(near, int):
        config["sliding_window_pattern"] = near
    turned = metadata.get(f"{architecture.gguf}.rope.dimension_count")
    if not rope_scaling.has_heads(config):
        return
    if architecture.rotary_share and isinstance(turned, int):
        config[architecture.rotary_share] = turned / rope_scaling.head_size(config)
    if layers := architecture.scaled_by_width:
        by_width = config.get("num_hidden_layers") == layers
        width = config["hidden_size"] // config["num_attention_heads"]
        config["query_pre_attn_scalar"] = width if by_width else rope_scaling.head_size(config)


def _add_scaling(config: dict[str, Any], files: ModelFiles, prefix: str) -> None:
    metadata, tensors = files.metadata, files.tensors
    kind = metadata.get(f"{prefix}.rope.scaling.type", "none")
    if kind in ("linear", "yarn"):
        factor = _number(files, f"{prefix}.rope.scaling.factor")
        scaling = {"rope_type": kind, "factor": 1.0 if factor is None else factor}
        original = _number(files, f"{prefix}.rope.scaling.original_context_length")
        if original is not None:
            scaling[_ORIGINAL] = original
        config["rope_scaling"] = scaling
    elif "rope_freqs.weight" in tensors and rope_scaling.has_heads(config):
        factors = _floats(files, tensors["rope_freqs.weight"])
        found = rope_scaling.llama3_scaling(factors, config)
        config["rope_scaling"] = found or rope_scaling.fixed_scaling(factors)
    elif "rope_factors_long.weight" in tensors and "rope_factors_short.weight" in tensors:
        _add_longrope(config, files, f"{prefix}.rope.scaling.")


def _add_longrope(config: dict[str, Any], files: ModelFiles, prefix: str) -> None:
    scaling: dict[str, Any] = {"type": "longrope"}
    for name in ("long", "short"):
        factors = _floats(files, files.tensors[f"rope_factors_{name}.weight"])
        scaling[f"{name}_factor"] = factors.tolist()
    config["rope_scaling"] = scaling
    original = _number(files, f"{prefix}original_context_length")
    if original is not None and _ORIGINAL not in config:
        scaling[_ORIGINAL] = original
    amplitude = _number(files, f"{prefix}attn_factor")
    usual = rope_scaling.attention_factor(config) if "max_position_embeddings" in config else None
    if isinstance(amplitude, float) and (usual is None or not np.isclose(amplitude, usual)):
        scaling["attention_factor"] = _shortest(amplitude)


def _floats(files: ModelFiles, info: TensorInfo) -> NDArray[Any]:
    """The factors in a small float32 tensor. Raises FormatError for one that is not positive."""
    source = info.source
    if info.encoding.name != "F32" or info.size > _MAX_FACTORS or info.strides is not None:
        raise FormatError(f"{files.path}: tensor {info.name!r}: is not a short list of F32")
    if isinstance(source, Inline):
        data = source.data
    else:
        assert isinstance(source, FileRange)
        with source.file.open("rb") as file:
            file.seek(source.offset)
            data = file.read(source.nbytes)
    factors = np.frombuffer(data, np.float32)
    if wrong := [value for value in factors.tolist() if not 0 < value < math.inf]:
        raise bad(files.path, f"{wrong[0]} is not a positive number", tensor=info.name)
    return factors
