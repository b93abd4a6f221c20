"""Why a name of Apple's Metal is missing, for the errors of programs that use it."""

from __future__ import annotations

import re

_PARTS = {
    r"texture|sampler|mipmap|pixelformat": "textures and samplers are not supported: use buffers",
    r"accelerationstructure|intersection|raytracing|motion": "ray tracing is not supported",
    r"functiontable|functionhandle|linkedfunction|stitch|visiblefunction": (
        "function tables and linked functions are not supported"
    ),
    r"mtl4|allocator|argumenttable": (
        "Metal 4's command model is not supported: use MTLCommandQueue"
    ),
    r"tensor|machinelearning": "tensors are not supported",
    r"dynamiclibrary": "dynamic libraries are not supported: compile one source",
    r"^(new)?(mtl)?io(command|file|scratch|compress)": (
        "IO command queues are not supported: read the file into a buffer's contents"
    ),
    r"render|drawable|vertex|fragment|mesh|depth|stencil|raster|viewport|scissor|clearcolor"
    r"|stagein|imageblock|tile": "rendering is not supported",
}


def reason(name: str) -> str:
    """What softmetal lacks that a selector, class or constant belongs to."""
    for pattern, text in _PARTS.items():
        if re.search(pattern, name, re.IGNORECASE):
            return text
    return "it implements the compute part of Metal only"
