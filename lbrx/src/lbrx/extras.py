"""The packages of the extras, for errors about those that are missing.

Errors name packages instead of `lbrx[merge]`, which pip would look for in the package index.
"""

from __future__ import annotations

import sys

SOFTCOREML = "./softcoreml"  # of a checkout
CORE_ML = "pyobjc-framework-CoreML" if sys.platform == "darwin" else SOFTCOREML
PACKAGES = {
    "models": ("tokenizers", "jinja2"),
    "schemas": ("llguidance",),
    "serve": ("starlette", "uvicorn"),
    "merge": ("pyyaml",),
    "evolve": ("cma",),
    "ray": ("ray",),
    "remote": ("fsspec",),
    "hub": ("huggingface_hub",),
    "video": ("./lbrx-video",),
    "data": ("pyarrow", "pillow"),
    "neural-engine": ("coremltools", CORE_ML),
}
"""Without those of other extras that an extra includes."""
DISTRIBUTIONS = {"video": "lbrx-video"}
"""Distributions of this repository that add `lbrx.NAME` and `lbrx NAME`, by that name. Each is what
the extra of its name installs."""


def install(extra: str) -> str:
    """The command that installs what an extra needs."""
    packages = PACKAGES[extra]
    place = "in a checkout, " if any(each.startswith("./") for each in packages) else ""
    return f"pip install {' '.join(packages)} ({place}the extra lbrx[{extra}])"


def without(name: str) -> str:
    """The error where a distribution is used that is not installed."""
    return f"{name} is in the distribution {DISTRIBUTIONS[name]}: {install(name)}"
