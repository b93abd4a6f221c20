"""Graphs of one structure are planned once: what makes them the same, and that nothing else
changes."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

import lbrx
import softmetal
from lbrx.command_lists.command_list import CommandList
from lbrx.graph import graph
from lbrx.graph.structure import GraphStructure, structure_of
from lbrx.kernels import FAMILIES
from lbrx.metal import context
from lbrx.metal.library import Shaders
from lbrx.scheduler import graph_plan
from lbrx.scheduler.graph_plan import KNOWN, GraphPlan, KnownPlans
from lbrx.tensors.core import Tensor
from lbrx.tensors.long_lived import new_cache, write

TIMES = 4  # planned, and run again


@pytest.fixture
def planned(monkeypatch):
    """The keys of the structures that are planned, in order."""
    keys, make = [], graph_plan.general_plan

    def noting(gpu, order, targets, structure, **options):
        keys.append(structure.key)
        return make(gpu, order, targets, structure, **options)

    monkeypatch.setattr(graph_plan, "general_plan", noting)
    return keys


def tensor(*shape, seed=0, dtype="float32"):
    values = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
    return lbrx.tensor(values, device="metal").astype(dtype)


def key(*tensors):
    """The key of the graph that computes tensors; evaluates nothing."""
    nodes = graph.nodes_of(t.array.storage for t in tensors)
    found = structure_of(graph.in_order(nodes), nodes)
    return None if found is None else found.key


GRAPHS = {
    "one operation": lambda x, y: x + y,
    "the same operand twice": lambda x, y: y + y,
    "numbers": lambda x, y: (x * 0.5 - y) / 3.0,
    "views": lambda x, y: x.T[1:, ::-1] * y[:5].T[:1, :1] + y[1:],
    "rows": lambda x, y: (x - x.max(axis=-1, keepdims=True)).exp() / y.exp().sum(axis=-1)[:, None],
    "a sum": lambda x, y: x.sum(),
    "extremes": lambda x, y: (x.argmax(axis=0), y.min(axis=1), x.var()),
    "products": lambda x, y: ((x @ y.T).gelu() @ x + y.sum(axis=0)).softmax(axis=-1),
    "several results": lambda x, y: ((x * y).sum(axis=1), x * y, (x * y + 1.0).tanh()),
    "movement": lambda x, y: lbrx.concat([x, y.astype("float16").astype("float32")], axis=1),
    "an order": lambda x, y: (x.sort(axis=1), y.cumsum(axis=1)),
    "empty": lambda x, y: x[:0] + y[:0],
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_repeated_graph_has_the_values_of_the_reference(name, planned):
    function = GRAPHS[name]
    for seed in range(TIMES):
        values = [tensor(6, 6, seed=seed), tensor(6, 6, seed=seed + 100)]
        got = function(*values)
        wanted = function(*(v.to_device("cpu") for v in values))
        if isinstance(got, Tensor):
            got, wanted = (got,), (wanted,)
        lbrx.eval(*got)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-6)
    assert len(planned) == len(set(planned)) >= 1


def test_bits_and_kernels_do_not_change():
    results, counts = [], []
    x, y = tensor(37, 65), tensor(65, 37, seed=1)
    for _ in range(TIMES):
        before = context().queue.counts()
        results.append(GRAPHS["products"](x, y.T).numpy().tobytes())
        after = context().queue.counts()
        counts.append({name: n - before.get(name, 0) for name, n in after.items()})
    assert set(results) == {results[0]}
    assert all(count == counts[0] for count in counts)


X, Y = np.ones((4, 6), np.float32), np.ones((4, 6), np.float32)


def operands():
    return lbrx.tensor(X, device="metal"), lbrx.tensor(Y, device="metal")


def policies(x, y):
    with lbrx.deterministic():
        careful = x + y
    with lbrx.kernels.forced(elementwise="chunks"):
        forced = x + y
    with lbrx.excess_precision():
        excess = x + y
    return [careful, forced, excess]


DIFFERENT = {
    "operation": lambda x, y: [x - y, y + x.exp()],
    "policy": policies,
    "alias": lambda x, y: [x + x],
    "layout": lambda x, y: [x[:, ::2] + y[:, ::2], x.T + y.T, x[1:] + y[1:], x[1:] + y[:-1]],
    "shape": lambda x, y: [x.reshape(6, 4) + y.reshape(6, 4), x.flatten() + y.flatten()],
    "dtype": lambda x, y: [x + lbrx.ones((4, 6), dtype="float16", device="metal")],
    "numbers": lambda x, y: [x + 1.0, x * 2.0 + 2.0, x * 2.0 + 3.0],
    "attribute": lambda x, y: [x.sum(axis=0), x.sum(axis=1), x.sum(), x.sum(axis=0, keepdims=True)],
    "targets": lambda x, y: [(x + y).exp()],
    "storage": lambda x, y: [x[2:] + lbrx.tensor(np.ones((2, 6), np.float32), device="metal")],
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_the_key_has(what):
    x, y = operands()
    others = DIFFERENT[what](x, y)
    keys = [key(t) for t in (x + y, *others)]
    assert len(set(keys)) == len(keys)
    again = operands()
    assert [key(t) for t in (again[0] + again[1], *DIFFERENT[what](*again))] == keys


def test_the_key_tells_apart_attributes_that_python_finds_equal():
    values = [1, 1.0, True, 0, 0.0, -0.0, False, (1, 0), (True, 0.0), None, "1"]
    assert len({graph.exact({"n": value}) for value in values}) == len(values)


@pytest.mark.parametrize("setting", [("LBRX_FUSION", "0"), ("LBRX_KERNEL", "elementwise:single")])
def test_the_key_has_the_settings(setting, monkeypatch):
    x, y = operands()
    plain = key(x + y)
    monkeypatch.setenv(*setting)
    assert key(x + y) != plain


def test_the_key_has_what_the_tuner_prefers():
    x, y = operands()
    plain = key(x + y)
    FAMILIES["elementwise"].prefer("single", "a device of this test", "flat 32")
    assert key(x + y) != plain


def test_the_key_has_the_alignment_of_memory():
    whole = lbrx.tensor(np.ones(65, np.float32), device="metal")
    buffer = whole.storage.buffer
    aligned, shifted = (
        lbrx.arrays.storage.Array(
            lbrx.arrays.storage.MetalStorage(buffer.slice(start, 64), 0, 64),
            lbrx.arrays.shape.contiguous((16,)),
            lbrx.float32,
        )
        for start in (0, 4)
    )
    assert key(Tensor(aligned).exp()) != key(Tensor(shifted).exp())
    for _ in range(TIMES):  # and each is computed where it is
        for array in (aligned, shifted):
            np.testing.assert_allclose(Tensor(array).exp().numpy(), np.e, rtol=1e-6)


def test_numbers_may_differ(planned):
    x = tensor(4, 6)
    keys = set()
    for number in (1.0, 2.5, 0.0, -0.0, 3, True, np.float32(0.1)):
        keys.add(key(x * number + 1.5))
        got, wanted = (x * number + 1.5).numpy(), x.numpy() * np.float32(number) + np.float32(1.5)
        np.testing.assert_array_equal(got, wanted)
        zero = (lbrx.zeros(3, device="metal") * number).numpy()  # shows the sign
        np.testing.assert_array_equal(np.signbit(zero), np.signbit(np.zeros(3) * number))
    assert len(keys) == 1
    assert planned.count(*keys) == 1


def test_numbers_that_the_host_looks_at_are_looked_at_every_time():
    x = tensor(5, 3)
    for n in range(TIMES):
        got = x.take(lbrx.tensor(n, device="cpu"), axis=0)
        np.testing.assert_array_equal(got.numpy(), x.numpy()[n])
    with pytest.raises(IndexError, match="index 5 is beyond an axis of 5"):
        x.take(lbrx.tensor(5, device="cpu"), axis=0).numpy()


def test_a_cache_is_not_other_memory():
    cache = new_cache((4, 6), lbrx.float32, "metal")
    write(cache, lbrx.tensor(X, device="metal"))
    x, _ = operands()
    assert key(cache.exp()) != key(x.exp())


def test_results_in_a_cache_are_the_cache():
    cache = new_cache((8, 4), lbrx.float32, "metal")
    write(cache, lbrx.zeros((8, 4), device="metal"))
    for n in range(8):
        rows = lbrx.full((1, 4), float(n), dtype="float32", device="metal")
        at = lbrx.tensor(np.array([n], np.int32), device="metal")
        written = lbrx.apply("overwrite", cache, rows * 2.0, at)
        assert written.numpy()[: n + 1, 0].tolist() == [2.0 * i for i in range(n + 1)]


def test_indices_are_checked_every_time():
    x = tensor(5, 3)
    for n in range(TIMES):
        rows = np.array([n, 4])
        np.testing.assert_array_equal(
            x.take(lbrx.tensor(rows, device="metal"), axis=0), x.numpy()[rows]
        )
    with pytest.raises(IndexError, match="index 5 is beyond an axis of 5"):
        x.take(lbrx.tensor(np.array([0, 5]), device="metal"), axis=0).numpy()


def test_overlapping_memory_is_right_whether_or_not_it_overlaps_the_next_time():
    whole = lbrx.tensor(np.arange(48, dtype=np.float32), device="metal")
    buffer = whole.storage.buffer

    def part(start):
        storage = lbrx.arrays.storage.MetalStorage(buffer.slice(start * 64, 64), 0, 64)
        return Tensor(
            lbrx.arrays.storage.Array(storage, lbrx.arrays.shape.contiguous((16,)), lbrx.float32)
        )

    for first, second in ((0, 0), (1, 1), (0, 2), (1, 0), (2, 2), (0, 1)):
        numbers = np.arange(16.0)
        got = (part(first) - 2.0 * part(second)).numpy()
        np.testing.assert_allclose(got, numbers + 16 * first - 2 * (numbers + 16 * second))


def test_memory_is_taken_and_returned_as_without_a_list(monkeypatch):
    pool = context().pool
    taken: list[int] = []
    count = pool._count

    def counted(length, label):
        count(length, label)
        taken.append(pool._in_use)

    monkeypatch.setattr(pool, "_count", counted)
    left = tensor(64, 64)  # as by an earlier test: the pool counts it as free only when it is asked
    del left
    gc.collect()
    pool.statistics()
    taken.clear()
    uses = []
    for _ in range(TIMES):
        x = tensor(64, 64)
        for _ in range(4):
            x = (x @ x).softmax(axis=-1).cumsum(axis=0)
        lbrx.eval(x)  # the graph alone holds the first x
        del x
        gc.collect()
        pool.statistics()
        uses.append([n - taken[0] for n in taken])
        taken.clear()
    assert all(use == uses[0] for use in uses)


def test_the_profiler_sees_every_kernel_of_a_known_graph():
    x = tensor(8, 8)
    for _ in range(TIMES):
        lbrx.eval((x @ x).exp())
    with lbrx.profile() as seen:
        lbrx.eval((x @ x).exp())
    assert len(seen.records) == len(lbrx.explain((x @ x).exp()).kernels)
    assert all(record.nbytes for record in seen.records)


def test_checking_modes_check_a_graph_that_was_planned_without_them(monkeypatch):
    x = tensor(8, 8)
    for _ in range(TIMES):
        lbrx.eval(x.exp())
    compile_all, used = Shaders.compile_all, []

    def noted(self, requests):
        pipelines = compile_all(self, requests)
        used.extend(pipelines)
        return pipelines

    monkeypatch.setattr(Shaders, "compile_all", noted)
    with softmetal.checking("bounds"):
        np.testing.assert_allclose(x.exp().numpy(), np.exp(x.numpy()), rtol=1e-6)
    assert [pipeline.checked for pipeline in used] == [True]


def test_an_error_leaves_a_known_graph_pending(monkeypatch):
    x = tensor(8, 8)
    for _ in range(TIMES):
        lbrx.eval(x.exp().cumsum(axis=0))
    result = x.exp().cumsum(axis=0)
    with monkeypatch.context() as patch:
        gpu = context()
        made = iter([gpu.buffer(256)])

        def buffer(size, label="buffers"):
            try:
                return next(made)
            except StopIteration:
                raise lbrx.OutOfMemory(size, 0, 0) from None

        patch.setattr(gpu, "buffer", buffer)
        with pytest.raises(lbrx.OutOfMemory):
            result.numpy()
    np.testing.assert_allclose(result.numpy(), np.exp(x.numpy()).cumsum(axis=0), rtol=1e-6)


def test_traced_inputs_and_numbers_have_no_key():
    keys = []

    def function(x, scale):
        keys.append(key(x.exp()))
        keys.append(key(lbrx.ones(3, device="metal") * scale))
        return x * scale

    compiled = lbrx.compile(function)
    assert compiled(lbrx.ones(3, device="metal"), 2.0).tolist() == [2.0] * 3
    assert keys == [None, None]


NOTHING = GraphPlan(CommandList((), ()), ((),), ((),), {})


def of_key(*key):
    return GraphStructure(key, [], [])


def test_the_number_of_nodes_that_are_remembered_is_bounded():
    known, gpu = KnownPlans(most_nodes=10), context()
    known.find(gpu, of_key("used"))
    known.add(of_key("used"), 2, NOTHING)
    for n in range(100):
        known.add(of_key(n), 2, NOTHING)
        assert known.nodes <= 10
        assert known.find(gpu, of_key("used")) is NOTHING  # what is used stays
    known.add(of_key("large"), 3, NOTHING)  # one graph has at most a quarter
    assert known.find(gpu, of_key("large")) is None


def test_the_number_of_plans_of_a_structure_is_bounded():
    known, gpu = KnownPlans(), context()
    for n in range(100):
        number = (bytes([n]), "uint8")
        structure = GraphStructure(("one",), [], [number])
        assert known.find(gpu, structure) is None
        known.add(structure, 1, replace(NOTHING, read_numbers={0: number}))
        assert known.find(gpu, structure) is not None
    assert known.find(gpu, GraphStructure(("one",), [], [(bytes([0]), "uint8")])) is None


def test_a_graph_of_very_many_operations_is_not_remembered(monkeypatch):
    monkeypatch.setattr(KNOWN, "_most_nodes", 16)
    for _ in range(TIMES):
        x = tensor(4)
        for _ in range(5):
            x = x.cumsum(axis=0)
        lbrx.eval(x)
    assert len(KNOWN) == 0


def test_another_context_or_calibration_plans_anew():
    known, structure = KnownPlans(), of_key("a")
    first, second = context(), lbrx.metal.Context()
    for gpu in (first, second):
        assert known.find(gpu, structure) is None
        known.add(structure, 1, NOTHING)
        assert known.find(gpu, structure) is NOTHING
    second.info = replace(second.info, calibration=None)
    assert known.find(second, structure) is None
    second.close()


def test_attributes_that_python_finds_equal_are_two_operations():
    x = lbrx.tensor([-1.0], device="metal")
    zeros = [x.leaky_relu(slope) for slope in (0.0, -0.0)]
    lbrx.eval(*zeros)
    assert [bool(np.signbit(zero.numpy()[0])) for zero in zeros] == [True, False]


def test_operations_that_are_not_computed_leave_nothing_behind():
    x = lbrx.ones((4, 4)) + 0
    lbrx.eval(x)
    before = len(graph._nodes)
    kept = [x + float(i) for i in range(10)]
    assert len(graph._nodes) == before + 10
    assert (x + 3.0).array.storage is kept[3].array.storage  # an equal operation is the same node
    lbrx.eval(kept[:5])
    assert len(graph._nodes) == before + 5
    assert (x + 3.0).array.storage is not kept[3].array.storage
    del kept
    assert len(graph._nodes) == before


def test_operations_leave_no_cycles_of_references():
    """They would keep objects until the next garbage collection, which every operation would pay."""
    x = tensor(4, 4)
    for _ in range(TIMES):
        (x + x).numpy()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            (x + x).numpy()
        assert gc.collect() < 10
    finally:
        gc.enable()


def test_the_number_of_signatures_is_bounded(monkeypatch):
    monkeypatch.setattr(lbrx.arrays.shape, "KNOWN", 2)
    monkeypatch.setattr(graph, "_signatures", {})
    for n in range(1, 8):
        assert (lbrx.ones(n, device="metal") * 2.0).sum().item() == 2.0 * n
        assert len(graph._signatures) <= 2
