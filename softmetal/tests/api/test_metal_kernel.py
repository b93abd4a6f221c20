"""`softmetal.mlx.fast.metal_kernel`, with the calls of MLX's documentation, against numpy."""

from __future__ import annotations

import array

import ml_dtypes
import numpy as np
import pytest

import softmetal
from softmetal.errors import SoftmetalError
from softmetal.mlx.fast import metal_kernel

RNG = np.random.default_rng(1)
EXP = "uint elem = thread_position_in_grid.x; out[elem] = metal::exp(T(inp[elem]));"


class OnlyDLPack:
    """An array of a library that has DLPack alone."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __dlpack__(self, **options: object) -> object:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._values.__dlpack_device__()


def elementwise(source: str, values, dtype, *, names=("inp", "out"), size=None, **options):
    kernel = metal_kernel("f", names[:1], names[1:], source, **options)
    count = np.asarray(values).size if size is None else size
    (out,) = kernel(
        inputs=[values],
        template=[("T", dtype)],
        grid=(max(count, 1), 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[getattr(values, "shape", (count,))],
        output_dtypes=[dtype],
    )
    return out


@pytest.mark.parametrize("shape", [(), (1,), (7,), (8,), (4, 16), (3, 5, 7)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda t: t.__name__)
def test_a_function_of_each_element(shape, dtype):
    values = RNG.standard_normal(shape).astype(dtype)
    source = EXP if shape else EXP.replace("[elem]));", "));").replace("inp[elem]", "inp")
    out = elementwise(source, values, dtype)
    assert (out.shape, out.dtype) == (shape, np.dtype(dtype).name)
    np.testing.assert_allclose(
        np.asarray(out), np.exp(values), rtol=2e-3 if dtype == np.float16 else 1e-6
    )


TYPES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
]
FORMS = {
    "numpy": lambda values: values,
    "DLPack": OnlyDLPack,
    "a buffer": lambda values: array.array(values.dtype.char, values.tolist()),
}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (name, form)
        for name in TYPES
        for form in FORMS
        if form != "a buffer" or name not in ("bool", "float16")
    ],
)
def test_each_type(name, form):
    values = (RNG.integers(0, 2, 11) if name == "bool" else RNG.integers(-100, 100, 11)).astype(
        name
    )
    source = "uint i = thread_position_in_grid.x; out[i] = inp[i];"
    out = elementwise(source, FORMS[form](values), name, size=11)
    np.testing.assert_array_equal(np.asarray(out), values)
    assert np.asarray(out).dtype == values.dtype
    assert out.tolist() == values.tolist()
    np.testing.assert_array_equal(np.from_dlpack(out), values)


def test_bfloat16():
    values = np.array([1.5, -0.0, 3e38, np.inf, np.nan, 1e-40], np.float32).astype(
        ml_dtypes.bfloat16
    )
    out = elementwise("uint i = thread_position_in_grid.x; out[i] = inp[i];", values, "bfloat16")
    np.testing.assert_array_equal(np.array(out.tolist(), np.float32), values.astype(np.float32))
    again = elementwise(
        "uint i = thread_position_in_grid.x; out[i] = inp[i] + T(1);", out, "bfloat16", size=6
    )
    np.testing.assert_array_equal(again.tolist()[:2], [2.5, 1.0])
    kernel = metal_kernel(
        "fill", [], ["out"], "uint i = thread_position_in_grid.x; if (i == 9) out[i] = 0;"
    )
    for value in (1.00390625, 1.01171875, -7.3, 3.4e38, float("nan")):
        (filled,) = kernel(inputs=[], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(3,)],
                           output_dtypes=["bfloat16"], init_value=value)  # fmt: skip
        expected = np.full(3, value, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(filled.tolist(), expected)


LOCATED = """
    int elem = thread_position_in_grid.x;  // signed, as strides may be negative
    int loc = elem_to_loc(elem, inp_shape, inp_strides, inp_ndim);
    out[elem] = inp[loc];
