"""Which operations share a kernel, and that views become part of a kernel's indexing."""

from __future__ import annotations

import gc
import itertools
import math

import numpy as np
import pytest

import lbrx
import softmetal
from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Layout
from lbrx.planning.fusion import MAX_COST, composed


def tensor(*shape, seed=0):
    values = np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32)
    return lbrx.tensor(values, device="metal"), values.astype(np.float64)


def kernels(*tensors):
    """The number of operations in each kernel of a plan."""
    return [len(kernel.steps) for kernel in lbrx.explain(*tensors).kernels]


def close(tensor, expected):
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-4, atol=1e-5)


def softmax(x):
    powers = (x - x.max(axis=-1, keepdims=True)).exp()
    return powers / powers.sum(axis=-1, keepdims=True)


def layer_norm(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / ((centred * centred).mean(axis=-1, keepdims=True) + 1e-5).sqrt()


def rms_norm(x):
    return x / ((x * x).mean(axis=-1, keepdims=True) + 1e-5).sqrt()


def numpy_softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def numpy_layer_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def numpy_rms_norm(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


CHAINS = {
    "chain": (lambda x: ((x * 2 + 1).tanh() - x).abs(), lambda x: abs(np.tanh(x * 2 + 1) - x)),
    "softmax": (softmax, numpy_softmax),
    "layer_norm": (layer_norm, numpy_layer_norm),
    "rms_norm": (rms_norm, numpy_rms_norm),
    "sum of squares": (lambda x: (x * x).sum(axis=-1), lambda x: (x * x).sum(-1)),
    "after a sum": (lambda x: x.sum(axis=-1) * 2 + 1, lambda x: x.sum(-1) * 2 + 1),
    "around a sum": (
        lambda x: (x.abs().mean(axis=-1, keepdims=True) + 1).sqrt(),
        lambda x: np.sqrt(np.abs(x).mean(-1, keepdims=True) + 1),
    ),
    "repeated sum": (
        lambda x: x.sum(axis=-1, keepdims=True).expand(*x.shape) * 2,
        lambda x: np.broadcast_to(x.sum(-1, keepdims=True), x.shape) * 2,
    ),
    "several axes": (
        lambda x: x - (x * x).sum(axis=(-2, -1), keepdims=True),
        lambda x: x - (x * x).sum((-2, -1), keepdims=True),
    ),
    "transposed": (lambda x: (x + 1).T * 3, lambda x: (x + 1).T * 3),
    "sliced": (lambda x: (x * x)[::2, ::-1] + 1, lambda x: (x * x)[::2, ::-1] + 1),
    "broadcast": (
        lambda x: (x[:1] * 2) + x.exp() * (x[:, :1] - 1),
        lambda x: x[:1] * 2 + np.exp(x) * (x[:, :1] - 1),
    ),
    "cast": (
        lambda x: x.astype("float16").astype("float32") + 1,
        lambda x: x.astype(np.float16).astype(np.float64) + 1,
    ),
    "comparison": (lambda x: lbrx.where(x > 0, x, -x) * 2, lambda x: np.abs(x) * 2),
    "copied": (lambda x: (x.T.contiguous() + 1).T, lambda x: x + 1),
}


@pytest.mark.parametrize("shape", [(33, 65), (8, 1), (3, 4, 5)], ids=str)
@pytest.mark.parametrize("name", CHAINS)
def test_one_kernel(name, shape):
    build, oracle = CHAINS[name]
    x, values = tensor(*shape)
    result = build(x)
    if name == "several axes":
        # A reduction over several axes does not match the last axis of the kernel.
        assert len(kernels(result)) <= 2
    elif shape[-1] > 1:
        assert len(kernels(result)) == 1
    close(result, oracle(values))


def test_a_cast_rounds_inside_a_kernel():
    x, values = tensor(100)
    result = x.astype("bfloat16").astype("float32")
    assert kernels(result) == [2]
    assert not np.array_equal(result.numpy(), values.astype(np.float32))
    close(result, lbrx.tensor(values, dtype="bfloat16", device="cpu").numpy().astype(np.float64))


def test_equal_expressions_are_computed_once():
    x, values = tensor(16, 16)
    result = (x.exp() + 1) * (x.exp() + 1)
    assert kernels(result) == [3]
    close(result, (np.exp(values) + 1) ** 2)


def test_what_two_kernels_need_is_stored_by_the_first():
    x, values = tensor(16, 16)
    shared = x * 2 + 1
    first, second = shared @ shared, shared.exp()
    assert sorted(kernels(first, second)) == [
        1,
        1,
        2,
    ]  # nothing is computed inside a product's kernel
    lbrx.eval(first, second)
    close(first, (values * 2 + 1) @ (values * 2 + 1))
    close(second, np.exp(values * 2 + 1))


def test_a_requested_intermediate_is_stored_by_the_same_kernel():
    x, values = tensor(16, 16)
    middle = x + 1
    last = middle.tanh()
    assert kernels(middle, last) == [2]
    lbrx.eval(middle, last)
    close(middle, values + 1)
    close(last, np.tanh(values + 1))


@pytest.mark.parametrize("part", [slice(0, 2), slice(0, 0), slice(2, 4)], ids=str)
def test_an_intermediate_that_is_read_in_part_is_stored_whole(part):
    x, values = tensor(4, 8)
    middle = x + 1
    last = middle[part].tanh()
    lbrx.eval(middle, last)
    close(middle, values + 1)
    close(last, np.tanh(values[part] + 1))


def test_a_requested_value_of_rows_is_stored_for_each_element():
    x, values = tensor(6, 10)
    middle = x.mean(axis=-1, keepdims=True).expand(6, 10) + 1
    last = x - middle
    lbrx.eval(middle, last)
    expected = np.broadcast_to(values.mean(-1, keepdims=True), (6, 10)) + 1
    close(middle, expected)
    close(last, values - expected)


@pytest.mark.parametrize(
    ("finish", "oracle", "count"),
    [
        (lambda p, b: (p + b).gelu(approximate="tanh"), lambda p, b: gelu_tanh(p + b), 1),
        (lambda p, b: b + p, lambda p, b: p + b, 1),
        (lambda p, b: p.silu(), lambda p, b: p / (1 + np.exp(-p)), 1),
        (lambda p, b: (p + b).relu() * 2, lambda p, b: np.maximum(p + b, 0) * 2, 2),
        (lambda p, b: (p.T + b[:3]).T, lambda p, b: (p.T + b[:3]).T, 2),
        (lambda p, b: p.exp(), lambda p, b: np.exp(p), 2),
    ],
)
def test_products_are_finished_in_their_kernel(finish, oracle, count):
    (x, a), (w, b), (bias, c) = tensor(3, 5), tensor(5, 7, seed=1), tensor(7, seed=2)
    result = finish(x @ w, bias)
    assert len(kernels(result)) == count
    close(result, oracle(a @ b, c))


def test_a_product_that_others_need_stays_as_it_is():
    (x, a), (w, b) = tensor(3, 5), tensor(5, 7, seed=1)
    product = x @ w
    result = product.relu()
    assert len(kernels(product, result)) == 2
    lbrx.eval(product, result)
    close(product, a @ b)
    close(result, np.maximum(a @ b, 0))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def test_more_inputs_than_a_kernel_has_buffers():
    pairs = [tensor(40, seed=i) for i in range(60)]
    total = sum((x for x, _ in pairs[1:]), pairs[0][0])
    assert 2 <= len(kernels(total)) <= 4
    close(total, sum(values for _, values in pairs))


def test_numbers_of_attributes_have_buffers_too():
    x, expected = tensor(40)
    for i in range(60):
        x = x.leaky_relu(0.9 + i / 1000)
        expected = np.where(expected > 0, expected, expected * (0.9 + i / 1000))
    assert 2 <= len(kernels(x)) <= 4
    close(x, expected)


def test_each_view_of_an_array_has_a_buffer():
    pairs = [tensor(100, seed=i) for i in range(9)]
    parts = []
    for k, ((x, a), (y, b)) in enumerate(itertools.combinations(pairs, 2)):
        parts.append(((x * y)[k : k + 60], (a * b)[k : k + 60]))
    total = sum((x for x, _ in parts[1:]), parts[0][0])
    assert 2 <= len(kernels(total)) <= 4
    close(total, sum(values for _, values in parts))


def test_a_long_chain():
    x, values = tensor(64)
    expected = values.copy()
    for i in range(300):
        x = x * 0.5 + i % 3
        expected = expected * 0.5 + i % 3
    assert len(kernels(x)) == math.ceil(600 / MAX_COST)
    close(x, expected)


def test_no_kernel_waits_for_itself():
    """`a` is needed by the sum over columns, which is needed by the kernel that uses `a` again."""
    x, values = tensor(12, 12)
    a = x.exp()
    result = a + a.sum(axis=0, keepdims=True) + (a @ a)
    expected = np.exp(values)
    close(result, expected + expected.sum(0, keepdims=True) + expected @ expected)


def test_long_rows_are_left_to_the_reduction():
    x, values = tensor(1, 200_000)
    result = (x * x).sum()
    assert kernels(result) == [1, 1]
    close(result, (values * values).sum())


@pytest.mark.parametrize("variant", ["serial", "together"])
def test_rows_by_every_team(variant):
    for shape in [(5, 2), (3, 33), (2, 700), (9, 4096)]:
        x, values = tensor(*shape)
        with lbrx.kernels.forced(rows=variant):
            result = softmax(x)
        before = lbrx.metal.stats()["kernels"]
        close(result, numpy_softmax(values))
        after = lbrx.metal.stats()["kernels"]
        assert [k for k in after if after[k] != before.get(k)] == [
            f"fused_5_subtract_exp_sum_divide:{variant}"
        ]


def test_teams_do_not_race_for_values_kept_in_the_results():
    x, values = tensor(3, 70)
    with softmetal.checking("bounds", "race"), lbrx.kernels.forced(rows="together"):
        close(softmax(x), numpy_softmax(values))
        close((x * 2).sum(axis=-1) + 1, (values * 2).sum(-1) + 1)


def test_nan_and_infinity_pass_through_rows():
    x = lbrx.tensor([[1.0, math.nan, 2.0], [math.inf, 1.0, -math.inf]], device="metal")
    for variant in ("serial", "together"):
        with lbrx.kernels.forced(rows=variant):
            highest, lowest = x.max(axis=-1) + 0, x.min(axis=-1) + 0
        np.testing.assert_array_equal(highest.numpy(), [math.nan, math.inf])
        np.testing.assert_array_equal(lowest.numpy(), [math.nan, -math.inf])


def test_errors_appear_where_they_are_made():
    x, _ = tensor(2, 3)
    with pytest.raises(lbrx.ShapeError, match=r"add\(float32\[2, 3\], float32\[4\]\)"):
        x + tensor(4)[0]


def test_a_failure_in_the_middle_leaves_the_rest_pending(monkeypatch):
    x, values = tensor(6, 6)
    product = (x * 2 + 1) @ x
    last = product.cumsum(axis=0) * 2
    with monkeypatch.context() as patch:
        patch.setitem(lbrx.kernels.RUNNERS, "cumsum", lambda call: 1 / 0)
        with pytest.raises(ZeroDivisionError) as failure:
            lbrx.eval(product, last)
    expected = (values * 2 + 1) @ values
    # The traceback still holds the computed nodes, but equal operations create new ones.
    assert failure.traceback
    close((x * 2 + 1) @ x, expected)
    close(product, expected)
    close(last, expected.cumsum(0) * 2)


def test_a_picture_shows_the_flow_of_data():
    x, _ = tensor(4, 4)
    a, b = x @ x, x.cumsum(axis=0)
    picture = lbrx.explain((a + 1) * b).mermaid().splitlines()
    found = [line.split('"')[1].split()[0] for line in picture if line.startswith("    s")]
    assert sorted(found[:2]) == ["cumsum", "matmul"]
    assert found[2:] == ["add", "multiply"]
    product, scan = found.index("matmul"), found.index("cumsum")
    assert {line.strip() for line in picture if "-->" in line} == {
        f"s{product} --> s2",
        f"s{scan} --> s3",
        "s2 --> s3",
    }


def test_nothing_runs_until_a_result_is_read():
    x, _ = tensor(7)
    before = lbrx.metal.stats()["dispatches"]
    result = x.exp() * 2
    assert lbrx.metal.stats()["dispatches"] == before
    assert len(result.numpy()) == 7
    assert lbrx.metal.stats()["dispatches"] == before + 1
    assert str(lbrx.explain(result)) == "nothing is pending: the values are in memory"


def test_a_chain_holds_only_its_first_and_last_arrays():
    x = lbrx.ones((1 << 20,), device="metal")
    lbrx.eval(x)
    gc.collect()  # garbage of other tests
    before = lbrx.metal.stats()["bytes_in_use"]
    for i in range(50):
        x = (x + i).cumsum() * 0 + 1 if i % 10 == 9 else x * 1.5
    with lbrx.profile() as profile:
        lbrx.eval(x)
    peak = max(record.memory for record in profile.records) - before
    assert 0 < peak <= 3.2 * x.nbytes


def test_composition_of_views(rng):
    """A composed view shows the same elements as in numpy."""
    shapes = [(4, 6), (2, 3, 4), (5,), (1, 4)]
    for shape, _ in itertools.product(shapes, range(40)):
        inner, memory = _random_layout(rng, shape)
        positions = sh.contiguous(shape)
        view, look = _random_view(rng, positions)
        expected = look(memory)
        seen = composed(view, inner)
        if seen is None:
            continue
        flat = np.arange(10_000)
        got = np.lib.stride_tricks.as_strided(
            flat[seen.offset :], seen.shape, [8 * s for s in seen.strides]
        )
        np.testing.assert_array_equal(got, expected)


def _random_layout(rng, shape):
    """A layout over numbered memory, and the numbers that it selects."""
    axes = rng.permutation(len(shape))
    wide = [shape[i] * 2 for i in axes]
    base = np.arange(math.prod(wide)).reshape(wide)
    taken = base[tuple(slice(1, None, 2) for _ in shape)]
    shown = taken.transpose(np.argsort(axes))
    strides = tuple(s // 8 for s in shown.strides)
    return Layout(shape, strides, int(shown.flat[0])), shown


def _random_view(rng, layout):
    """A chain of basic views, as a layout and as a function of arrays."""
    steps = []
    for _ in range(rng.integers(1, 4)):
        kind = rng.integers(3)
        if kind == 0:
            order = tuple(rng.permutation(layout.ndim).tolist())
            layout = sh.permute(layout, order)
            steps.append(lambda a, o=order: a.transpose(o))
        elif kind == 1:
            key = [slice(None)] * layout.ndim
            key[rng.integers(layout.ndim)] = slice(None, None, int(rng.choice([-1, 2])))
            layout = sh.index(layout, key)
            steps.append(lambda a, k=tuple(key): a[k])
        else:
            layout = sh.expand(layout, (3, *layout.shape))
            steps.append(lambda a: np.broadcast_to(a, (3, *a.shape)))

    def look(array):
        for step in steps:
            array = step(array)
        return array

    return layout, look


def test_fusion_can_be_turned_off(monkeypatch):
    x, values = tensor(8, 8)
    monkeypatch.setenv("LBRX_FUSION", "0")
    result = x.exp() * 2 + 1
    assert kernels(result) == [1, 1, 1]
    close(result, np.exp(values) * 2 + 1)
    monkeypatch.setenv("LBRX_FUSION", "yes")
    with pytest.raises(lbrx.SettingError, match=r"LBRX_FUSION='yes'.*give 0 or 1"):
        lbrx.explain(x + 1)
