"""What new users try first: a clear result, or an error of lbrx that names the value."""

from __future__ import annotations

import operator
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import lbrx
from lbrx.tensors.foreign_names import OUR_NAMES, RANDOM_NAMES, TENSOR_NAMES
from lbrx.tensors.operators import Operators


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_comparison_with_what_is_no_number(shape, device):
    x = lbrx.ones(shape, device=device)
    for other in (None, "a", b"a"):
        assert (x == other) is False
        assert (x != other) is True
        assert other not in [x]
        assert other not in x


FLOATS = [1.5, -2.5, 300.0, 1e30, -1e30, float("nan")]


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "uint64"])
def test_floats_become_integers_as_astype_converts_them(dtype, device):
    limits = np.iinfo(dtype)
    exact = [0 if x != x else int(max(min(x, float(limits.max)), limits.min)) for x in FLOATS]
    wanted = [min(x, limits.max) for x in exact]
    sources = [FLOATS, np.array(FLOATS), np.array(FLOATS, np.float32), tuple(FLOATS)]
    for source in sources:
        assert lbrx.tensor(source, dtype, device).tolist() == wanted
    assert lbrx.tensor(FLOATS, device=device).astype(dtype).tolist() == wanted
    halves = lbrx.tensor(np.array([300, -1, np.nan], np.float16), dtype, device).tolist()
    assert halves == [min(300, limits.max), max(-1, limits.min), 0]


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize(
    ("scalar", "dtype"),
    [
        (np.uint8(3), "uint8"),
        (np.int32(3), "int32"),
        (np.float16(3), "float16"),
        (np.float32(3), "float32"),
        (np.float64(3), "float32"),  # it is a Python float
        (np.bool_(True), "bool"),
        (ml_dtypes.bfloat16(3), "bfloat16"),
    ],
)
def test_a_numpy_scalar_keeps_its_dtype(scalar, dtype, device):
    made = lbrx.tensor(scalar, device=device)
    assert (made.dtype, made.shape, made.item()) == (dtype, (), scalar)
    assert (lbrx.ones(2, "float16", device=device) * scalar).dtype == "float16"


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_division_by_an_integer_that_the_dtype_cannot_hold(device):
    pixels = lbrx.tensor([0, 64, 255], dtype="uint8", device=device)
    for made, wanted in (
        (pixels / 256, [0, 0.25, 255 / 256]),
        (pixels / -1, [0, -64, -255]),
        (510 / pixels, [float("inf"), 510 / 64, 2]),
    ):
        assert made.dtype == "float32"
        np.testing.assert_allclose(made.numpy(), np.float32(wanted))
    with pytest.raises(lbrx.DtypeError, match="256 does not fit uint8"):
        pixels + 256


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: x.softmax(axis=(0, 1)), TypeError, r"axis=\(0, 1\) .*give one integer"),
        (lambda x: x.sort(axis=None), TypeError, "axis=None .*give one integer"),
        (lambda x: lbrx.concat([x, x], axis=1.0), TypeError, "axis=1.0 .*give one integer"),
        (lambda x: lbrx.concat([]), lbrx.ShapeError, "concat of no tensors"),
        (lambda x: lbrx.stack([]), lbrx.ShapeError, "stack of no tensors"),
        (lambda x: x.view(-1), TypeError, r"view\(-1\): give a Layout, or use reshape"),
        (
            lambda x: x.to("cuda"),
            lbrx.DtypeError,
            "'cuda' is not .*; devices are 'cpu' and 'metal'",
        ),
        (lambda x: x.astype(None), lbrx.DtypeError, "None is not an element type"),
        (
            lambda x: lbrx.tensor([1, 2**70]),
            lbrx.DtypeError,
            "integers beyond 64 bits: give floats",
        ),
        (lambda x: lbrx.tensor([1, None]), lbrx.DtypeError, "list of object is not numeric"),
        (lambda x: lbrx.percentile(x, 101), ValueError, "q=101.0 .*from 0 to 100"),
        (lambda x: lbrx.random.bernoulli(0.5, (3,)), TypeError, "the shape comes first"),
        (lambda x: lbrx.random.normal(2, std=-1), ValueError, "std=-1 .*0 or more"),
        (lambda x: lbrx.random.seed("a"), TypeError, "integer"),
        (lambda x: lbrx.compile(3), TypeError, "3 cannot be called"),
        (lambda x: lbrx.Tensor([1, 2]), TypeError, r"Tensor of \[1, 2\]: use lbrx\.tensor"),
        (lambda x: lbrx.Tensor(x), TypeError, r"use lbrx\.tensor to make one"),
        (
            lambda x: lbrx.linear(x, lbrx.ones((3, 1), device="cpu")),
            lbrx.ShapeError,
            r"x \(2, 2\) and of the weight \(3, 1\) differ: give a weight of shape \(outputs",
        ),
        (lambda x: lbrx.from_numpy([1, 2]), TypeError, "list is not a numpy array: use lbrx.tens"),
        (lambda x: lbrx.save("x.npz", x), TypeError, "tensors is Tensor: give a mapping"),
        (lambda x: lbrx.save("x.npz", {3: x}), TypeError, "3 is not a name .*give strings"),
        (lambda x: lbrx.einsum(5, x), TypeError, "subscripts are 5: give a string such as 'ij,jk"),
        (
            lambda x: lbrx.quantize(x, None),
            lbrx.QuantizationError,
            "None is not a quantization sch",
        ),
        (lambda x: lbrx.load(os.devnull), lbrx.FormatError, "is a device, pipe or socket: give a"),
        (
            lambda x: lbrx.save("", {"x": x}, format="safetensors"),
            lbrx.FormatError,
            "the path to write is empty: give a file or a folder",
        ),
        (lambda x: lbrx.load(""), lbrx.FormatError, "the path is empty"),
        (lambda x: lbrx.open_model(""), lbrx.FormatError, "the path is empty"),
    ],
)
def test_a_wrong_argument_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call(lbrx.ones((2, 2), device="cpu"))


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "uint64"])
def test_comparison_with_integers_beyond_the_dtype(dtype, device):
    limits = np.iinfo(dtype)
    values = np.array([limits.min, 0, limits.max], dtype)
    x = lbrx.tensor(values, device=device)
    for number in (-1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70, -(2**63), -(2**70)):
        for ours, wanted in (
            (x == number, [int(v) == number for v in values]),
            (x != number, [int(v) != number for v in values]),
            (x < number, [int(v) < number for v in values]),
            (number <= x, [number <= int(v) for v in values]),
        ):
            assert ours.tolist() == wanted, number
        assert (number in x) == (number in values.tolist())


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_integers_that_only_uint64_holds(number):
    for made in (lbrx.tensor(number), lbrx.tensor([number])[0], lbrx.full((1,), number)[0]):
        assert (made.dtype, made.item()) == ("uint64", number)


