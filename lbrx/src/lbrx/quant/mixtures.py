"""llama.cpp's mixtures: the quantized type of each tensor of a model, by its class and layer.

A mixture has a base type and rules for classes of tensors; the first rule that applies decides.
Tensors have GGUF's names. There are no mixtures of IQ1 to IQ3, which lbrx only decodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lbrx.arrays.shape import Shape
from lbrx.errors import QuantizationError
from lbrx.quant import gguf


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a model that the choice of types depends on."""

    layers: int
    tied_embeddings: bool = False
    """Whether the embeddings are also the output."""
    queries_per_key: int = 1
    """Number of query heads for each key and value head."""
    experts: int = 0
    importance: bool = False
    """Whether importance is given to the encoder."""


class Place(NamedTuple):
    layer: int
    model: ModelFacts


Condition = Callable[[Place], bool]


def _always(place: Place) -> bool:
    return True


def _first(count: int) -> Condition:
    return lambda place: place.layer < count


def _first_part(of: int) -> Condition:
    return lambda place: place.layer < place.model.layers // of


def _sensitive(place: Place) -> bool:
    """The first and last eighth of the layers, and every third layer between them."""
    layer, layers = place.layer, place.model.layers
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _shared_keys(place: Place) -> bool:
    """Value weights that four or more heads share are small, so more bits cost little."""
    return place.model.queries_per_key >= 4


def _eight_experts(place: Place) -> bool:
    return place.model.experts == 8


def _with_importance(place: Place) -> bool:
    return place.model.importance and _first_part(8)(place)


def _without_importance(place: Place) -> bool:
    return not place.model.importance and _first_part(8)(place)


class MixtureRule(NamedTuple):
    tensor: str
    """A class of tensors, one of CLASSES."""
    type: str
    when: Condition = _always


@dataclass(frozen=True)
class Mixture:
    """A llama.cpp mixture such as Q4_K_M: the types of a model's tensors."""

    name: str
    file_type: int
    """GGUF's `general.file_type`."""
    base: str
    rules: tuple[MixtureRule, ...] = ()


# With eight experts attention is a small part of the model, so it gets more bits.
_OF_EIGHT = MixtureRule("attn_output", "q5_k", _eight_experts)
_K_M = MixtureRule("attn_v", "q6_k", _sensitive), MixtureRule("ffn_down", "q6_k", _sensitive)
_IQ4 = (
    MixtureRule("attn_v", "q5_k", _shared_keys),
    MixtureRule("ffn_down", "q5_k", _without_importance),
)
_TERNARY = MixtureRule("token_embd", "q4_k")

MIXTURES = {
    mixture.name: mixture
    for mixture in (
        Mixture("q4_0", 2, "q4_0", (MixtureRule("ffn_down", "q4_1", _with_importance),)),
        Mixture("q4_1", 3, "q4_1"),
        Mixture("q8_0", 7, "q8_0"),
        Mixture("q5_0", 8, "q5_0", (MixtureRule("ffn_down", "q5_1", _with_importance),)),
        Mixture("q5_1", 9, "q5_1"),
        Mixture(
            "q2_k",
            10,
            "q2_k",
            (
                MixtureRule("attn_v", "q4_k", _shared_keys),
                MixtureRule("attn_v", "q3_k"),
                MixtureRule("ffn_down", "q3_k"),
                _OF_EIGHT,
                MixtureRule("attn_output", "q3_k"),
            ),
        ),
        Mixture("q3_k_s", 11, "q3_k", (_OF_EIGHT,)),
        Mixture(
            "q3_k_m",
            12,
            "q3_k",
            (
                MixtureRule("attn_v", "q5_k", _first(2)),
                MixtureRule("attn_v", "q4_k"),
                MixtureRule("ffn_down", "q5_k", _first_part(16)),
                MixtureRule("ffn_down", "q4_k"),
                _OF_EIGHT,
                MixtureRule("attn_output", "q4_k"),
            ),
        ),
        Mixture(
            "q3_k_l",
            13,
            "q3_k",
            (
                MixtureRule("attn_v", "q5_k"),
                MixtureRule("ffn_down", "q5_k"),
                MixtureRule("attn_output", "q3_k", _eight_experts),
                MixtureRule("attn_output", "q5_k"),
            ),
        ),
        Mixture(
            "q4_k_s",
            14,
            "q4_k",
            (
                MixtureRule("attn_v", "q5_k", _first(4)),
                MixtureRule("ffn_down", "q5_k", _first_part(8)),
                _OF_EIGHT,
            ),
        ),
        Mixture("q4_k_m", 15, "q4_k", (*_K_M, _OF_EIGHT)),
        Mixture("q5_k_s", 16, "q5_k"),
        Mixture("q5_k_m", 17, "q5_k", _K_M),
        Mixture("q6_k", 18, "q6_k"),
        Mixture(
            "q2_k_s",
            21,
            "q2_k",
            (
                MixtureRule("attn_v", "q4_k", _shared_keys),
                MixtureRule("ffn_down", "q4_k", _first_part(8)),
            ),
        ),
        Mixture("iq4_nl", 25, "iq4_nl", (*_IQ4, _OF_EIGHT)),
        Mixture("iq4_xs", 30, "iq4_xs", (*_IQ4, _OF_EIGHT)),
        Mixture("tq1_0", 36, "tq1_0", (_TERNARY,)),
        Mixture("tq2_0", 37, "tq2_0", (_TERNARY,)),
        Mixture("mxfp4_moe", 38, "mxfp4"),
    )
}
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}

