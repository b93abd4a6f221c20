"""`grad`, `value_and_grad`, `vjp` and what functions with gradients are made of."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np
import pytest

import lbrx
from lbrx.errors import DtypeError, GradientError, ShapeError

STEP = 1e-6


@pytest.fixture
def given(place, rng):
    """Makes random tensors on the device of a test."""

    def make(*shape, dtype="float32"):
        return lbrx.tensor(rng.normal(size=shape), dtype=dtype, device=place)

    return make


def differences(function, *arrays):
    """The gradients of a function of float64 tensors on the cpu, an element at a time."""
    found = []
    for place, array in enumerate(arrays):
        gradient = np.zeros_like(array)
        for index in np.ndindex(*array.shape):
            values = []
            for step in (STEP, -STEP):
                moved = [x.copy() for x in arrays]
                moved[place][index] += step
                values.append(function(*(lbrx.tensor(x, device="cpu") for x in moved)).item())
            gradient[index] = (values[0] - values[1]) / (2 * STEP)
        found.append(gradient)
    return found


def mlp(tree, x):
    return ((x @ tree["w"][0] + tree["b"]).gelu() @ tree["w"][1]).log_softmax().square().mean()


class Pair(NamedTuple):
    first: lbrx.Tensor
    second: lbrx.Tensor


def test_gradients_have_the_form_of_their_argument(given):
    tree = {"w": [given(4, 5), given(5, 3)], "b": given(5), "name": "layer", "count": 3}
    value, found = lbrx.value_and_grad(mlp)(tree, given(2, 4))
    assert value.shape == ()
    assert [g.shape for g in found["w"]] == [(4, 5), (5, 3)]
    assert found["b"].shape == (5,)
    assert found["name"] is None
    assert found["count"] is None
    pair = lbrx.grad(lambda p: (p.first * p.second).sum())(Pair(given(2), given(2)))
    assert isinstance(pair, Pair)


def test_argnums_and_argnames(given):
    def f(x, y, *, z):
        return (x * y * z).sum()

    x, y, z = given(3), given(3), given(3)
    near = np.testing.assert_allclose
    near(lbrx.grad(f, 1)(x, y, z=z).numpy(), (x * z).numpy())
    both = lbrx.grad(f, (0, -1))(x, y, z=z)
    near(both[1].numpy(), (x * z).numpy())
    near(lbrx.grad(f, argnames="z")(x, y, z=z)["z"].numpy(), (x * y).numpy())
    positional, named = lbrx.grad(f, 0, ("z",))(x, y, z=z)
    near(positional.numpy(), (y * z).numpy())
    near(named["z"].numpy(), (x * y).numpy())


def test_functions_may_return_more_than_the_value(given):
    x = given(3)
    (value, note), gradient = lbrx.value_and_grad(lambda x: (x.sum(), {"double": x * 2}))(x)
    assert value.item() == pytest.approx(x.sum().item())
    np.testing.assert_array_equal(note["double"].numpy(), 2 * x.numpy())
    assert type(note["double"]) is lbrx.Tensor
    np.testing.assert_array_equal(gradient.numpy(), np.ones(3))
    gradient, more = lbrx.grad(lambda x: (x.sum(), "more"), has_aux=True)(x)
    assert more == "more"


def test_second_derivatives_are_those_of_differences(rng):
    x, w = rng.normal(size=(3, 4)), rng.normal(size=(4, 2))

    def inner(x, w):
        return (((x @ w).tanh() ** 3).softmax() * x.sum(axis=-1, keepdims=True).exp()).sum()

    def outer(x, w):
        return (lbrx.grad(inner)(x, w) ** 2).sum() + lbrx.grad(inner, 1)(x, w).abs().sum()

    found = lbrx.grad(outer, (0, 1))(*(lbrx.tensor(a, device="cpu") for a in (x, w)))
    for g, expected in zip(found, differences(outer, x, w), strict=True):
        np.testing.assert_allclose(g.numpy(), expected, rtol=2e-5, atol=2e-5)


def test_third_derivative(given):
    third = lbrx.grad(lambda x: lbrx.grad(lambda x: lbrx.grad(lambda x: x**5)(x))(x))
    np.testing.assert_allclose(
        third(lbrx.tensor(2.0, device=given().device)).item(), 240, rtol=1e-5
    )


def test_an_inner_gradient_does_not_confuse_the_outer_one(given):
    x = given()
    # d/dx (x * d/dy (x + y)) = 1: the inner gradient is 1, not 2.
    found = lbrx.grad(lambda x: x * lbrx.grad(lambda y: x + y)(x))(x)
    assert found.item() == 1


def test_vjp(given):
    x, w, g = given(2, 3), given(3, 4), given(2, 4)
    (made, _), (of_x, of_w) = lbrx.vjp(lambda x, w: [x @ w, x * 1], [x, w], [g, x])
    near = np.testing.assert_allclose
    near(made.numpy(), (x @ w).numpy(), rtol=1e-5)
    near(of_x.numpy(), (g @ w.T + x).numpy(), rtol=1e-5, atol=1e-6)
    near(of_w.numpy(), (x.T @ g).numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="one cotangent of the same shape"):
        lbrx.vjp(lambda x: x * 2, [x], [g])


def test_views_and_indexing(rng):
    x = rng.normal(size=(4, 6))

    def f(x):
        parts = [
            x[1:3, ::2] * x.T[1::2, ::-2].T[:2],
            x[None, -1].expand(3, 6)[:, :3].exp()[:2],
            x.reshape(2, 3, 4).permute(2, 0, 1)[1:3, 1, :],
            x[[0, 0, 3], 1:4][:2] ** 2,
            x.at[0].set(x[1] * 2)[:2, :3],
            x.roll(1, 0).flip()[:2, 3:] * x[x > 10].sum(),
        ]
        return sum((part * (i + 1)).sum() for i, part in enumerate(parts)) + x.diagonal().sum()

    (expected,) = differences(f, x)
    found = lbrx.grad(f)(lbrx.tensor(x, device="cpu"))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-7)
    on_metal = lbrx.grad(f)(lbrx.tensor(x.astype(np.float32), device="metal"))
    np.testing.assert_allclose(on_metal.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_any_view(seed):
    """A chain of random views, and one over memory that overlaps."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 3, 6))

    def view(x, rng):
        for _ in range(4):
            match rng.integers(5):
                case 0:
                    x = x.permute(*rng.permutation(x.ndim).tolist())
                case 1:
                    axis = int(rng.integers(x.ndim))
                    start, step = int(rng.integers(x.shape[axis])), int(rng.choice([-2, -1, 1, 2]))
                    x = x[(*[slice(None)] * axis, slice(start, None, step))]
                case 2:
                    x = x.unsqueeze(0).expand(2, *x.shape)
                case 3:
                    x = x.reshape(-1, x.shape[-1]) if x.size else x
                case 4:
                    x = x[..., 0] if x.ndim > 1 else x
        return x

    def f(x):
        seen = view(x, np.random.default_rng(seed + 100))
        weights = np.random.default_rng(seed).normal(size=seen.shape)
        return (seen * lbrx.tensor(weights, device=x.device) * seen).sum()

    (expected,) = differences(f, x)
    found = lbrx.grad(f)(lbrx.tensor(x, device="cpu"))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-7)


