"""Interfaces of MLX through which Metal kernels are written."""
