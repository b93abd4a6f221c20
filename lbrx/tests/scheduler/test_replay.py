"""Functions that are traced once and replayed."""

from __future__ import annotations

import gc
import logging
import math

import numpy as np
import pytest
from device_memory import shares_memory
from host_pages import shares_mapped_files

import lbrx
import softmetal
from lbrx.memory.arena import Lifetime, arrange
from lbrx.tensors.compilation import metal_array
from lbrx.tensors.core import call
from lbrx.tensors.evaluation import start
from lbrx.tensors.long_lived import new_cache, write


def tensor(*shape, seed=0):
    values = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
    return lbrx.tensor(values, device="metal")


def traces(compiled):
    return sum(len(found) for found in compiled._traces.values())


def network(x, weights):
    for w in weights:
        x = (x @ w).gelu() + x
    return x.softmax(axis=-1)


def test_replays_equal_the_function():
    weights = [tensor(16, 16, seed=i) for i in range(4)]
    compiled = lbrx.compile(lambda x: network(x, weights))
    for seed in range(5):
        x = tensor(3, 16, seed=seed)
        np.testing.assert_allclose(compiled(x).numpy(), network(x, weights).numpy(), rtol=1e-5)
    assert traces(compiled) == 1


def test_results_are_not_overwritten_by_the_next_call():
    compiled = lbrx.compile(lambda x: x * 2)
    results = [compiled(lbrx.full((4,), i, dtype="float32", device="metal")) for i in range(5)]
    assert [r.tolist() for r in results] == [[2.0 * i] * 4 for i in range(5)]


def test_numbers_change_without_a_new_trace():
    compiled = lbrx.compile(lambda x, a: x.astype("float16") * a + a)
    x = lbrx.ones((3,), device="metal")
    for a in (1.0, 2.5, -3.0, 0.0):
        result = compiled(x, a)
        assert result.dtype is lbrx.float16
        assert result.tolist() == [2 * a] * 3
    assert traces(compiled) == 1


def test_a_number_whose_value_is_read_gets_a_separate_trace():
    compiled = lbrx.compile(lambda x, a: x * math.sqrt(a) if a > 0 else x - a)
    x = lbrx.ones((2,), device="metal")
    for a in (4.0, 9.0, -1.0, 4.0):
        assert compiled(x, a).tolist() == [math.sqrt(a) if a > 0 else 2.0] * 2
    assert traces(compiled) == 3


def test_shapes_dtypes_and_other_arguments_make_traces():
    compiled = lbrx.compile(lambda x, axis=0, *, scale=None: x.sum(axis=axis))
    for shape, axis in [((2, 3), 0), ((2, 3), 1), ((3, 2), 0), ((2, 3), 0)]:
        x = tensor(*shape)
        np.testing.assert_allclose(compiled(x, axis=axis).numpy(), x.numpy().sum(axis), rtol=1e-5)
    assert traces(compiled) == 3


def test_a_warning_when_traces_keep_coming(caplog):
    compiled = lbrx.compile(lambda x: x + 1)
    with caplog.at_level(logging.WARNING, "lbrx"):
        for n in range(1, 9):
            compiled(lbrx.ones((n,), device="metal"))
    assert "has been traced 8 times" in caplog.text


def test_structures_go_in_and_come_out():
    @lbrx.compile
    def both(pair, *, more):
        a, b = pair
        return {"sum": a + b, "rest": [more["c"] * 2, a, None, "text"]}

    a, b, c = (tensor(5, seed=i) for i in range(3))
    result = both((a, b), more={"c": c})
    np.testing.assert_allclose(result["sum"].numpy(), a.numpy() + b.numpy())
    np.testing.assert_allclose(result["rest"][0].numpy(), c.numpy() * 2)
    np.testing.assert_array_equal(result["rest"][1].numpy(), a.numpy())
    assert result["rest"][2:] == [None, "text"]