def test_windows_that_overlap(rng):
    from lbrx.arrays.shape import Layout

    x = rng.normal(size=10)

    def f(x):
        windows = x.view(Layout((4, 4), (2, 1), x.array.layout.offset))
        return (windows * windows * lbrx.arange(16, device=x.device).reshape(4, 4)).sum()

    (expected,) = differences(f, x)
    found = lbrx.grad(f)(lbrx.tensor(x, device="cpu"))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-7)


def test_stop_gradient(given):
    x = given(3)
    found = lbrx.grad(lambda x: (x * lbrx.stop_gradient({"x": x * x})["x"]).sum())(x)
    np.testing.assert_allclose(found.numpy(), x.numpy() ** 2, rtol=1e-6)


def test_what_does_not_depend_on_the_argument_has_zeros(given):
    x, y = given(3), given(2)
    found = lbrx.grad(lambda x, y: x.sum(), (0, 1))(x, y)
    np.testing.assert_array_equal(found[1].numpy(), np.zeros(2))
    assert lbrx.grad(lambda x: lbrx.tensor(1.0, device=x.device))(x).tolist() == [0, 0, 0]


def test_checkpoint_repeats_and_has_gradients_of_what_it_captures(given):
    x, w = given(5, 3), given(3, 3)
    calls = []

    def loss(w, x, wrap):
        def layer(h):
            calls.append(h.shape)
            noise = lbrx.random.uniform(h.shape, device=h.device) > 0.5
            return lbrx.where(noise, (h @ w).tanh(), h.sum(axis=-1, keepdims=True))

        once = wrap(layer)
        twice = wrap(lambda h: once(once(h)) * w[0])
        return (twice(x) ** 2).sum()

    found = []
    for wrap in (lambda f: f, lbrx.checkpoint):
        calls.clear()
        lbrx.random.seed(3)
        found.append(lbrx.grad(loss, (0, 1))(w, x, wrap))
    assert len(calls) > 4
    for plain, checkpointed in zip(*found, strict=True):
        np.testing.assert_allclose(checkpointed.numpy(), plain.numpy(), rtol=1e-5, atol=1e-6)
    lbrx.random.seed(3)
    lbrx.random.uniform((5, 3)), lbrx.random.uniform((5, 3))
    after = lbrx.random.uniform(4).tolist()
    lbrx.random.seed(3)
    lbrx.grad(loss, (0, 1))(w, x, lbrx.checkpoint)
    assert lbrx.random.uniform(4).tolist() == after


