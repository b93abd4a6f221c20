"""The Tensor class: creation, views, conversion and devices."""

from __future__ import annotations

import inspect
import mmap
import operator
import pickle
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import lbrx
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.tensors.operation_methods import OperationMethods

pytestmark = pytest.mark.usefixtures("cpu_default")

NATIVE = [d for d in dt.ALL if d is not dt.bfloat16]


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        (1.5, None, lbrx.float32),
        (3, None, lbrx.int64),
        (True, None, lbrx.bool_),
        (2**70, "float32", lbrx.float32),
        ([1.0, 2.0], None, lbrx.float32),
        ([[1, 2], [3, 4]], None, lbrx.int64),
        ([], None, lbrx.float32),
        ([1, 2], "bfloat16", lbrx.bfloat16),
        (np.float64(1.5), None, lbrx.float32),
        (np.ones(2), None, lbrx.float64),
        (np.ones(2), np.float16, lbrx.float16),
        (np.ones(2, ">f4"), None, lbrx.float32),
        (np.ones(2, ml_dtypes.bfloat16), None, lbrx.bfloat16),
    ],
)
def test_tensor_takes_arrays_lists_and_numbers(data, dtype, expected):
    t = lbrx.tensor(data, dtype=dtype)
    assert t.dtype is expected
    assert t.shape == np.shape(data)
    np.testing.assert_array_equal(t.numpy().astype(float), np.asarray(data, float))


def test_tensor_copies():
    a = lbrx.empty_aligned(4)
    a[:] = 1
    t = lbrx.tensor(a)
    u = lbrx.tensor(t)
    a[:] = 2
    assert t.tolist() == u.tolist() == [1, 1, 1, 1]
    assert not np.shares_memory(t.numpy(), u.numpy())


@pytest.mark.parametrize("data", ["text", [object()], np.array([1j]), np.array(["a"]), {}])
def test_tensor_rejects_data_that_is_not_numeric(data):
    with pytest.raises(lbrx.DtypeError, match="give numbers"):
        lbrx.tensor(data)