def test_an_input_that_is_also_captured():
    x = tensor(4)
    compiled = lbrx.compile(lambda y: x * 10 + y)
    np.testing.assert_allclose(compiled(x).numpy(), x.numpy() * 11, rtol=1e-6)
    y = tensor(4, seed=1)
    np.testing.assert_allclose(compiled(y).numpy(), x.numpy() * 10 + y.numpy(), rtol=1e-6)


def test_views_at_different_offsets_share_a_trace():
    """Each call reads its own rows, not those of the call that was traced."""
    x = lbrx.arange(40, dtype="float32", device="metal").reshape(10, 4)
    lbrx.eval(x)
    compiled = lbrx.compile(lambda rows: rows + 1)
    for first in (0, 4, 7, 2):
        rows = x[first : first + 2]
        assert compiled(rows).tolist() == (rows + 1).tolist()
    assert traces(compiled) == 1


def test_inputs_start_at_multiples_of_vectors():
    """Kernels are recorded for the alignment of the first call."""
    compiled = lbrx.compile(lambda x: x * 2 + 1)
    whole = tensor(64)
    with lbrx.kernels.forced(elementwise="chunks"):
        for start in (0, 1, 2, 3, 8):
            view = whole[start : start + 32]
            assert metal_array(view).storage.address % 16 == 0
            np.testing.assert_array_equal(compiled(view).numpy(), view.numpy() * 2 + 1)
    assert traces(compiled) == 1


def test_views_as_inputs_and_results():
    compiled = lbrx.compile(lambda x: (x * 2).T[1:])
    x = tensor(4, 6)
    for given in (x, x[::-1], tensor(6, 4).T):
        np.testing.assert_allclose(compiled(given).numpy(), (given.numpy() * 2).T[1:])


def test_results_that_share_memory():
    @lbrx.compile
    def several(x):
        doubled = x * 2
        return doubled, doubled.T, doubled[1:], x, lbrx.ones((2,), device="cpu")

    for seed in range(3):
        x = tensor(3, 4, seed=seed)
        expected = x.numpy() * 2
        whole, turned, part, given, constant = several(x)
        np.testing.assert_array_equal(whole.numpy(), expected)
        np.testing.assert_array_equal(turned.numpy(), expected.T)
        np.testing.assert_array_equal(part.numpy(), expected[1:])
        np.testing.assert_array_equal(given.numpy(), x.numpy())
        assert constant.tolist() == [1, 1]


def test_what_is_pending_outside_is_computed_once():
    weight = tensor(6, 6) * 2
    compiled = lbrx.compile(lambda x, a: (x @ weight + weight[0] * a, weight))
    for a in (1.0, 3.0):
        x = tensor(2, 6)
        result, same = compiled(x, a)
        w = weight.numpy()
        np.testing.assert_allclose(result.numpy(), x.numpy() @ w + w[0] * np.float32(a), rtol=1e-5)
        np.testing.assert_array_equal(same.numpy(), w)
    assert traces(compiled) == 1


def test_a_compiled_function_within_another():
    inner = lbrx.compile(lambda x, a: x * a + 1)
    outer = lbrx.compile(lambda x, a: inner(inner(x, a), 2.0))
    for a in (1.0, 3.0):
        x = tensor(5)
        np.testing.assert_allclose(outer(x, a).numpy(), (x.numpy() * a + 1) * 2 + 1, rtol=1e-6)
    assert (traces(inner), traces(outer)) == (0, 1)


@pytest.mark.parametrize(
    ("use", "oracle"),
    [
        (lambda x, a: x.leaky_relu(a), lambda x, a: np.where(x > 0, x, x * a)),
        (lambda x, a: x + lbrx.full((9,), a, device="metal"), lambda x, a: x + a),
        (lambda x, a: x * float(f"{a:.2f}"), lambda x, a: x * a),
        (lambda x, a: x.clip(-a, a), lambda x, a: np.clip(x, -a, a)),
        (lambda x, a: a - x / a, lambda x, a: a - x / a),
        (lambda x, a: x * lbrx.tensor([a, 1.0, a] * 3), lambda x, a: x * np.float32([a, 1, a] * 3)),
        (lambda x, a: x * (np.ones(9, np.float32) * a), lambda x, a: x * a),
    ],
)
def test_numbers_in_all_places(use, oracle):
    compiled = lbrx.compile(use)
    x = tensor(9)
    for a in (0.5, np.float32(0.25)):
        np.testing.assert_allclose(compiled(x, a).numpy(), oracle(x.numpy(), a), rtol=1e-5)


