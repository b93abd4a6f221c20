"""Networks of language models: the decoder, its layers and their weights."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder, Layer
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attention, GatedMLP, Linear, RMSNorm, read_gate
from lbrx.models.weights import Weights

__all__ = [
    "Attention",
    "Decoder",
    "ForwardStep",
    "GatedMLP",
    "Layer",
    "Linear",
    "ModelConfig",
    "PreNormLayer",
    "RMSNorm",
    "Weights",
    "read_gate",
]