def test_tensor_rejects_ragged_lists():
    with pytest.raises(
        lbrx.ShapeError, match="this list is not rectangular: give nested lists of equal"
    ):
        lbrx.tensor([[1], [2, 3]])


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_round_trips(dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    t = lbrx.tensor(values).with_metadata(name="w", source="here")
    for same in (
        pickle.loads(pickle.dumps(t)),
        lbrx.tensor(np.asarray(t)),
        t.T.T,
        lbrx.from_dlpack(t),
    ):
        assert same.dtype is dtype
        np.testing.assert_array_equal(same.numpy(), values)
    assert pickle.loads(pickle.dumps(t)).metadata == t.metadata
    part = pickle.loads(pickle.dumps(t[:, ::2]))
    np.testing.assert_array_equal(part.numpy(), values[:, ::2])
    assert part.storage.nbytes == part.nbytes == 4 * dtype.itemsize
    assert t.tolist() == values.astype(float).tolist()
    assert t[1, 2].item() == float(values[1, 2])


@pytest.mark.parametrize("dtype", NATIVE, ids=str)
def test_dlpack_with_numpy_shares_memory(dtype):
    t = lbrx.tensor(np.arange(12).reshape(3, 4).astype(dtype.numpy))
    theirs = np.from_dlpack(t[::2, 1:])
    assert np.shares_memory(theirs, t.numpy())
    np.testing.assert_array_equal(theirs, t.numpy()[::2, 1:])
    source = np.arange(12).astype(dtype.numpy).reshape(3, 4)
    ours = lbrx.from_dlpack(source[::-1].T)
    assert np.shares_memory(ours.numpy(), source)
    np.testing.assert_array_equal(ours.numpy(), source[::-1].T)


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_dlpack_of_a_reversed_view_is_a_copy(device):
    """PyTorch ends the process when it reads negative strides."""
    t = lbrx.arange(6, device=device).reshape(2, 3)[:, ::-1]
    for theirs in (np.from_dlpack(t), np.from_dlpack(t, copy=True)):
        assert min(theirs.strides) > 0
        np.testing.assert_array_equal(theirs, t.numpy())
    if device == "cpu" or metal.context().info.unified_memory:
        assert np.shares_memory(np.from_dlpack(t, copy=False), t.numpy())


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_bfloat16_through_dlpack_is_labelled_so(version):
    """The capsule's type code is bfloat16, with and without a DLPack version."""
    t = lbrx.tensor([1.0, -2.5], dtype="bfloat16")
    kwargs = {} if version is None else {"max_version": version}

    class Foreign:
        def __dlpack__(self, **_):
            return t.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return t.__dlpack_device__()

    back = lbrx.from_dlpack(Foreign())
    assert back.dtype is lbrx.bfloat16
    assert back.tolist() == [1.0, -2.5]
    assert np.shares_memory(back.numpy().view(np.uint16), t.numpy().view(np.uint16))
    with pytest.raises((TypeError, RuntimeError, BufferError)):
        np.from_dlpack(t)


def test_views_share_storage():
    t = lbrx.arange(24).reshape(2, 3, 4)
    views = [
        *(t[1:], t[:, 1], t[..., ::-2], t[None], t.T, t.permute(1, 0, 2), t.transpose(0, 1)),
        *(t.reshape(6, 4), t.flatten(), t.unsqueeze(0).squeeze(), t.expand(5, 2, 3, 4), t[0, 0, 0]),
        *(t.contiguous(), t.astype("int64"), t.to_device("cpu")),
    ]
    for view in views:
        assert view.storage is t.storage
        assert np.shares_memory(view.numpy(), t.numpy())
    copies = [
        t.copy(),
        t.T.reshape(6, 4),
        t.T.contiguous(),
        t.astype("int32"),
        t[[0]],
        t[t > 0],
        +t,
    ]
    assert all(copy.storage is not t.storage for copy in copies)


def test_shape_methods_follow_numpy():
    x = np.arange(24).reshape(2, 3, 4)
    t = lbrx.tensor(x)
    for ours, theirs in [
        (t.T, x.T),
        (t.mT, x.swapaxes(-1, -2)),
        (t.transpose(), x.transpose()),
        (t.transpose(0, 2), x.swapaxes(0, 2)),
        (t.transpose((1, 2, 0)), x.transpose((1, 2, 0))),
        (t.transpose(2, 0, 1), x.transpose(2, 0, 1)),
        (t.permute((2, 0, 1)), x.transpose(2, 0, 1)),
        (t.reshape((4, -1)), x.reshape(4, -1)),
        (t.T.reshape(-1), x.T.reshape(-1)),
        (t.reshape(np.int64(6), 4), x.reshape(6, 4)),
        (lbrx.tensor(5).reshape(1).reshape(()), np.array(5)),
        (t[:, :1].expand(-1, 3, -1), np.broadcast_to(x[:, :1], x.shape)),
        (lbrx.stack([t, t], axis=1), np.stack([x, x], 1)),
        (lbrx.stack([x, t]), np.stack([x, x])),
    ]:
        np.testing.assert_array_equal(ours.numpy(), theirs)
    assert (t.ndim, t.size, t.nbytes, len(t)) == (3, 24, 192, 2)
    assert [part.shape for part in t] == [(3, 4)] * 2


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: lbrx.zeros((2, 3)), np.zeros((2, 3), "f4")),
        (lambda: lbrx.ones(3, "int8"), np.ones(3, "i1")),
        (lambda: lbrx.ones(np.int64(3)), np.ones(3, "f4")),
        (lambda: lbrx.full((2,), 2.5), np.full(2, 2.5, "f4")),
        (lambda: lbrx.full((), 7), np.array(7)),
        (lambda: lbrx.full((0, 2), True), np.ones((0, 2), bool)),
        (lambda: lbrx.arange(5), np.arange(5)),
        (lambda: lbrx.arange(1, 2, 0.25), np.arange(1, 2, 0.25, "f4")),
        (lambda: lbrx.arange(5, 0, -2, dtype="uint8"), np.arange(5, 0, -2).astype("u1")),
        (lambda: lbrx.eye(2, 3), np.eye(2, 3, dtype="f4")),
    ],
)
def test_creation(ours, theirs):
    t = ours()
    assert t.dtype.numpy == theirs.dtype
    np.testing.assert_array_equal(t.numpy(), theirs)
    assert t.size == 0 or t.storage.address % mmap.PAGESIZE == 0