"""
VIEWS = {
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1],
    "both reversed": lambda x: x[::-1, ::-1],
    "every second": lambda x: x[:, 1::2],
    "broadcast": lambda x: np.broadcast_to(x[:1], (5, 12)),
    "one row": lambda x: x[3:4, ::3],
    "whole": lambda x: x,
}


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("wrap", [lambda x: x, OnlyDLPack], ids=["numpy", "dlpack"])
@pytest.mark.parametrize("view", VIEWS)
def test_strided_inputs(view, wrap, copies):
    values = VIEWS[view](np.arange(120, dtype=np.float32).reshape(10, 12))
    if wrap is OnlyDLPack and not values.flags.writeable:
        values = values.copy()  # numpy exports no array that is read-only
    out = elementwise(
        LOCATED, wrap(values), "float32", size=values.size, ensure_row_contiguous=copies
    )
    np.testing.assert_array_equal(np.asarray(out).reshape(values.shape), values)


def test_small_arrays_and_numbers_are_constant(capsys):
    kernel = metal_kernel("sizes", ["a", "b", "c", "n", "on"], ["out"],
                          "out[0] = a[6] + b[7] + n + (on ? 1 : 0) + c;")  # fmt: skip
    (out,) = kernel(
        inputs=[np.arange(7.0, dtype="f4"), np.arange(8.0, dtype="f4"), np.float32(0.5), 3, True],
        grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(1,)], output_dtypes=[np.float32],
        verbose=True,
    )  # fmt: skip
    assert out.tolist() == [6 + 7 + 3 + 1 + 0.5]
    text = capsys.readouterr().out
    for declared in ("const constant float* a", "const device float* b", "const constant float& c",
                     "const constant int32_t& n", "const constant bool& on"):  # fmt: skip
        assert f"{declared} [[buffer(" in text


def test_template_header_and_several_outputs():
    kernel = metal_kernel(
        "both", ["x"], ["low", "high"],
        "uint i = thread_position_in_grid.x; low[i] = half_of(T(x[i])) + N; high[i] = FLIP ? -x[i] : x[i];",
        header="template <typename T> T half_of(T x) { return x / 2; }",
    )  # fmt: skip
    x = np.arange(40, dtype=np.float32)
    for flip in (True, False):
        low, high = kernel(
            inputs=[x], template=[("T", np.int32), ("N", 5), ("FLIP", flip)], grid=(40, 1, 1),
            threadgroup=(16, 1, 1), output_shapes=[(40,), (8, 5)], output_dtypes=["int32", np.float32],
        )  # fmt: skip
        np.testing.assert_array_equal(np.asarray(low), np.arange(40) // 2 + 5)
        np.testing.assert_array_equal(np.asarray(high), (-x if flip else x).reshape(8, 5))


def test_atomic_outputs_and_their_first_value():
    kernel = metal_kernel(
        "histogram", ["x"], ["out"],
        "uint i = thread_position_in_grid.x;"
        "atomic_fetch_add_explicit(&out[x[i]], 1, memory_order_relaxed);",
        atomic_outputs=True,
    )  # fmt: skip
    x = RNG.integers(0, 10, 5000).astype(np.int32)
    (out,) = kernel(inputs=[x], grid=(5000, 1, 1), threadgroup=(64, 1, 1), output_shapes=[(10,)],
                    output_dtypes=[np.int32], init_value=100)  # fmt: skip
    np.testing.assert_array_equal(np.asarray(out), np.bincount(x, minlength=10) + 100)


def test_threads_that_work_together():
    source = """
        threadgroup float shared[4];
        float total = simd_sum(x[thread_position_in_grid.x]);
        if (thread_index_in_simdgroup == 0) shared[simdgroup_index_in_threadgroup] = total;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (thread_index_in_threadgroup == 0)
            out[threadgroup_position_in_grid.x] = shared[0] + shared[1] + shared[2] + shared[3];
    """
    x = RNG.integers(0, 9, 512).astype(np.float32)
    (out,) = metal_kernel("sums", ["x"], ["out"], source)(
        inputs=[x], grid=(512, 1, 1), threadgroup=(128, 1, 1), output_shapes=[(4,)], output_dtypes=["float32"],
    )  # fmt: skip
    np.testing.assert_array_equal(np.asarray(out), x.reshape(4, 128).sum(axis=1))


def test_checks_find_what_a_gpu_does_not():
    kernel = metal_kernel("past", ["x"], ["out"],
                          "uint i = thread_position_in_grid.x; out[i] = x[i] + x[i + 1];")  # fmt: skip
    with (
        softmetal.checking("bounds"),
        pytest.raises(SoftmetalError, match="bounds: kernel 'custom_kernel_past'"),
    ):
        kernel(inputs=[np.zeros(9, "f4")], grid=(9, 1, 1), threadgroup=(9, 1, 1), output_shapes=[(9,)],
               output_dtypes=["float32"])  # fmt: skip


GOOD = {
    "inputs": [np.zeros(4, "f4")], "grid": (4, 1, 1), "threadgroup": (4, 1, 1), "output_shapes": [(4,)],
    "output_dtypes": ["float32"],
}  # fmt: skip
BAD = [
    ({"inputs": []}, ValueError, "inputs has 0 values for the names x: give 1"),
    ({"output_shapes": [(4,), (4,)]}, ValueError, "output_shapes has 2 values"),
    ({"output_dtypes": ["complex64"]}, SoftmetalError, "'complex64' is not a type of elements"),
    ({"inputs": ["text"]}, SoftmetalError, "str is not an array"),
    ({"inputs": [np.zeros(4, ">f4")]}, SoftmetalError, "big-endian"),
    ({"inputs": [np.zeros(4, "c8")]}, SoftmetalError, "complex64"),
    ({"inputs": [1 << 40]}, SoftmetalError, "1099511627776 does not fit int32"),
    ({"grid": (0, 1, 1)}, ValueError, "grid=(0, 1, 1): give three sizes"),
    ({"grid": (4096, 1, 1), "threadgroup": (2048, 1, 1)}, ValueError, "more than 1024 threads"),
    ({"template": [("T", "float")]}, SoftmetalError, "'float' is not a type"),
    ({"init_value": "a"}, SoftmetalError, "'a' does not fit float32"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_calls(changed, error, message):
    kernel = metal_kernel("k", ["x"], ["out"], "out[thread_position_in_grid.x] = x[0];")
    with pytest.raises(error) as caught:
        kernel(**{**GOOD, **changed})
    assert message in str(caught.value)
    (out,) = kernel(**GOOD)
    assert out.tolist() == [0] * 4


def test_errors_name_the_line_of_the_body():
    kernel = metal_kernel("k", ["x"], ["out"], "\nout[0] = x[0];\nout[1] = missing;\n")
    with pytest.raises(SoftmetalError, match=r"custom_kernel_k:3:10: error: use of undeclared"):
        kernel(**GOOD)
    with pytest.raises(ValueError, match="'a b' is not a name"):
        metal_kernel("k", ["a b"], ["out"], "")
    with pytest.raises(ValueError, match="output_names is empty"):
        metal_kernel("k", ["a"], [], "")


def test_memory_of_results_lives_as_long_as_what_uses_it():
    out = elementwise(EXP, np.zeros(1000, "f4"), np.float32)
    taken, capsule = np.from_dlpack(out), out.__dlpack__()
    del out, capsule
    np.testing.assert_array_equal(taken, np.ones(1000))
