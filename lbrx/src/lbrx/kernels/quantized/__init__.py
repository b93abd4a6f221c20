"""Quantized values: codecs and decoding."""
