"""How tests call a merge method: parents as arrays, defaults from the method's own tables."""

from __future__ import annotations

import numpy as np

import lbrx
from lbrx.merging.methods import METHODS, Base, Parents


def parents_of(name, xs, base, parameters=None, own=None, *, device="metal", seed=0, tensor="w"):
    method = METHODS[name]
    own = own or [{} for _ in xs]
    return Parents(
        name=tensor,
        tensors=tuple(lbrx.tensor(x, device=device) for x in xs),
        base=None
        if base is None or method.base is Base.UNUSED
        else lbrx.tensor(base, device=device),
        parameters={p.name: p.default for p in method.parameters} | (parameters or {}),
        own=tuple({p.name: p.default for p in method.own} | o for o in own),
        seed=seed,
    )


def merged(name, xs, base, parameters=None, own=None, *, dtype=None, **options):
    """The result of a method as an array: in the type of the first model, or in another."""
    result = METHODS[name].function(parents_of(name, xs, base, parameters, own, **options))
    return result.astype(lbrx.arrays.dtype.parse(dtype or xs[0].dtype)).numpy()


def family(rng, shape, dtype, count, spread=0.1):
    """A base and models near it."""
    base = rng.standard_normal(shape).astype(dtype)
    wide = base.astype(np.float32)
    return base, [(wide + spread * rng.standard_normal(shape)).astype(dtype) for _ in range(count)]
