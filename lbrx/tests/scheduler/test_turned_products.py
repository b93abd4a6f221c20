"""RoPE and writes to a cache inside the kernel of a quantized product, against kernels apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from op_oracle import sample, wide

import lbrx
import softmetal
from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.kernels import forced
from lbrx.kernels.rope import rope_write
from lbrx.quant.scheme import encode
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.long_lived import new_cache, write
from lbrx.tensors.quantized import linears, pack

CAPACITY = 6
PRECISION = {dt.float32: 1e-5, dt.float16: 4e-3, dt.bfloat16: 3e-2}
KEY_HEADS = 2


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    """What GPUs that multiply bytes choose."""
    monkeypatch.setattr(rope_write, "is_worthwhile", lambda info, elements: True)
    with forced(quantized_matmul="lines"):
        yield


@dataclass(frozen=True)
class Case:
    """A product that makes the heads of a token, and how they are rotated."""

    dtype: dt.Dtype = dt.float16
    columns: int = 256
    features: int = 64
    interleaved: bool = False
    factors: bool = False
    position_type: dt.Dtype = dt.int32
    position: int = 3
    dims: int | None = None
    normed: bool = True
    scheme: str = "q4_0"


FUSED = {
    "halves": Case(),
    "halves without a norm": Case(normed=False),
    "neighbours": Case(dt.float32, 1088, 32, interleaved=True, normed=False),
    "factors": Case(dt.bfloat16, factors=True, position_type=dt.int64),
    "q8_0, one pair in a batch": Case(scheme="q8_0", normed=False),
    "scales apart": Case(scheme="mlx:4:64", features=32, interleaved=True, normed=False),
    "scales apart, halves": Case(dt.bfloat16, scheme="mlx:4:64", normed=False),
    "features that are no power of two": Case(features=24),
    "beyond the cache": Case(position=CAPACITY),
}
APART = {
    "some features": Case(dims=32),
}


def on_metal(values) -> Tensor:
    return lbrx.tensor(values, device="metal")


def matrix(rng, scheme: str, rows: int, columns: int) -> Tensor:
    values = rng.normal(0, 1, (rows, columns)).astype(np.float32)
    parts = encode(values, quant.find(scheme), None)
    return pack(scheme, **{name: on_metal(each.reshape(rows, -1)) for name, each in parts.items()})


def graph(case: Case, rng):
    """What makes the queries and the caches of keys and values."""
    x, y, weight = (
        sample(rng, s, case.dtype) for s in ((1, 1, case.columns),) * 2 + (case.columns,)
    )
    heads = (2 * KEY_HEADS, KEY_HEADS, KEY_HEADS)
    weights = [matrix(rng, case.scheme, n * case.features, case.columns) for n in heads]
    before = sample(rng, (2, 1, KEY_HEADS, CAPACITY, case.features), case.dtype)
    factors = rng.uniform(1, 3, (case.dims or case.features) // 2).astype(np.float32)
    options = {"dims": case.dims, "base": 10000.0, "interleaved": case.interleaved}

    def results():
        cache = new_cache(before.shape, case.dtype, "metal")
        write(cache, on_metal(before))
        total, row = on_metal(y), on_metal(x)
        if case.normed:
            row, total = row.add_rms_norm(total, on_metal(weight), eps=1e-5)
        made = [
            part.reshape(1, 1, n, case.features).transpose(1, 2)
            for n, part in zip(heads, linears(row, weights), strict=True)
        ]
        at = on_metal(np.full((1, 1, 1), case.position, case.position_type.numpy))
        given = on_metal(factors) if case.factors else None
        queries, keys = (each.rope(at, given, **options) for each in made[:2])
        kept = [call("overwrite", cache[i], each, at) for i, each in enumerate((keys, made[2]))]
        return [queries, *kept, total + 1], cache

    return results


def kernels_of(tensors) -> list[str]:
    return [kernel.name for kernel in lbrx.explain(*tensors).kernels]


@pytest.mark.parametrize("name", [*FUSED, *APART])
def test_values(name, rng, monkeypatch):
    case = {**FUSED, **APART}[name]
    results = graph(case, rng)
    made, cache = results()
    with lbrx.profile() as seen:
        lbrx.eval(*made)
    found = [x.numpy() for x in (*made, cache)]
    writes = [r.variant for r in seen.records if r.kernel == "rope"]
    assert writes == ([] if name in FUSED else ["write"])
    monkeypatch.setenv("LBRX_FUSION", "0")
    made, cache = results()
    for one, other in zip(found, (x.numpy() for x in (*made, cache)), strict=True):
        if case.normed:  # the kernel multiplies its results by the norm's factor
            assert (
                np.abs(wide(one) - wide(other)).max()
                <= PRECISION[case.dtype] * np.abs(wide(other)).max()
            )
        else:
            np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def test_accesses(rng):
    with softmetal.checking("bounds", "race"):
        lbrx.eval(*graph(Case(), rng)()[0])
