"""What another object of a dead cycle keeps in its `__del__` still has its memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from dead_cycles import collected

import lbrx
from lbrx.metal.binding import AtDeallocation
from lbrx.tensors import dlpack_capsule
from lbrx.tensors.dlpack_capsule import DeviceMemory


@pytest.fixture(autouse=True)
def _few_objects():
    gc.freeze()  # collections look at the objects of the test only
    yield
    gc.unfreeze()


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_a_kept_tensor_has_its_values(first, evaluated, times):
    box = [lbrx.arange(1000, dtype="float32", device="metal") * 3 - 1]
    if evaluated:
        lbrx.eval(*box)
    for _ in range(times):
        box.append(collected(box, first))
    others = [lbrx.zeros(1000, device="metal") + i for i in range(4)]
    lbrx.eval(*others)  # they would have its memory
    assert np.array_equal(box[0].numpy(), np.arange(1000, dtype="f4") * 3 - 1)
    assert others[3].numpy().max() == 3


def test_a_kept_tensor_of_pending_work_may_be_computed_by_another():
    kept = collected([lbrx.arange(8, dtype="float32", device="metal") + 1], True)
    assert (kept * 2).tolist() == [2.0 * (i + 1) for i in range(8)]
    assert kept.tolist() == [i + 1.0 for i in range(8)]


def test_memory_returns_to_the_pool_at_last():
    pool = lbrx.metal.context().pool
    before = pool.statistics().in_use
    box = [lbrx.metal.context().buffer(100_000), lbrx.metal.context().heap_buffer(100_000, "mine")]
    for _ in range(2):
        box.append(collected(box, True))
    held = pool.statistics().in_use - before
    assert held >= 200_000
    box.clear()
    assert pool.statistics().in_use == before


def test_memory_of_other_libraries_is_given_back_at_last():
    ends: list[int] = []
    memory = DeviceMemory(4096, 0, (2,), (1,), lbrx.float32)
    capsule = dlpack_capsule.make(memory, True, AtDeallocation(ends.append, 1))
    box = [dlpack_capsule.take(capsule)[1]]
    del capsule
    box.append(collected(box, True))
    assert ends == []
    box.clear()
    assert ends == [1]