def test_a_number_that_comes_out_again():
    compiled = lbrx.compile(lambda x, a: (x * a, a))
    assert [compiled(tensor(2), a)[1] for a in (0.5, 2.0, 0.5)] == [0.5, 2.0, 0.5]


def test_methods():
    class Layer:
        def __init__(self, seed):
            self.weight = tensor(4, 4, seed=seed)

        @lbrx.compile
        def __call__(self, x):
            return x @ self.weight

    x = tensor(2, 4)
    for layer in (Layer(1), Layer(2)):
        for _ in range(2):
            expected = x.numpy() @ layer.weight.numpy()
            np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-5)


def test_a_policy_makes_a_trace():
    compiled = lbrx.compile(lambda x: (x * 2).max(axis=-1) + 1)
    x = tensor(4, 8)
    compiled(x)
    with lbrx.kernels.forced(rows="together"):
        before = lbrx.metal.stats()["kernels"]
        compiled(x)
        after = lbrx.metal.stats()["kernels"]
    assert [k for k in after if after[k] != before.get(k)] == ["fused_multiply_max_add:together"]


def test_a_trace_keeps_neither_inputs_nor_results():
    compiled = lbrx.compile(lambda x: x * 2)
    gc.collect()
    before = lbrx.metal.stats()["bytes_in_use"]
    lbrx.eval(compiled(lbrx.ones((1 << 18,), device="metal") + 1))
    gc.collect()
    assert lbrx.metal.stats()["bytes_in_use"] - before < 1 << 18


@shares_memory
@shares_mapped_files
def test_memory_outlives_the_function_while_the_device_works(tmp_path):
    """A mapped file that only a trace holds is read after the function is gone."""
    path = tmp_path / "w.npy"
    np.save(path, np.full((1 << 20,), 3, np.float32))
    weight = lbrx.from_numpy(np.load(path, mmap_mode="c"), device="metal", copy=False)
    compiled = lbrx.compile(lambda x, w=weight: x * w)
    x, busy = lbrx.ones((1 << 20,), device="metal"), tensor(1024, 1024)
    lbrx.eval(compiled(x), x)
    for _ in range(8):  # keep the device busy before the replay
        busy = busy @ busy
    start(busy)
    result = compiled(x)
    start(result)
    del compiled, weight
    gc.collect()
    assert (result.numpy() == 3).all()


def test_captured_memory_that_is_written_is_waited_for():
    cache = new_cache((8, 2048, 64), lbrx.float32, "metal")
    places = lbrx.arange(2048, device="metal")
    lbrx.eval(places)
    compiled = lbrx.compile(lambda rows: call("overwrite", cache, rows, places))
    for number in range(1, 4):
        rows = lbrx.full(cache.shape, number, dtype="float32", device="metal")
        lbrx.eval(rows)
        written = compiled(rows)
        assert (cache.numpy() == number).all()
        assert (written.numpy() == number).all()


def test_captured_memory_that_is_read_is_waited_for():
    x, weight = tensor(1024, 1024), new_cache((1024, 1024), lbrx.float32, "metal")
    compiled = lbrx.compile(lambda x: x.sin().sin().sin() + weight)
    for number in range(1, 4):
        write(weight, lbrx.full(weight.shape, float(number), device="cpu"))
        result = compiled(x)
        write(weight, lbrx.full(weight.shape, -10.0, device="cpu"))
        assert (np.abs(result.numpy() - number) <= 1).all()


