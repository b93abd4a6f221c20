"""Qwen 3.5 (dense): gated delta nets and gated attention as in Qwen3-Next, with a matrix for each
projection of the nets."""

from __future__ import annotations

from lbrx.models.architectures import qwen3_next
from lbrx.models.blocks import Feeding
from lbrx.models.config import ModelConfig
from lbrx.models.layers import Attending, GatedMLP, Linear, apply_each, read_gate
from lbrx.models.recurrent import GatedDeltaNet
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class SplitDeltaNet(GatedDeltaNet):
    """A gated delta net whose parts are projected apart, in the order of the heads."""

    def make_projections(self, weights: Weights, config: ModelConfig) -> None:
        sizes = self.sizes
        rows = {
            "in_proj_qkv": sizes.convolved,
            "in_proj_z": sizes.values,
            "in_proj_b": sizes.value_heads,
            "in_proj_a": sizes.value_heads,
        }
        self.maps = [Linear(weights.inside(name), n, config.hidden) for name, n in rows.items()]

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        convolved, z, b, a = apply_each(x, *self.maps)
        z = z.reshape(*x.shape[:2], self.sizes.value_heads, self.sizes.value_size)
        return convolved, z, b, a


class Network(qwen3_next.Network):
    def make_recurrent(self, weights: Weights, index: int) -> Attending:
        return SplitDeltaNet(weights, self.config, index, qwen3_next.sizes_of(self.config))

    def make_mlp(self, weights: Weights, index: int) -> Feeding:
        return GatedMLP(weights.inside("mlp"), self.config, read_gate(self.config))
