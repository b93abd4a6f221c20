"""Quantization schemes: block layouts, and numpy references that encode and decode them."""
