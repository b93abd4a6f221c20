"""Merge methods: one module for each, with a `METHOD`."""

from __future__ import annotations

from lbrx.merge.methods import linear, passthrough
from lbrx.merge.methods.method import Base, Method, Parameter, Parents

METHODS: dict[str, Method] = {module.METHOD.name: module.METHOD for module in (linear, passthrough)}
"""Every method by its name in a configuration."""

__all__ = ["METHODS", "Base", "Method", "Parameter", "Parents"]
