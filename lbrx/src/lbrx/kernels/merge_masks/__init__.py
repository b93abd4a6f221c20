"""Masks and sums over whole tensors, for merges."""