def test_operators_and_their_reflections():
    x, y = np.array([5, 3, 8]), np.array([2, 7, 3])
    a, b = lbrx.tensor(x), lbrx.tensor(y)
    for symbol in (
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
        "&",
        "|",
        "^",
        "<<",
        ">>",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
    ):
        for left, right in (("a", "b"), ("a", "3"), ("3", "a"), ("a", "y"), ("x", "b")):
            ours = eval(f"{left} {symbol} {right}", {"a": a, "b": b, "x": x, "y": y})
            theirs = eval(f"{left} {symbol} {right}", {"a": x, "b": y, "x": x, "y": y})
            assert isinstance(ours, lbrx.Tensor), symbol
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6, err_msg=symbol)
    np.testing.assert_array_equal((a @ b).numpy(), x @ y)
    np.testing.assert_array_equal((x @ b).numpy(), x @ y)
    np.testing.assert_array_equal((-a).numpy(), -x)
    np.testing.assert_array_equal((~a).numpy(), ~x)
    np.testing.assert_array_equal(abs(-a).numpy(), x)


@pytest.mark.parametrize(
    "function",
    [
        *(np.sum, np.mean, np.max, np.min, np.prod, np.any, np.all, np.std, np.var, np.linalg.norm),
        *(np.argmax, np.cumsum, np.squeeze, np.transpose, np.sort, np.ravel, np.round),
        lambda x: np.sum(x, axis=0, dtype="f8", keepdims=True),
        lambda x: np.concatenate([x, x], axis=1),
        lambda x: np.where(x > 1, x, 0),
        lambda x: np.reshape(x, (3, 2)),
        lambda x: np.einsum("ij,kj->ik", x, x),
    ],
)
def test_functions_of_numpy(function):
    """numpy's functions accept tensors as they accept arrays."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    found, expected = function(lbrx.tensor(values, device="cpu")), function(values)
    assert not isinstance(found, lbrx.Tensor)
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(found, expected)


def test_python_protocols():
    t = lbrx.tensor(3)
    assert (int(t), float(t), bool(t), [10, 20, 30, 40][t]) == (3, 3.0, True, 40)
    assert len({t, t}) == 1
    assert f"{t:03d} {lbrx.tensor(0.25):.1%}" == "003 25.0%"
    assert f"{t}" == repr(t)
    assert 2 in lbrx.arange(3)
    assert 2.5 not in lbrx.arange(3)
    np.testing.assert_array_equal(np.exp(lbrx.zeros(2)), [1, 1])
    assert np.asarray(lbrx.ones(2), dtype="f8").dtype == np.float64
    for wrong, error, message in [
        (lambda: bool(lbrx.ones(2)), lbrx.ShapeError, "does not have one truth value: use any"),
        (
            lambda: lbrx.ones(2).item(),
            lbrx.ShapeError,
            r"item\(\) of shape \(2,\) has 2 elements: index one",
        ),
        (lambda: len(t), TypeError, "does not have a length: use size"),
        (lambda: [1][lbrx.tensor(0.0)], TypeError, "is not an index: give an integer"),
        (lambda: lbrx.full(2, "a"), lbrx.DtypeError, "value is str: give a number"),
        (lambda: lbrx.zeros((2, -1)), lbrx.ShapeError, "negative size"),
        (lambda: lbrx.zeros(2.5), TypeError, "'float' object cannot be interpreted"),
        (lambda: lbrx.arange(0, 5, 0), lbrx.ShapeError, "never ends"),
        (lambda: operator.setitem(lbrx.ones(2), 0, 1), TypeError, r"use x = x\.at"),
        (
            lambda: lbrx.ones(2).sum(axes=0),
            TypeError,
            r"sum\(\) got an unexpected keyword argument 'axes'",
        ),
    ]:
        with pytest.raises(error, match=message):
            wrong()


def test_equal_numbers_of_different_kinds_stay_apart(place):
    """Arrays of numbers are kept for later calls, also of those that Python finds equal."""
    flags, ones = lbrx.tensor([True, False], device=place), lbrx.ones(1, device=place)
    for _ in range(2):
        for number, dtype in ((True, "bool"), (1, "int64"), (1.0, "float32")):
            assert (flags * number).dtype == dtype
        assert [(ones / zero).item() for zero in (0.0, -0.0, 0)] == [np.inf, -np.inf, np.inf]


def test_numbers_take_the_dtype_of_the_tensor():
    for dtype in dt.ALL:
        t = lbrx.ones(2, dtype)
        assert (t * 1).dtype is (dtype if dtype is not lbrx.bool_ else lbrx.int64)
        assert (t * 1.0).dtype is (dtype if dtype.is_float else lbrx.float32)
        assert (t * np.float64(1)).dtype is (t * 1.0).dtype
    assert (lbrx.ones(2, "float16") + 2**70).tolist() == [float("inf")] * 2
    assert lbrx.where(lbrx.tensor([True, False]), 1, 0.5).dtype is lbrx.float32


def test_numbers_outside_the_range_of_the_dtype(place):
    for dtype, value in [("uint8", 300), ("uint8", -1), ("int8", -129), ("int64", 2**63)]:
        t = lbrx.ones(2, dtype, place)
        for refused in (lambda: t + value, lambda: lbrx.tensor([value], dtype)):  # noqa: B023
            with pytest.raises(lbrx.DtypeError, match=f"{value} does not fit {dtype} .*wider type"):
                refused()
    t = lbrx.tensor([1, 255], "uint8", place)
    assert (t < 300).tolist() == (t > -1).tolist() == (t != -1).tolist() == [True, True]
    assert (t == 256).tolist() == (t >= 300).tolist() == [False, False]
    assert lbrx.ones(2, "uint64", place).greater(-1).tolist() == [True, True]


def test_repr_has_values_shape_dtype_device_and_name():
    t = lbrx.tensor([[1.5, 2.0], [3.0, 4.0]], dtype="bfloat16").with_metadata(name="w")
    assert repr(t) == (
        "tensor([[1.5, 2. ],\n        [3. , 4. ]],\n"
        "       shape=(2, 2), dtype=bfloat16, device='cpu', name='w')"
    )
    assert repr(lbrx.tensor(3)) == "tensor(3, shape=(), dtype=int64, device='cpu')"
    assert "..." in repr(lbrx.zeros(10_000))


def test_every_operation_is_a_method_with_a_signature():
    for op in lbrx.ops.TABLE.values():
        # Operations of lbrx.video are in the table once it is imported, and have no methods.
        if op.operands and not op.variadic and not op.name.startswith("video_"):
            assert getattr(lbrx.Tensor, op.name).__doc__
            if hasattr(OperationMethods, op.name):  # else it takes more than the operation does
                names = list(inspect.signature(getattr(lbrx.Tensor, op.name)).parameters)
                assert set(names[1:]) == {*(o.name for o in op.operands[1:]), *op.attributes}
    t = lbrx.arange(6).reshape(2, 3)
    assert t.max(1, True).shape == t.max(axis=1, keepdims=True).shape == (2, 1)
    assert t.rms_norm(weight=lbrx.ones(3)).shape == (2, 3)


def test_a_second_device_needs_one_method(monkeypatch):
    """Moves, scalars, numpy arrays and device errors work on a device that only has `run`."""
    from lbrx.arrays.storage import Array, MetalStorage
    from lbrx.tensors import placement as devices

    class Buffer:
        def __init__(self, data):
            self.data = data
            self.size = data.nbytes
            self.address = data.ctypes.data

        def array(self):
            return self.data

    class Other:
        name = "metal"

        def run(self, op, inputs, attributes):
            for x in inputs:
                assert op.name == "copy" or x.storage.device == "metal" or not x.layout.shape
            results = devices.CpuDevice().run(op, inputs, attributes)
            return tuple(
                Array(
                    MetalStorage(Buffer(r.storage.host()), 0, r.storage.nbytes), r.layout, r.dtype
                )
                for r in results
            )

    monkeypatch.setitem(devices.MADE, "metal", Other())
    t = lbrx.tensor([1.0, 2.0, 3.0], device="metal")
    assert type(t.storage).__name__ == "MetalStorage"
    u = (t * 2 + np.ones(3, "f4"))[[2, 0]]
    assert (u.device, u.tolist()) == ("metal", [7.0, 3.0])
    assert t.to_device("cpu").device == "cpu"
    assert lbrx.random.uniform(3, device="metal").device == "metal"
    assert pickle.loads(pickle.dumps(t)).device == "metal"
    with pytest.raises(lbrx.DeviceError, match=r"\(3,\) and \(3,\) are on 'metal' and 'cpu': move"):
        t + lbrx.ones(3)


def test_import_is_light():
    """Importing lbrx does not import the Metal backend or softmetal."""
    code = "import sys, lbrx; print([m for m in sys.modules if 'softmetal' in m or 'Metal' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names():
    """The public names are those in public_names.txt."""
    pinned = (Path(__file__).parent / "public_names.txt").read_text().split()
    assert sorted(lbrx.__all__) == pinned
    assert all(hasattr(lbrx, name) for name in lbrx.__all__)


def test_out_of_memory_names_the_largest_users():
    error = pickle.loads(pickle.dumps(lbrx.OutOfMemory(100, 2000, 2048, [("weights", 1500)])))
    assert (error.requested, error.in_use, error.limit) == (100, 2000, 2048)
    assert "100 bytes requested with 2,000 of 2,048 in use (weights 1,500): free" in str(error)
