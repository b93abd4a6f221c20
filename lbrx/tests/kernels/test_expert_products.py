"""Products with experts by every kernel, against float64 products of what lbrx.quant decodes."""

from __future__ import annotations

import numpy as np
import pytest
from device_memory import GPU_KERNELS, on_processors
from quantized_values import reference, stored, weight

import lbrx
import softmetal
from lbrx import metal, quant
from lbrx.arrays import dtype as dt
from lbrx.kernels import deterministic, forced
from lbrx.kernels.experts.experts import ExpertProduct, family
from lbrx.quant import checkpoint_schemes
from lbrx.tensors.quantized import expert_linears

FLOATS = (dt.float32, dt.float16, dt.bfloat16)
ROUNDING = {dt.float32: 2.0**-23, dt.float16: 2.0**-10, dt.bfloat16: 2.0**-7}
PACKED = ("q8_0", "q4_0", "q4_1", "q4_k", "q6_k", "iq3_s", "mxfp4", "mlx:4:64", "q5:64")
VARIANTS = ["serial", "simd", pytest.param("integers", marks=on_processors)]
NOT_IN_INTEGERS = ("mlx:mxfp8", "mlx:nvfp4", *(s.name for s in checkpoint_schemes.SCHEMES))


def stack_of(rng, kind, shape):
    """A stack of experts on the device, and its values."""
    if isinstance(kind, str):
        parts = stored(rng, kind, shape)
        return weight(kind, parts), reference(kind, parts).astype(np.float64)
    values = rng.standard_normal(shape).astype(kind.numpy)
    return lbrx.tensor(values, device="metal"), values.astype(np.float64)


def sent(rng, tokens, used, experts, each):
    """Numbers of different experts for each token, and how many rows of x a token has."""
    chosen = np.array([rng.permutation(experts)[:used] for _ in range(tokens)])
    return chosen, ((tokens, used) if each else (tokens,))


def check(rng, kind, variant, tokens=5, each=False, shape=(6, 21, 512), dtype=dt.float32, count=1):
    used = min(3, shape[0])
    chosen, leading = sent(rng, tokens, used, shape[0], each)
    stacks = [stack_of(rng, kind, shape) for _ in range(count)]
    x = rng.standard_normal((*leading, shape[-1])).astype(dtype.numpy)
    name = f"expert_matmul:{variant}"
    before = metal.stats()["kernels"].get(name, 0)
    with forced(expert_matmul=variant):
        indices = lbrx.tensor(chosen, device="metal")
        results = expert_linears(lbrx.tensor(x, device="metal"), indices, [s for s, _ in stacks])
        lbrx.eval(*results)
    assert metal.stats()["kernels"][name] >= before + count
    rows = (x if each else x[:, None]).astype(np.float64)
    for result, (_, values) in zip(results, stacks, strict=True):
        assert (result.dtype, result.shape) == (dtype, (tokens, used, shape[1]))
        wanted = np.einsum(
            "tunk,tuk->tun", values[chosen], np.broadcast_to(rows, (tokens, used, shape[-1]))
        )
        size = np.einsum(
            "tunk,tuk->tun",
            np.abs(values[chosen]),
            np.abs(np.broadcast_to(rows, (tokens, used, shape[-1]))),
        )
        allowed = 2.0**-20 * size + 2 * ROUNDING[dtype] * np.abs(wanted)
        if variant == "integers":  # x is rounded to sixteen bits, with a scale for 32 values
            step = np.abs(rows).reshape(*rows.shape[:-1], -1, 32).max(axis=-1) / 32767
            wide = np.broadcast_to(np.repeat(step, 32, axis=-1), (tokens, used, shape[-1]))
            allowed = allowed + 0.5 * np.einsum("tunk,tuk->tun", np.abs(values[chosen]), wide)
        assert (np.abs(result.numpy() - wanted) <= allowed).all()


@pytest.mark.parametrize("variant", ["serial", "simd"])
@pytest.mark.parametrize("tokens", [1, 2, 70])
@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_floats(kind, tokens, variant, rng):
    check(rng, kind, variant, tokens, shape=(4, 19, 83), each=tokens == 2)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", PACKED)
