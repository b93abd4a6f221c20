"""Merge methods against their definitions in float64."""

from __future__ import annotations

import itertools

import merge_definitions as definitions
import ml_dtypes
import numpy as np
import pytest
from method_cases import family, merged, parents_of

import lbrx
from lbrx.errors import LbrxError
from lbrx.merging.methods import METHODS, Base

DTYPES = (np.float32, ml_dtypes.bfloat16, np.float16)
# Of values near 1, relative and absolute: a unit in the last place, or some of them for float32.
TOLERANCE = {np.float32: 3e-6, ml_dtypes.bfloat16: 8e-3, np.float16: 1e-3}
SHAPES = ((129,), (17, 33), (3, 5, 7))
WEIGHTS = [{"weight": 0.3}, {"weight": 0.9}]
THREE = [{"weight": 0.5}, {"weight": -0.2}, {"weight": 0.7}]
DENSE = [{"weight": 0.5, "density": 0.4}, {"weight": 0.7, "density": 0.61}]
# (method, number of models, parameters, parameters of each model)
CASES = [
    ("linear", 2, {}, WEIGHTS),
    ("linear", 3, {"normalize": False}, THREE),
    ("linear", 3, {}, [{"weight": 1}, {"weight": 0}, {"weight": 2}]),
    ("linear", 6, {}, [{"weight": w} for w in (1, 2, 3, 4, 5, 6)]),
    ("slerp", 1, {"t": 0.4}, None),
    ("nuslerp", 2, {}, WEIGHTS),
    ("nuslerp", 2, {"nuslerp_flatten": False}, WEIGHTS),
    ("nuslerp", 2, {"nuslerp_flatten": False, "nuslerp_row_wise": True}, WEIGHTS),
    ("multislerp", 3, {}, [{"weight": 0.5}, {"weight": 0.2}, {"weight": 0.7}]),
    ("multislerp", 2, {"normalize_weights": False}, WEIGHTS),
    ("karcher", 3, {}, None),
    ("karcher", 2, {"max_iter": 1}, None),
    ("task_arithmetic", 3, {"lambda": 0.7}, THREE),
    ("task_arithmetic", 2, {"normalize": True}, WEIGHTS),
    ("ties", 2, {}, DENSE),
    ("ties", 3, {"normalize": False, "lambda": 1.5, "rescale": True}, THREE),
    ("ties", 2, {"rescale": True}, DENSE),
    ("breadcrumbs", 2, {}, [{**o, "gamma": 0.1} for o in DENSE]),
    ("breadcrumbs", 2, {"rescale": True}, [{**o, "gamma": 0.6} for o in DENSE]),
    ("breadcrumbs_ties", 2, {"normalize": True}, DENSE),
    ("sce", 3, {}, None),
    ("sce", 3, {"select_topk": 0.3}, None),
    ("model_stock", 3, {}, None),
    ("model_stock", 2, {"filter_wise": True}, None),
    ("nearswap", 1, {"t": 0.02}, None),
    ("arcee_fusion", 1, {}, None),
    ("ram", 3, {"epsilon": 0.08}, None),
    ("ramplus_tl", 3, {"epsilon": 0.08}, None),
    ("passthrough", 1, {}, None),
    ("passthrough", 1, {}, [{"scale": -0.5}]),
]
# Shares of elements where rounding may decide a comparison, such as the sign of a sum near 0.
FEW = {"arcee_fusion": 0.01, "nearswap": 0.01, "ram": 0.01, "ramplus_tl": 0.01}
FEW |= {"ties": 1e-3, "breadcrumbs_ties": 1e-3, "sce": 1e-3}
RANDOM = ("dare_ties", "dare_linear", "della", "della_linear")


def close(got, expected, dtype, most=0.0):
    """Whether arrays agree, but for a share of elements that fall to the other side of a limit."""
    bound = TOLERANCE[dtype] * np.maximum(np.abs(expected), 1)
    bad = np.abs(got.astype(np.float64) - expected) > bound
    expected_bad = most * bad.size  # of few elements, chance can bring several more
    allowed = np.ceil(expected_bad + 4 * np.sqrt(expected_bad))
    assert bad.sum() <= allowed, f"{bad.sum()} of {bad.size} differ"


def compare(case, rng, shape, dtype, device, with_base=True):
    name, count, parameters, own = case
    base, xs = family(rng, shape, dtype, count)
    if METHODS[name].base is Base.UNUSED or not with_base:
        base = None
    wide = [x.astype(np.float64) for x in xs]
    named = {"lambda_" if k == "lambda" else k: v for k, v in parameters.items()}
    expected = getattr(definitions, name)(
        wide, None if base is None else base.astype(np.float64), own or [{}] * count, **named
    )
    got = merged(name, xs, base, parameters, own, device=device)
    assert got.dtype == dtype
    assert got.shape == shape
    close(got, expected, dtype, FEW.get(name, 0.0))


NAMED = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[2]}")