def test_second_derivative_of_a_checkpoint(given):
    x = given(4)

    def f(wrap):
        inner = wrap(lambda x: (x.exp() * x).sin())
        return lbrx.grad(lambda x: (lbrx.grad(lambda x: inner(x).sum())(x) ** 2).sum())

    plain, checkpointed = f(lambda g: g)(x), f(lbrx.checkpoint)(x)
    np.testing.assert_allclose(checkpointed.numpy(), plain.numpy(), rtol=1e-4, atol=1e-4)


def test_custom_vjp(given):
    @lbrx.custom_vjp
    def product(pair, z):
        return {"made": pair[0] * pair[1], "z": z * 2}

    with pytest.raises(GradientError, match="no rule yet"):
        lbrx.grad(lambda x: product([x, x], x)["made"].sum())(given(2))

    @product.vjp
    def rule(primals, cotangents, outputs):
        (x, y), _ = primals
        assert outputs["made"].shape == x.shape
        assert cotangents["z"].shape == x.shape
        return [10 * cotangents["made"] * y, None], None

    x, y = given(2), given(2)
    found = lbrx.grad(lambda x, y: product([x, y], x)["made"].sum(), (0, 1))(x, y)
    np.testing.assert_allclose(found[0].numpy(), 10 * y.numpy(), rtol=1e-6)
    assert found[1].tolist() == [0, 0]
    second = lbrx.grad(lambda y: (lbrx.grad(lambda x: product([x, y], x)["made"].sum())(x)).sum())
    np.testing.assert_allclose(second(y).numpy(), [10, 10], rtol=1e-6)

    @product.vjp
    def short(primals, cotangents, outputs):
        return cotangents["made"]

    with pytest.raises(TypeError, match="1 gradients for 3 arguments"):
        lbrx.grad(lambda x: product([x, x], x)["made"].sum())(x)


DOUBLE = """kernel void double_it(device const float* x, device float* out,
                                 uint i [[thread_position_in_grid]]) { out[i] = 2 * x[i]; }"""


def test_a_kernel_takes_a_vjp():
    x = lbrx.tensor([1.0, 2.5], device="metal")
    double = lbrx.kernel(DOUBLE, vjp=lambda primals, cotangent, output: cotangent * 2)

    def f(x):
        return (double(x, grid=2) * x).sum()

    assert lbrx.grad(f)(x).tolist() == [4, 10]
    step = lbrx.compile(lambda x, rate: x - rate * lbrx.grad(f)(x))
    assert step(x, 0.25).tolist() == [0, 0]
    assert step(x, 0.5).tolist() == [-1, -2.5]
    with pytest.raises(GradientError, match=r"double_it.* has no gradient: give it vjp="):
        lbrx.grad(lambda x: lbrx.kernel(DOUBLE)(x).sum())(x)