def test_packed(kind, variant, rng):
    check(rng, kind, variant, tokens=1 + PACKED.index(kind) * 7, each=PACKED.index(kind) % 2 == 1)


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", sorted(quant.SCHEMES))
def test_every_scheme(kind, variant, rng):
    problem = ExpertProduct(quant.find(kind), dt.uint8, 6, 5, 3, True, 21, 512, dt.float32)
    if family.variants[variant].can(metal.context().info, problem):
        check(rng, kind, variant)
    else:
        assert variant == "integers"
        assert kind in NOT_IN_INTEGERS


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_halves(variant, dtype, rng):
    check(rng, "q8_0", variant, dtype=dtype)


@on_processors
def test_rows_longer_than_a_strip(rng):
    check(rng, dt.float32, "serial", 9, shape=(3, 5, 2100))


def test_several_stacks_share_an_operation(rng):
    check(rng, "q4_0", "simd" if GPU_KERNELS else "integers", 3, count=2)


@pytest.mark.parametrize("kind", [dt.float16, "q4_k"], ids=str)
def test_one_expert_takes_all(kind, rng):
    """More rows than a run has, and experts without any."""
    stack, values = stack_of(rng, kind, (5, 8, 256))
    x = rng.standard_normal((77, 256)).astype(np.float32)
    chosen = np.full((77, 1), 3, np.int32)
    for variant in ("serial", "simd"):
        with forced(expert_matmul=variant):
            (found,) = expert_linears(
                lbrx.tensor(x, device="metal"), lbrx.tensor(chosen, device="metal"), [stack]
            )
        np.testing.assert_allclose(found.numpy()[:, 0], x @ values[3].T, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("variant", VARIANTS)
def test_under_bounds_and_race(variant, rng):
    with softmetal.checking("bounds", "race"):
        check(rng, "q4_0", variant, tokens=7, shape=(4, 9, 96))
        if variant != "integers":
            check(rng, dt.float32, variant, tokens=7, shape=(4, 9, 40))


@pytest.mark.parametrize("chip", ["m1", "m5"])
def test_on_an_apple_chip(chip, on_chip, rng):
    with on_chip(chip):
        check(rng, "q4_0", "simd", tokens=40, shape=(3, 9, 96))


def test_a_row_has_the_same_bits_in_any_batch(rng):
    stack, _ = stack_of(rng, "q4_0", (4, 33, 256))
    x = lbrx.tensor(rng.standard_normal((41, 256)).astype(np.float32), device="metal")
    chosen = lbrx.tensor(sent(rng, 41, 2, 4, False)[0], device="metal")
    with deterministic():
        whole = expert_linears(x, chosen, [stack])[0].numpy()
        for rows in (slice(0, 1), slice(7, 9), slice(40, 41)):
            few = expert_linears(x[rows], chosen[rows], [stack])[0].numpy()
            np.testing.assert_array_equal(whole[rows], few)


def test_the_cpu_device_computes_the_same(rng):
    stack, values = stack_of(rng, "mlx:4:64", (3, 7, 128))
    x = rng.standard_normal((4, 128)).astype(np.float32)
    chosen = sent(rng, 4, 2, 3, False)[0]
    (found,) = expert_linears(
        lbrx.tensor(x, device="cpu"), lbrx.tensor(chosen, device="cpu"), [stack.to_device("cpu")]
    )
    wanted = np.einsum("tunk,tk->tun", values[chosen], x)
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-3)


@pytest.mark.parametrize(
    ("x", "chosen", "stack", "told"),
    [
        ((4, 8), (3, 2), (2, 5, 8), "no row for each token"),
        ((4, 8), (4,), (2, 5, 8), "no row for each token"),
        ((4, 8), (4, 1), (2, 5, 7), "give equal sizes"),
        ((4, 8), (4, 1), (5, 8), "three axes"),
        ((4, 8), (4, 1), (0, 5, 8), "at least one"),
    ],
)
def test_shapes_that_do_not_fit(x, chosen, stack, told):
    with pytest.raises(lbrx.ShapeError, match=told):
        expert_linears(lbrx.ones(x), lbrx.zeros(chosen, dtype="int32"), [lbrx.ones(stack)])