def test_a_size_may_be_a_scalar_of_any_kind():
    for size in (3, np.int64(3), np.array(3), lbrx.tensor(3)):
        assert lbrx.zeros(size).shape == (3,)
        assert lbrx.ones([2, size]).shape == (2, 3)


def test_rounding_by_python():
    x = lbrx.tensor([0.126, -1.5], device="cpu")
    assert round(x).tolist() == [0, -2]
    np.testing.assert_allclose(round(x, 2).numpy(), np.round(x.numpy(), 2))


def test_names_of_other_libraries_are_known():
    for theirs, ours in OUR_NAMES.items():
        assert theirs not in lbrx.__all__
        assert callable(operator.attrgetter(ours)(lbrx))
        with pytest.raises(AttributeError, match=rf"no attribute '{theirs}': use lbrx\.{ours}$"):
            getattr(lbrx, theirs)
    with pytest.raises(AttributeError, match=r"no attribute 'nosuch'$") as problem:
        lbrx.nosuch  # noqa: B018
    assert (problem.value.name, problem.value.obj) == ("nosuch", lbrx)


def test_names_in_completion():
    names = dir(lbrx)
    assert not {"Any", "TYPE_CHECKING", "math", "sys"} & set(names)
    assert {"load", "quant", "random", "tensor", "__version__"} <= set(names)


