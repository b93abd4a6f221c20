"""Qwen 3.5 (MoE): Qwen 3.5 with experts, and an MLP beside them that sees every token."""

from __future__ import annotations

from lbrx.models.architectures import qwen2_moe, qwen3_5_text
from lbrx.models.blocks import Feeding
from lbrx.models.weights import Weights


class Network(qwen3_5_text.Network):
    def make_mlp(self, weights: Weights, index: int) -> Feeding:
        return qwen2_moe.make_mlp(self, weights, index, normalize=True)
