"""Mamba 2: selective state spaces alone, without attention and MLPs."""

from __future__ import annotations

from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attending, Norm
from lbrx.models.recurrent import Mamba2, MambaSizes
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class MixerLayer:
    """x + mixer(norm(x))."""

    def __init__(self, norm: Norm, mixer: Attending) -> None:
        self.norm, self.mixer = norm, mixer

    def __call__(self, x: Tensor, added: Tensor | None, step: ForwardStep) -> tuple[Tensor, Tensor]:
        normed, x = self.norm.of_sum(x, added)
        return x, self.mixer(normed, step)


def _sizes(config: ModelConfig) -> MambaSizes:
    return MambaSizes(
        config.integer("num_heads"),
        config.integer("head_dim", 64),
        config.integer("n_groups", 1),
        config.integer("state_size", 128),
        config.integer("conv_kernel", 4),
    )


class Network(Decoder):
    names = ("backbone", "embeddings", "layers", "norm_f")

    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        return config.with_states(_sizes(config).states, [False] * config.layers)

    def make_layer(self, weights: Weights, index: int) -> MixerLayer:
        mixer = Mamba2(weights.inside("mixer"), self.config, index, _sizes(self.config))
        return MixerLayer(self.make_norm(weights.inside("norm")), mixer)
