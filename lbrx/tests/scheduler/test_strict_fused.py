"""Fused kernels pass softmetal's strict check."""

from __future__ import annotations

import re

import numpy as np
from bit_graphs import random_recipe
from strict_msl import findings

from lbrx.metal.library import SHADERS
from lbrx.metal.shader_files import shader_text
from lbrx.scheduler.graph_plan import pipelines

GRAPHS, DEPTH = 6, 30  # random graphs, and operations of each
INCLUDE = re.compile(r'^#include "[^"]+"\n', re.MULTILINE)


def test_fused_kernels() -> None:
    """The kernels of random graphs are checked at once, each in its own namespace."""
    sources: dict[str, None] = {}
    for seed in range(GRAPHS):
        recipe = random_recipe(np.random.default_rng(seed), DEPTH, rounded=True)
        results = recipe.build(recipe.inputs())[-3:]
        found = pipelines([result.array.storage for result in results])
        sources |= dict.fromkeys(each.source for each in found if each.source)
    assert len(sources) > 10
    headers = sorted({line for source in sources for line in INCLUDE.findall(source)})
    bodies = [f"namespace n{i} {{\n{INCLUDE.sub('', s)}\n}}\n" for i, s in enumerate(sources)]
    assert findings(shader_text(SHADERS, "fused.metal", "".join([*headers, *bodies]))) == ""
