"""Kernels that lbrx gives softcoreml, against softcoreml's own definitions."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from lbrx.neural_engine import soft_kernels

registry = pytest.importorskip("softcoreml.operations.registry", reason="a Mac has Core ML itself")


def given(*shape, dtype=np.float16, seed=0):
    array = np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("bias", [False, True])
def test_pointwise_convolution(dtype, bias):
    arguments = {"x": given(1, 96, 1, 7, dtype=dtype), "weight": given(200, 96, 1, 1, dtype=dtype)}
    arguments |= {"pad_type": "valid", "strides": np.array([1, 1]), "pad": np.zeros(4, int)}
    if bias:
        arguments["bias"] = given(200, dtype=dtype)
    wanted = registry.find("conv", "ios18").function(**arguments)
    for _ in range(2):  # the second time from the kept weight
        made = soft_kernels.pointwise_conv(**arguments)
        assert made.dtype == np.float32
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "changed",
    [
        {"weight": given(8, 4, 3, 3)},
        {"x": given(2, 4, 5, 5)},
        {"x": given(1, 8, 5, 5), "groups": 2},
        {"strides": np.array([2, 2])},
        {"pad": np.array([1, 1, 0, 0])},
    ],
)
def test_other_convolutions_are_left_to_softcoreml(changed):
    arguments = {"x": given(1, 4, 5, 5), "weight": given(8, 4, 1, 1), **changed}
    assert soft_kernels.pointwise_conv(**arguments) is NotImplemented


def test_only_constants_are_kept():
    kept = soft_kernels._Widened()
    constant = given(200, 100)
    first = kept.get(constant)
    assert kept.get(constant) is first
    changing = np.ones((200, 100), np.float16)
    kept.get(changing)
    changing[:] = 2
    assert (kept.get(changing) == 2).all()
    del constant, first
    gc.collect()
    assert not kept._kept
    assert kept._nbytes == 0
