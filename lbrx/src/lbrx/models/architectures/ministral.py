"""Ministral: Mistral with windows in the layers that config.json lists."""

from __future__ import annotations

from lbrx.models.architectures import mistral


class Network(mistral.Network):
    pass
