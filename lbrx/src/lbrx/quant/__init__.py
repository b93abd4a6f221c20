"""Quantization schemes: block layouts, and numpy references that encode and decode them."""

from __future__ import annotations

from lbrx.quant.info import QuantizationInfo
from lbrx.quant.mixtures import MIXTURES, ModelFacts, find_mixture, mixture
from lbrx.quant.scheme import Encoder, Scheme
from lbrx.quant.scheme_registry import (
    SCHEMES,
    Quantized,
    dequantize,
    describe,
    find,
    quantize,
    register,
)

__all__ = [
    "MIXTURES",
    "SCHEMES",
    "Encoder",
    "ModelFacts",
    "QuantizationInfo",
    "Quantized",
    "Scheme",
    "dequantize",
    "describe",
    "find",
    "find_mixture",
    "mixture",
    "quantize",
    "register",
]
