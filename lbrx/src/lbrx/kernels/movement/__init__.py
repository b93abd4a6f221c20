"""Copies between arrays of any strides."""
