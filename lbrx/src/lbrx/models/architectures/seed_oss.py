"""Seed-OSS: Llama with biases on queries, keys and values."""

from __future__ import annotations

from lbrx.models.architectures import llama


class Network(llama.Network):
    """All of it is Llama's; biases are used where the file has them."""