# The class of a tensor by a part of its name; the first part that it contains decides.
CLASSES = {
    "attn_qkv.weight": "attn_v",
    "attn_kv_b.weight": "attn_v",
    "attn_v.weight": "attn_v",
    "attn_k.weight": "attn_k",
    "attn_q.weight": "attn_q",
    "attn_output.weight": "attn_output",
    "ffn_up": "ffn_up",
    "ffn_gate": "ffn_gate",
    "ffn_down": "ffn_down",
}
_EMBEDDINGS = {"token_embd.weight", "per_layer_token_embd.weight"}
# Tensors that are not quantized, as they are small or sensitive: routers, convolutions, ...
_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|altup|laurel|per_layer_model_proj|ssm_conv1d"
    r"|shortconv\.conv\.weight|time_mix_(first|[wvag][0-2]|decay_w[12]|lerp_fused)\.weight"
    r"|attn_rel_b\.weight|position_embd|token_types|\.patch_embd|\.patch_merger|\.rel_pos"
)
# Replacements for rows that are not whole blocks of 256.
_NARROW = {
    "iq4_xs": "iq4_nl",
    **dict.fromkeys(("q2_k", "q3_k", "tq1_0", "tq2_0"), "q4_0"),
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}


def find_mixture(name: str) -> Mixture:
    """The mixture of a name, in any case; `q4_k` is `q4_k_m`, as in llama.cpp."""
    lowered = name.lower()
    try:
        return MIXTURES[ALIASES.get(lowered, lowered)]
    except KeyError:
        known = ", ".join(MIXTURES)
        raise QuantizationError(f"{name!r} is not a mixture: give one of {known}") from None


def mixture(name: str, model: ModelFacts) -> Callable[[str, Shape], str | None]:
    """A function from a tensor's name and shape to its type.

    The type is the name of a scheme, `f16` if no block fits the rows, or None for a tensor that is
    not quantized.
    """
    chosen = find_mixture(name)

    def choose(tensor: str, shape: Shape) -> str | None:
        if len(shape) < 2 or not tensor.endswith("weight") or _KEPT.search(tensor):
            return None
        return _fitting(_choose(chosen, tensor, shape, model), shape[-1])

    return choose


def _choose(mixture: Mixture, tensor: str, shape: Shape, model: ModelFacts) -> str:
    embedding = tensor in _EMBEDDINGS
    if tensor == "output.weight" or (embedding and model.tied_embeddings):
        return _for_output(mixture, shape[-1])
    if mixture.name == "mxfp4_moe":
        return "mxfp4" if len(shape) > 2 else "q8_0"
    kind = "token_embd" if embedding else _class_of(tensor)
    number = re.match(r"blk\.(\d+)\.", tensor)
    place = Place(int(number[1]) if number else 0, model)
    if _eight_experts(place) and kind in ("attn_v", "attn_k"):
        return "q8_0"
    rules = (rule for rule in mixture.rules if rule.tensor == kind and rule.when(place))
    type = next((rule.type for rule in rules), mixture.base)
    # 70B models have eight query heads for each value head, so five bits cost almost nothing.
    if kind == "attn_v" and model.layers == 80 and type in ("q3_k", "q4_k"):
        return "q5_k"
    return type


def _class_of(tensor: str) -> str:
    return next((kind for part, kind in CLASSES.items() if part in tensor), "other")


def _for_output(mixture: Mixture, columns: int) -> str:
    whole = columns % gguf.BY_NAME[mixture.base.upper()].elements == 0
    return "q6_k" if whole and mixture.name not in ("q8_0", "mxfp4_moe") else "q8_0"


def _fitting(type: str, columns: int) -> str:
    """The type, or its replacement for rows of this length."""
    for candidate in (type, _NARROW.get(type, type)):
        if columns % gguf.BY_NAME[candidate.upper()].elements == 0:
            return candidate
    return "f16"