def test_attributes_of_other_libraries_are_known():
    x = lbrx.ones(2, device="cpu")
    own = [base for base in lbrx.Tensor.__mro__ if base is not Operators]
    for name, remedy in TENSOR_NAMES.items():
        assert not any(name in vars(base) for base in own)
        assert not hasattr(lbrx.Tensor, name)
        assert name not in {*dir(x), *dir(lbrx.Tensor)}
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': ") as problem:
            getattr(x, name)
        assert str(problem.value).endswith(remedy)
        assert (problem.value.name, problem.value.obj) == (name, x)
    for name in ("nosuch", "__nosuch__", "_nosuch_"):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'$"):
            getattr(x, name)
    for theirs, ours in RANDOM_NAMES.items():
        assert callable(getattr(lbrx.random, ours))
        with pytest.raises(AttributeError, match=rf"'{theirs}': use lbrx\.random\.{ours}$"):
            getattr(lbrx.random, theirs)


OPERATORS = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.pow, operator.matmul, operator.and_, operator.or_, operator.xor, operator.lshift),
    *(
        operator.rshift,
        operator.eq,
        operator.ne,
        operator.lt,
        operator.le,
        operator.gt,
        operator.ge,
    ),
    divmod,
)
IN_PLACE = (
    *(
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.ifloordiv,
        operator.imod,
        operator.ipow,
    ),
    *(operator.imatmul, operator.iand, operator.ior, operator.ixor),
    *(operator.ilshift, operator.irshift),
)


@pytest.mark.parametrize(
    ("device", "binary", "in_place"),
    [("cpu", OPERATORS, IN_PLACE), ("metal", OPERATORS[:1], IN_PLACE[:1])],
)
def test_operators_of_arrays_with_tensors(device, binary, in_place):
    """array + tensor is a tensor; array += tensor changes the array that others hold, too."""
    values, others = np.int32([[5, 6], [7, 9]]), np.int32([[1, 2], [3, 4]])
    x = lbrx.tensor(others, device=device)
    for left in (values, np.int32(7)):
        for function in binary:
            if function is operator.matmul and left is not values:
                continue
            made, wanted = function(left, x), function(left, others)
            for ours, theirs in zip(np.atleast_1d(made), np.atleast_1d(wanted), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-6)
            parts = made if isinstance(made, tuple) else (made,)
            assert all(isinstance(part, lbrx.Tensor) and part.device == device for part in parts)
    for function in in_place:
        array = values.copy()
        assert function(array, x) is array
        np.testing.assert_array_equal(array, function(values.copy(), others))


def test_universal_functions_of_numpy_give_arrays():
    x = lbrx.tensor([1.0, 4.0])
    for made in (np.sqrt(x), np.add(x, x), np.add.accumulate(x), np.maximum(np.ones(2), x)):
        assert type(made) is np.ndarray
    with pytest.raises(TypeError, match="out= is a tensor, and tensors are values: give a numpy"):
        np.sqrt(x, out=x)
    with pytest.raises(TypeError, match="Cannot cast"):
        operator.iadd(np.ones(2, np.int32), x)


def test_distinct_values_as_numpy_gives_them(rng):
    values = rng.integers(0, 5, (4, 6))
    for flags in ((True, False, False), (False, True, True), (True, True, True)):
        made = lbrx.unique(lbrx.tensor(values), *flags)
        for ours, theirs in zip(made, np.unique(values, *flags), strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs)
    assert lbrx.unique(lbrx.tensor(values)).tolist() == np.unique(values).tolist()
    _, counts = lbrx.unique([3, 1, 3], return_counts=True)
    assert counts.tolist() == [1, 2]


def test_a_compiled_function_shows_its_name():
    assert repr(lbrx.compile(abs)) == "<lbrx.compile abs>"


def test_names_from_numpy():
    values = np.array([[7, -7, 5]], np.int16)
    x = lbrx.tensor(values, device="cpu")
    assert x.itemsize == values.itemsize
    assert x.ravel().tolist() == values.ravel().tolist()
    for made, wanted in (
        (divmod(x, 3), divmod(values, 3)),
        (divmod(10, x), divmod(10, values)),
    ):
        for part, correct in zip(made, wanted, strict=True):
            np.testing.assert_array_equal(part.numpy(), correct)
    assert lbrx.promote("int8", np.float16) == "float16"


