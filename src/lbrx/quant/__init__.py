"""Quantization schemes: block layouts, and numpy references that encode and decode them."""

from __future__ import annotations

from lbrx.quant.info import QuantizationInfo
from lbrx.quant.scheme import Scheme
from lbrx.quant.schemes import SCHEMES, Quantized, dequantize, describe, find, quantize

__all__ = [
    "SCHEMES",
    "QuantizationInfo",
    "Quantized",
    "Scheme",
    "dequantize",
    "describe",
    "find",
    "quantize",
]