def test_values_kept_from_a_trace_cannot_be_read():
    kept = []

    @lbrx.compile
    def keeping(x):
        kept.extend([x, x * 3, x * 5])
        return kept[1] @ x

    keeping(tensor(4, 4))
    for tensor_of_trace in [*kept, kept[1] + 1]:
        with pytest.raises(lbrx.TraceError, match="keeping reads the value of"):
            tensor_of_trace.numpy()


@pytest.mark.parametrize(
    ("function", "given", "what"),
    [
        (lambda x: x + lbrx.random.normal((3,)), (), "draws random numbers.*outside"),
        (lambda x, y: x + y, (np.ones(3),), "is ndarray, which is not hashable: give tensors"),
    ],
)
def test_what_a_replay_could_not_repeat_is_refused(function, given, what):
    with pytest.raises(lbrx.TraceError, match=what):
        lbrx.compile(function)(tensor(3), *given)


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda x: x * x.sum().item(), "sum of an input"),
        (lambda x: x if x[0] > 0 else -x, "greater of an input"),
        (lambda x: x + x.numpy(), "an input"),
    ],
)
def test_reading_values_is_refused(read, what):
    compiled = lbrx.compile(read)
    with pytest.raises(lbrx.TraceError, match=f"reads the value of {what}.*outside"):
        compiled(tensor(3))


def test_other_devices_are_refused():
    with pytest.raises(lbrx.DeviceError, match="move them with to_device"):
        lbrx.compile(lambda x: x)(lbrx.ones((2,), device="cpu"))


def test_what_does_not_depend_on_inputs_is_computed_once():
    """A pending tensor that a function captures is computed once and not as part of the recording."""
    held = tensor(8, 8) + 1
    compiled = lbrx.compile(lambda x: x @ held * 2)
    for _ in range(2):
        x = tensor(2, 8)
        np.testing.assert_allclose(compiled(x).numpy(), (x @ held * 2).numpy(), rtol=1e-5)


def test_many_small_kernels_are_one_call():
    weight = tensor(8, 8)

    @lbrx.compile
    def steps(x):
        for _ in range(20):
            x = (x @ weight).tanh()
        return x

    x = tensor(2, 8)
    steps(x)
    before = lbrx.metal.stats()
    expected = x.numpy()
    for _ in range(20):
        expected = np.tanh(expected @ weight.numpy())
    np.testing.assert_allclose(steps(x).numpy(), expected, rtol=1e-4, atol=1e-6)
    after = lbrx.metal.stats()
    assert (
        after["dispatches"] - before["dispatches"] == 20
    )  # each product is finished in its kernel


def test_replay_under_checks():
    """Every kernel is checked, in any order that its barriers allow."""
    weight = tensor(8, 8)
    with softmetal.checking("bounds", "race"):
        compiled = lbrx.compile(lambda x: ((x @ weight).relu() + x).sum(axis=-1))
        for seed in range(2):
            x = tensor(3, 8, seed=seed)
            expected = (np.maximum(x.numpy() @ weight.numpy(), 0) + x.numpy()).sum(-1)
            np.testing.assert_allclose(compiled(x).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_disjoint_lifetimes_share_memory(rng):
    for _ in range(200):
        lives = []
        for _ in range(rng.integers(1, 20)):
            first = int(rng.integers(0, 20))
            lives.append(Lifetime(int(rng.integers(1, 2000)), first, first + int(rng.integers(5))))
        plan = arrange(lives)
        for i, a in enumerate(lives):
            assert plan.offsets[i] % 256 == 0
            assert plan.offsets[i] + a.size <= plan.size
            for j, b in enumerate(lives[:i]):
                apart = (
                    plan.offsets[i] + a.size <= plan.offsets[j]
                    or plan.offsets[j] + b.size <= plan.offsets[i]
                )
                meet = a.first <= b.last and b.first <= a.last
                assert apart or not meet
    chain = [Lifetime(1000, i, i + 1) for i in range(50)]
    assert arrange(chain).size <= 2 * 1024 + 1000