class Foreign:
    """An array of another library, which numpy cannot read, such as PyTorch's bfloat16."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class Torch(Foreign):
    def __array__(self, dtype=None, copy=None):
        raise TypeError("Got unsupported ScalarType BFloat16")


class OnGpu(Torch):
    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **options):
        raise BufferError("tensor is on cuda:0")


class OnlyDlpack(Foreign):
    def __dlpack__(self, **options):
        raise RuntimeError("tensor is on cuda:0")


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("kind", [Foreign, Torch])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64", "uint8"])
def test_arrays_of_other_libraries(kind, dtype, device):
    values = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, dtype, dtype))
    source = kind(lbrx.tensor(values, device="cpu"))
    made = lbrx.tensor(source, device=device)
    assert made.dtype == dtype
    np.testing.assert_array_equal(made.numpy(), values)
    added = lbrx.zeros((2, 3), dtype, device=device) + source
    np.testing.assert_array_equal(added.numpy(), values)
    assert lbrx.tensor(source, dtype="float16", device=device).dtype == "float16"


def test_an_array_that_cannot_be_read():
    source = OnlyDlpack(lbrx.ones(2, device="cpu"))
    with pytest.raises(lbrx.DtypeError, match=r"this OnlyDlpack cannot be read.*host memory"):
        lbrx.tensor(source)


def test_an_array_on_another_gpu():
    source = OnGpu(lbrx.ones(2, device="cpu"))
    with pytest.raises(lbrx.DeviceError, match=r"this OnGpu is on GPU 0, .*: set SOFTMETAL_DEVICE"):
        lbrx.tensor(source)


def test_float64_of_another_library_stays_float64_on_the_cpu():
    source = Foreign(np.array([1.5]))
    assert lbrx.tensor(source, device="cpu").dtype == "float64"


@pytest.mark.parametrize("scheme", [None, "q8_0"])
def test_files_are_loaded_to_a_device(tmp_path, scheme):
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    x = lbrx.tensor(values, device="cpu")
    lbrx.save(tmp_path / "x.gguf", {"x": lbrx.quantize(x, scheme) if scheme else x})
    for device in (None, "cpu", "metal"):
        found = lbrx.load(tmp_path / "x.gguf", device=device)["x"]
        assert (found.device, found.metadata.name) == (device or "cpu", "x")
        assert (found.quantization is None) == (scheme is None)
        np.testing.assert_allclose(found.numpy(), values, atol=0.005)


@pytest.mark.parametrize("extension", ["safetensors", "gguf", "npz"])
def test_arrays_are_saved_as_tensors_are(tmp_path, extension):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = tmp_path / f"x.{extension}"
    lbrx.save(path, {"a": values, "b": values.T, "c": lbrx.tensor(values), "d": [1.5, 2.5]})
    loaded = lbrx.load(path)
    for name, wanted in {"a": values, "b": values.T, "c": values, "d": [1.5, 2.5]}.items():
        np.testing.assert_array_equal(loaded[name].numpy(), wanted)


@pytest.mark.parametrize("value", [None, "text", object()])
def test_what_cannot_be_saved_is_named(tmp_path, value):
    with pytest.raises(lbrx.DtypeError, match=r"tensor 'a': .*give numbers"):
        lbrx.save(tmp_path / "x.npz", {"a": value})


@pytest.mark.skipif(sys.platform == "darwin", reason="about the software device")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SOFTMETAL_CHECK", "bonds"),
        ("SOFTMETAL_THREADS", "two"),
        ("SOFTMETAL_THREADS", "0"),
        ("SOFTMETAL_DEVICE", "gpu"),
        ("SOFTMETAL_PROFILE", "apple-m99"),
        ("SOFTMETAL_TIMEOUT", "long"),
        ("SOFTMETAL_CACHE_LIMIT", "big"),
        ("SOFTMETAL_FIBERS", "yes"),
        ("SOFTMETAL_FINITE_MATH", "yes"),
    ],
)
def test_a_mistyped_setting_is_an_error(name, value):
    """It is not a reason to compute on the cpu, which is much slower."""
    program = """
import lbrx
for use in (lambda: lbrx.ones(3) + 1, lbrx.devices):
    try:
        lbrx.eval(use())
    except lbrx.SettingError as error:
        print(error)
    else:
        assert use is lbrx.devices, "no error"
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LBRX_DEVICE": "", name: value},
    )
    assert done.returncode == 0, done.stderr
    assert name in done.stdout
    assert repr(value) in done.stdout
    assert "cpu:" not in done.stderr
