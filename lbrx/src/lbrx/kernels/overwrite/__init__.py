"""Rows written into a cache."""