def test_a_compiled_step_is_one_list_of_commands(rng):
    tree = {"w": [rng.normal(size=(4, 5)), rng.normal(size=(5, 3))], "b": rng.normal(size=5)}
    tree = lbrx.tree_map(lambda a: lbrx.tensor(a.astype("f4"), device="metal"), tree)

    def step(tree, x, rate):
        value, gradient = lbrx.value_and_grad(mlp)(tree, x)
        return value, lbrx.tree_map(lambda p, g: p - rate * g, tree, gradient)

    compiled, plain = lbrx.compile(step), tree
    with lbrx.deterministic():
        for i in range(4):
            x = lbrx.tensor(rng.normal(size=(2, 4)).astype("f4"), device="metal")
            value, tree = compiled(tree, x, 0.1 * i)
            expected, plain = step(plain, x, 0.1 * i)
            assert value.item() == expected.item()
            for (_, a), (_, b) in zip(*map(lbrx.tree_flatten, (tree, plain)), strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_what_no_rule_reads_is_freed():
    x = lbrx.tensor(np.ones(1000), device="cpu")
    held = []

    def f(x):
        for operation in (lambda x: x + 1, lambda x: x * 2, lambda x: x.exp(), lambda x: -x):
            x = operation(x)
            held.append(weakref.ref(x.array.storage))
        # exp keeps its result; x + 1, 2 x and -x are read by no rule.
        assert [reference() is not None for reference in held] == [False, False, True, True]
        return x.sum()

    value, _ = lbrx.value_and_grad(f)(x)
    assert not any(reference() for reference in held)
    assert type(value) is lbrx.Tensor


def test_the_backward_pass_frees_what_it_has_read():
    """The peak of a chain: the kept results, and not twice as much."""
    import tracemalloc

    x = lbrx.tensor(np.ones(1 << 16), device="cpu")

    def f(x):
        for _ in range(16):
            x = x.sin()
        return x.sum()

    lbrx.grad(f)(x)
    tracemalloc.start()
    lbrx.grad(f)(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 22 * (1 << 19)


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x: x * 2, ShapeError, r"returns shape \(3,\): return a scalar"),
        (lambda x: x.argmax(), DtypeError, "return a floating scalar"),
        (lambda x: 1.0, TypeError, "return a scalar tensor"),
        (
            lambda x: lbrx.apply("nextafter", x, 1.0).sum(),
            GradientError,
            "nextafter has no gradient",
        ),
        (
            lambda x: lbrx.apply("rope", x[:2][None], [0], x[:1].exp()).sum(),
            GradientError,
            "rope has no gradient for its operand factors",
        ),
    ],
)
def test_errors_name_the_operation_and_a_remedy(function, error, text, given):
    with pytest.raises(error, match=text):
        lbrx.grad(function)(given(3))


def test_arguments_without_a_floating_tensor():
    with pytest.raises(TypeError, match="list has no floating tensor"):
        lbrx.grad(lambda x: x[0].sum())([lbrx.tensor([1, 2])])
    with pytest.raises(TypeError, match="argnums has 2, and 1 arguments"):
        lbrx.grad(lambda x: x.sum(), 2)(lbrx.ones(2))
    with pytest.raises(TypeError, match="argnames has 'y'"):
        lbrx.grad(lambda x: x.sum(), argnames="y")(lbrx.ones(2))


def test_numbers_of_a_traced_function_stay_open_or_are_read():
    step = lbrx.compile(lambda x, p: lbrx.grad(lambda x: (x**p * p).sum())(x))
    x = lbrx.tensor([2.0, 3.0], device="metal")
    for p in (2.0, 3.0):
        expected = p * p * x.numpy() ** (p - 1)
        np.testing.assert_allclose(step(x, p).numpy(), expected, rtol=1e-5)


