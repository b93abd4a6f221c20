"""Stored tensors and models: recipes interpreted, models opened, tensors loaded and saved."""
