"""Fused kernels as data, and their text in MSL."""