def test_moving_between_devices():
    x = lbrx.tensor([1.0, 2.0], device="cpu")
    found = lbrx.grad(lambda x: (x.to_device("metal").exp() * 2).sum())(x)
    assert found.device == "cpu"
    np.testing.assert_allclose(found.numpy(), 2 * np.exp(x.numpy()), rtol=1e-6)


def test_operations_from_outside_can_have_a_rule(given):
    from lbrx.ops import TABLE, OpFamily, rules
    from lbrx.ops.table import VJPS, register
    from lbrx.ops.vjp import differentiable

    register("thrice", OpFamily.UNARY, rules.elementwise(1), rules.floating, lambda x: 3 * x)
    try:
        f = lbrx.grad(lambda x: lbrx.apply("thrice", x).sum())
        with pytest.raises(GradientError, match="thrice has no gradient: it has no rule"):
            f(given(2))
        differentiable("thrice", x=lambda g: g * 3)
        np.testing.assert_allclose(f(given(2)).numpy(), [3, 3])
        with pytest.raises(ValueError, match="has a gradient already"):
            differentiable("thrice", x=lambda g: g * 3)
    finally:
        del TABLE["thrice"]
        VJPS.pop("thrice", None)


# ---- vmap ----


def test_vmap_agrees_with_a_loop(given):
    x, w, b = given(5, 4, 3), given(3, 2), given(5, 2)
    functions = {
        "elementwise": lambda x, w, b: (x.exp() + b[0]) * 2,
        "reductions": lambda x, w, b: x.sum() + x.max(axis=0).mean() + x.var(axis=(0, 1)),
        "products": lambda x, w, b: x @ w + (x[0] @ w) * b,
        "vectors": lambda x, w, b: x[0] @ x[1] + w @ b @ x[2],
        "views": lambda x, w, b: x.T[1:, ::2].reshape(-1),
        "along": lambda x, w, b: x.softmax(axis=0) + x.cumsum(axis=-1) + x.rms_norm(),
        "moves": lambda x, w, b: lbrx.concat([x, x[:1], w.T], axis=0).pad(((1, 0), (0, 2))),
        "constant": lambda x, w, b: w * 2,
    }
    for name, f in functions.items():
        made = lbrx.vmap(f, in_axes=(0, None, 0))(x, w, b)
        expected = np.stack([f(x[i], w, b[i]).numpy() for i in range(5)])
        np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5, atol=1e-5, err_msg=name)
    swapped = lbrx.vmap(lambda x: x * 2, in_axes=2, out_axes=1)(x)
    np.testing.assert_allclose(swapped.numpy(), 2 * x.numpy().transpose(0, 2, 1))


def test_vmap_of_gradients_and_gradients_of_vmap(given):
    x, w = given(5, 3), given(3, 2)

    def f(w, x):
        return ((x @ w).tanh() ** 2).sum()

    each = lbrx.vmap(lbrx.grad(f), in_axes=(None, 0))(w, x)
    expected = np.stack([lbrx.grad(f)(w, x[i]).numpy() for i in range(5)])
    np.testing.assert_allclose(each.numpy(), expected, rtol=1e-5, atol=1e-6)
    total = lbrx.grad(lambda w: lbrx.vmap(f, in_axes=(None, 0))(w, x).sum())(w)
    np.testing.assert_allclose(total.numpy(), expected.sum(0), rtol=1e-5, atol=1e-6)
    twice = lbrx.vmap(lbrx.vmap(lambda a, b: a @ b, in_axes=(0, None)), in_axes=(None, 1))(x, w)
    np.testing.assert_allclose(twice.numpy(), (x @ w).T.numpy(), rtol=1e-5, atol=1e-6)


def test_vmap_refuses_what_it_does_not_map(given):
    with pytest.raises(GradientError, match="conv2d is not mapped by vmap"):
        lbrx.vmap(lambda x: lbrx.conv2d(x, lbrx.ones((1, 1, 1, 1), device=x.device)))(
            given(2, 1, 1, 3, 3)
        )
    with pytest.raises(GradientError, match="no value"):
        lbrx.vmap(lambda x: x * x.sum().item())(given(2, 3))
    with pytest.raises(ShapeError, match="sizes 2 and 3"):
        lbrx.vmap(lambda x, y: x + y)(given(2), given(3))
