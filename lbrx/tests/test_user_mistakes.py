"""What new users try first: a clear result, or an error of lbrx that names the value."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import lbrx


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_comparison_with_none(shape, device):
    x = lbrx.ones(shape, device=device)
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    assert None not in [x]


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


@pytest.mark.parametrize("kind", [OnGpu, OnlyDlpack])
def test_an_array_that_cannot_be_read(kind):
    source = kind(lbrx.ones(2, device="cpu"))
    with pytest.raises(lbrx.DtypeError, match=rf"this {kind.__name__} cannot be read.*host memory"):
        lbrx.tensor(source)


def test_float64_of_another_library_stays_float64_on_the_cpu():
    source = Foreign(np.array([1.5]))
    assert lbrx.tensor(source, device="cpu").dtype == "float64"


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