@NAMED
def test_definition(case, rng):
    """On the cpu in every type; a kernel takes seconds to compile, so in one of them on metal."""
    for shape, dtype in zip(SHAPES, DTYPES, strict=True):
        compare(case, rng, shape, dtype, "cpu")
    number = CASES.index(case) % len(DTYPES)
    compare(case, rng, SHAPES[number], DTYPES[number], "metal")


@pytest.mark.full
@NAMED
def test_definition_everywhere(case, rng):
    for shape, dtype, device in itertools.product(
        (*SHAPES, (1,), (8, 1), (1, 300), (300, 257)), DTYPES, ("cpu", "metal")
    ):
        # The directions of single numbers are parallel, or cancel each other out.
        if (case[0], shape) not in (("nuslerp", (8, 1)), ("multislerp", (1,))):
            compare(case, rng, shape, dtype, device)


@pytest.mark.parametrize("name", ["nuslerp", "multislerp"])
def test_without_base(name, rng):
    compare((name, 2, {}, WEIGHTS), rng, (9, 31), np.float32, "metal", with_base=False)
    wide = np.eye(2, 64, dtype=np.float32)  # a right angle
    got = merged(name, list(wide), None, None, [{"weight": 1}] * 2)
    np.testing.assert_allclose(got, wide.sum(0) / np.sqrt(2), atol=1e-6)


def test_every_method_has_a_case():
    assert {case[0] for case in CASES} | set(RANDOM) == set(METHODS)


# ---- what is a parent, bit for bit ----


def bits(x):
    return x.view(np.uint8)


def awkward(rng, dtype):
    """Values of many sizes, with both zeros."""
    x = (rng.standard_normal((7, 65)) * 10.0 ** rng.integers(-6, 4, (7, 65))).astype(dtype)
    x[0, :4] = [0.0, -0.0, 1.0, -1.0]
    return x


