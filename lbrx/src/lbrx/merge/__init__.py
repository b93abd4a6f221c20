"""Merging of models: a conversion whose tensors have several sources."""
