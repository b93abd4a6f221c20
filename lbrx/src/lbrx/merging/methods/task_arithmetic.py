"""The weighted sum of the models' differences from a base, added to it."""

from __future__ import annotations

from lbrx.merging.methods.task_vectors import method

METHOD = method("task_arithmetic", "the base plus the weighted differences of the models", None)
"""b + lambda sum w_i (x_i - b)."""
