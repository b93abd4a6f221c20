"""Encoding into quantized blocks."""