@pytest.mark.parametrize("device", ["cpu", pytest.param("metal", marks=pytest.mark.full)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(METHODS))
def test_merging_a_model_with_itself(name, dtype, device, rng):
    method, x = METHODS[name], awkward(rng, dtype)
    count = min(5, method.models[1] or 5)
    needed = {p.name: 0.3 for p in method.parameters if p.required}
    shares = (0.3, 0.9, 0.5, 0.7, 0.1)[:count]
    own = [{p.name: w for p in method.own if p.required} for w in shares]
    for o in own:
        o |= {"density": 0.5} if any(p.name == "density" for p in method.own) else {}
    got = merged(name, [x] * count, x, needed, own, device=device)
    np.testing.assert_array_equal(bits(got), bits(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_ends_of_an_interpolation(dtype, rng):
    base, x = awkward(rng, dtype), awkward(rng, dtype)[::-1].copy()
    for t, expected in ((0, base), (1, x), (0.0, base), (1.0, x)):
        np.testing.assert_array_equal(bits(merged("slerp", [x], base, {"t": t})), bits(expected))
        weights = [{"weight": 1 - t}, {"weight": t}]
        for name in ("linear", "nuslerp"):
            got = merged(name, [base, x], None, None, weights)
            np.testing.assert_array_equal(bits(got), bits(expected))
    np.testing.assert_array_equal(bits(merged("nearswap", [x], base, {"t": 0})), bits(base))


# ---- masks ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", [0.0, 1e-9, 0.2, 0.5, 1.0])
def test_ties_keeps_exactly_k(density, dtype, rng):
    """Of differences that are mostly equal, as those of norms in bfloat16 are."""
    base = np.ones(1024, dtype)
    x = (base.astype(np.float32) + rng.choice([0.0078125, -0.0078125, 0.015625], 1024)).astype(
        dtype
    )
    got = merged("ties", [x], base, None, [{"weight": 1, "density": density}])
    count = max(1, int(density * 1024)) if density else 0
    assert (got != base).sum() == count
    assert set(np.unique(got)) <= set(np.unique(np.concatenate([x, base])))


def test_breadcrumbs_keeps_the_density_where_gamma_is_large(rng):
    base, (x,) = family(rng, (40, 25), np.float32, 1)
    got = merged("breadcrumbs", [x], base, None, [{"weight": 1, "density": 0.9, "gamma": 0.5}])
    assert (got != base).sum() == 900


def kept(name, x, base, density, parameters=None, **more):
    """The mask of a random method, found in its result."""
    own = [{"weight": 1, "density": density, **more}]
    got = merged(name, [x], base, {"rescale": False, "normalize": False} | (parameters or {}), own)
    mask = got != base
    np.testing.assert_allclose(got[mask], x[mask], atol=1e-6)
    return mask


def test_dare_keeps_a_random_part(rng):
    base, (x,) = family(rng, (512, 300), np.float32, 1)
    mask = kept("dare_linear", x, base, 0.3)
    # Five standard deviations of the share of 153600 draws, of its rows and of neighbours.
    assert abs(mask.mean() - 0.3) < 5 * np.sqrt(0.21 / mask.size)
    for axis in (0, 1):
        spread = mask.mean(axis).std() / np.sqrt(0.21 / mask.shape[axis])
        assert 0.85 < spread < 1.15
        again = np.roll(mask, 1, axis)
        assert abs((mask & again).mean() - 0.09) < 5 * np.sqrt(0.09 / mask.size)


def test_della_keeps_larger_ones_more_often(rng):
    base, (x,) = family(rng, (4000, 40), np.float32, 1)
    mask = kept("della_linear", x, base, 0.5, epsilon=0.2)
    ranks = np.argsort(np.argsort(np.abs(x - base), axis=1), axis=1)
    shares = np.array([mask[ranks == rank].mean() for rank in range(40)])
    expected = 0.3 + 0.4 * np.arange(40) / 39
    assert np.abs(shares - expected).max() < 5 * np.sqrt(0.25 / 4000)


@pytest.mark.parametrize("name", RANDOM)
def test_random_methods_given_their_masks(name, rng):
    """Rescaling, consensus and weights, with the masks that each model has alone."""
    base, xs = family(rng, (30, 130), np.float32, 2)
    masks = []
    for i in range(2):  # the other model does not change
        models = [x if i == j else base for j, x in enumerate(xs)]
        alone = [{"weight": 1.0, "density": 0.6}] * 2
        plain = {"rescale": False, "normalize": False}
        masks.append(merged(name, models, base, plain, alone) != base)
    own = [{"weight": 0.4, "density": 0.6}, {"weight": 0.8, "density": 0.6}]
    for parameters in ({}, {"rescale": False}, {"normalize": True, "lambda": 0.5}):
        settings = {p.name: p.default for p in METHODS[name].parameters} | parameters
        expected = definitions.task_vectors(
            [x.astype(np.float64) for x in xs],
            base.astype(np.float64),
            own,
            masks,
            consensus=name in ("dare_ties", "della"),
            normalize=settings["normalize"],
            rescale=settings["rescale"],
            lambda_=settings["lambda"],
        )
        close(merged(name, xs, base, parameters, own), expected, np.float32)


def test_masks_depend_on_seed_name_and_model(rng):
    base, (x,) = family(rng, (64, 64), np.float32, 1)
    own = [{"weight": 1, "density": 0.5}]

    def mask(index=0, **options):
        models = [x if i == index else base for i in range(2)]
        return merged("dare_ties", models, base, {"rescale": False}, own * 2, **options) != base

    first = mask()
    np.testing.assert_array_equal(first, mask(device="cpu"))
    others = [mask(seed=1), mask(tensor="v"), mask(index=1)]
    for other in others:
        assert 0.4 < (first == other).mean() < 0.6


# ---- bad input ----


@pytest.mark.parametrize(
    ("name", "parameters", "own", "message"),
    [
        ("linear", {}, [{"weight": 1}, {"weight": -1}], "add up to 0.*normalize: false"),
        ("multislerp", {}, [{"weight": 1}, {"weight": -1}], "normalize_weights: false"),
        ("della", {}, [{"weight": 1, "density": 0.1}] * 2, "epsilon < density < 1 - epsilon"),
    ],
)
def test_refused(name, parameters, own, message, rng):
    base, xs = family(rng, (4, 8), np.float32, 2)
    with pytest.raises(LbrxError, match=message):
        merged(name, xs, base, parameters, own)


def test_opposite_directions_are_refused(rng):
    x = rng.standard_normal((4, 8)).astype(np.float32)
    z = np.zeros_like(x)
    with pytest.raises(LbrxError, match="cancel each other out"):
        merged("multislerp", [x, -x, z], None, None, [{"weight": 1}] * 3)
    both = merged("multislerp", [x, -x], None, None, [{"weight": 1}] * 2)
    np.testing.assert_allclose(both, z, atol=1e-6)


def test_tensors_of_no_elements():
    empty = np.zeros((3, 0), np.float32)
    for name in ("linear", "slerp", "ties", "dare_ties", "sce", "arcee_fusion", "karcher"):
        method = METHODS[name]
        count = min(2, method.models[1] or 2)
        needed = {p.name: 0.3 for p in method.parameters if p.required}
        own = [{p.name: 0.5 for p in method.own if p.required or p.name == "density"}] * count
        assert merged(name, [empty] * count, empty, needed, own).shape == (3, 0)


def test_kernels_read_the_parents_once(rng):
    """In bfloat16: the mean is one kernel, and so is all that follows the masks of TIES."""
    base, xs = family(rng, (8, 64), ml_dtypes.bfloat16, 2)
    for name, own, kernels, traffic in (
        ("linear", WEIGHTS, 1, "reads 2.0"),
        ("task_arithmetic", WEIGHTS, 1, "reads 3.0"),
        ("ties", DENSE, 3, "reads 4.1"),
    ):
        parents = parents_of(name, xs, base, None, own)
        lbrx.eval(parents.tensors, parents.base)
        plan = str(lbrx.explain(METHODS[name].function(parents).astype("bfloat16")))
        assert f"in {kernels} kernel" in plan
        assert traffic in plan
