"""Nemotron-H and Nemotron 3: each layer is a Mamba 2, attention without positions, an MLP without a
gate, or experts, with one norm before it."""

from __future__ import annotations

from dataclasses import replace

from lbrx.errors import FormatError
from lbrx.files.formats.checks import brief
from lbrx.models.architectures.mamba2 import MixerLayer
from lbrx.models.blocks import Feeding, PlainMLP, read_activation
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.experts import Router, count_experts, grouped_routing, router_bias, weighted_sum
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attending, Attention, Linear
from lbrx.models.recurrent import Mamba2, MambaSizes
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.quantized import expert_linears

_ACTIVATION = "mlp_hidden_act"
_BY_LETTER = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_BY_NAME = {"linear_attention": "mamba", "full_attention": "attention"}


def kinds_of(config: ModelConfig) -> list[str]:
    """What each layer is: mamba, attention, mlp or moe."""
    listed = config.settings.get("layers_block_type")
    if not isinstance(listed, list):
        pattern = config.settings.get("hybrid_override_pattern")
        listed = [_BY_LETTER.get(letter, letter) for letter in str(pattern or "")]
    kinds = [_BY_NAME.get(str(kind), str(kind)) for kind in listed]
    if len(kinds) != config.layers or not set(kinds) <= set(_BY_LETTER.values()):
        raise FormatError(
            f"config.json: hybrid_override_pattern: {brief(kinds)} are not the kinds of "
            f"{config.layers} layers: give a letter of {', '.join(_BY_LETTER)} for each"
        )
    return kinds


def _sizes(config: ModelConfig) -> MambaSizes:
    return MambaSizes(
        config.integer("mamba_num_heads"),
        config.integer("mamba_head_dim", 64),
        config.integer("n_groups", 8),
        config.integer("ssm_state_size", 128),
        config.integer("conv_kernel", 4),
    )


class PlainExperts:
    """Experts without gates, chosen by sigmoid scores in groups, perhaps of a projection of x;
    beside an MLP that sees every token."""

    def __init__(self, weights: Weights, config: ModelConfig) -> None:
        count, wide = (
            count_experts(config, "n_routed_experts"),
            config.integer("moe_intermediate_size"),
        )
        bias = router_bias(weights, count)
        routing = grouped_routing(config, count)
        self.router = Router(weights.inside("gate"), config, count, routing, bias)
        narrow = config.integer("moe_latent_size") or config.hidden
        self.first = self.last = None
        if narrow != config.hidden:
            self.first = Linear(weights.inside("fc1_latent_proj"), narrow, config.hidden)
            self.last = Linear(weights.inside("fc2_latent_proj"), config.hidden, narrow)
        inner = weights.inside("experts")
        self.up = inner.stack("up_proj", count, wide, narrow)
        self.down = inner.stack("down_proj", count, narrow, wide)
        self.activation = read_activation(config, _ACTIVATION)
        shared = replace(
            config, intermediate=config.integer("moe_shared_expert_intermediate_size", wide)
        )
        self.shared = _mlp(weights.inside("shared_experts"), shared)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        shares, chosen = self.router(rows)
        narrow = rows if self.first is None else self.first(rows)
        (inner,) = expert_linears(narrow, chosen, [self.up])
        (fed,) = expert_linears(self.activation(inner), chosen, [self.down])
        total = weighted_sum(fed, shares)
        return (total if self.last is None else self.last(total)).reshape(*x.shape) + self.shared(x)


def _mlp(weights: Weights, config: ModelConfig) -> PlainMLP:
    return PlainMLP(weights, config, ("up_proj", "down_proj"), _ACTIVATION)


def _each_token(feeding: Feeding) -> Attending:
    def mixed(x: Tensor, step: ForwardStep) -> Tensor:
        return feeding(x)

    return mixed


class Network(Decoder):
    names = ("backbone", "embeddings", "layers", "norm_f")

    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        kinds, states = kinds_of(config), _sizes(config).states
        return replace(
            config,
            attending=tuple(i for i, kind in enumerate(kinds) if kind == "attention"),
            states=tuple(states if kind == "mamba" else () for kind in kinds),
        )

    def make_layer(self, weights: Weights, index: int) -> MixerLayer:
        mixer = self._make_mixer(weights.inside("mixer"), index)
        return MixerLayer(self.make_norm(weights.inside("norm")), mixer)

    def _make_mixer(self, weights: Weights, index: int) -> Attending:
        config = self.config
        match kinds_of(config)[index]:
            case "mamba":
                sizes = _sizes(config)
                return Mamba2(weights, config, index, sizes, norm_groups=sizes.groups)
            case "attention":
                return Attention(weights, config, index, use_rope=False)
            case "mlp":
                return _each_token(_mlp(weights, config))
            case _:
                return _each_token(PlainExperts(weights, config))
