"""The generated methods and functions: fresh, typed, documented; and operations from outside."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.ops import TABLE, OpFamily, rules
from lbrx.ops.table import op
from lbrx.tensors import functions, operation_functions
from lbrx.tensors.function_methods import FunctionMethods
from lbrx.tensors.operation_methods import OperationMethods

SCRIPT = Path(__file__).parent.parent / "scripts" / "tensor_operations.py"
METHODS = [name for name in vars(OperationMethods) if not name.startswith("_")]
COMPOSED = [name for name in vars(FunctionMethods) if not name.startswith("_")]


def test_the_generated_modules_are_fresh():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (OperationMethods, METHODS),
        (FunctionMethods, COMPOSED),
        (operation_functions, operation_functions.__all__),
        (functions, functions.__all__),
    ],
)
def test_every_operation_has_a_signature_and_a_docstring(owner, names):
    assert names
    for name in names:
        function = getattr(owner, name)
        signature = inspect.signature(function)
        assert "Any" not in signature.return_annotation, name
        annotated = [p for p in signature.parameters.values() if p.name != "self"]
        assert all(p.annotation is not p.empty for p in annotated), name
        assert function.__doc__, name


def test_functions_and_methods_agree():
    x = lbrx.tensor([[1.0, -2.0], [0.5, 3.0]])
    for name in ("exp", "abs", "softmax", "max", "argsort"):
        function, method = getattr(lbrx, name), getattr(x, name)
        np.testing.assert_array_equal(function(x).numpy(), method().numpy())
    assert lbrx.matmul(x, [[1.0], [1.0]]).tolist() == [[-1.0], [3.5]]
    values, places = lbrx.topk(x, 1)
    assert (values.tolist(), places.tolist()) == ([[1.0], [3.0]], [[0], [1]])


def test_mypy_knows_methods_and_functions(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import lbrx\n"
        "x = lbrx.ones((2,))\n"
        "reveal_type(x.exp())\n"
        "reveal_type(lbrx.exp(x))\n"
        "reveal_type(x.topk(1))\n"
        "x.softmaxx()\n"
        "lbrx.no_such_name\n"
        "x.softmax(axis='last')\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.stdout.count('Revealed type is "lbrx.tensors.core.Tensor"') == 2, done.stdout
    assert "tuple[lbrx.tensors.core.Tensor, lbrx.tensors.core.Tensor]" in done.stdout
    assert '"Tensor" has no attribute "softmaxx"' in done.stdout
    assert 'Module has no attribute "no_such_name"' in done.stdout
    assert 'Argument "axis" to "softmax"' in done.stdout


CUBE = "inline float toy_cube(float x, float scale) { return scale * x * x * x; }"


@pytest.fixture(params=[None, CUBE], ids=["numpy", "metal"])
def toy_operation(request):
    """An operation of one's own: a numpy function with its rules, and an MSL function for speed."""

    @op(OpFamily.UNARY, rules.elementwise(1), rules.floating, metal=request.param)
    def toy_cube(x, *, scale: float = 1.0):
        """scale * x**3 of each element."""
        return scale * x**3

    yield request.param
    del TABLE["toy_cube"]


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_an_operation_from_outside(device, toy_operation):
    x = lbrx.tensor([1.0, -2.0, 3.0], device=device)
    y = lbrx.apply("toy_cube", x + 1, scale=0.5) - 1
    if device == "metal":
        kernels = "1 kernel" if toy_operation else "3 kernels"
        assert f"3 operations in {kernels}" in str(lbrx.explain(y))
    assert (y.device, y.tolist()) == (device, [3.0, -1.5, 31.0])
    halves = lbrx.apply("toy_cube", x.astype("float16"))
    assert (halves.dtype, halves.tolist()) == ("float16", [1.0, -8.0, 27.0])
    rows = lbrx.apply("toy_cube", x).sum(keepdims=True) + lbrx.apply("toy_cube", x)
    assert rows.tolist() == [21.0, 12.0, 47.0]


def test_a_compiled_function_needs_a_kernel(toy_operation):
    compiled = lbrx.compile(lambda x: lbrx.apply("toy_cube", x) + 1)
    x = lbrx.tensor([2.0], device="metal")
    if toy_operation:
        assert compiled(x).tolist() == [9.0]
        return
    with pytest.raises(lbrx.TraceError, match="toy_cube has no Metal kernel, so a compiled"):
        compiled(x)


def test_apply_names_what_it_lacks():
    with pytest.raises(KeyError, match="no operation 'sofmax': did you mean 'softmax'"):
        lbrx.apply("sofmax", lbrx.ones(2))


def test_dtypes_equal_their_names():
    x = lbrx.ones(2, dtype="float16")
    assert x.dtype == "float16"
    assert x.dtype != "float32"
    assert x.dtype == np.dtype("float16")
    assert x.dtype != 16
    assert {lbrx.float16: 1}["float16"] == 1


@pytest.mark.parametrize(
    ("targets", "device", "dtype"),
    [
        (("cpu",), "cpu", "float32"),
        (("float16",), "metal", "float16"),
        ((lbrx.int32,), "metal", "int32"),
        (("cpu", "bfloat16"), "cpu", "bfloat16"),
        ((float,), "metal", "float32"),
    ],
)
def test_to_a_device_or_a_dtype(targets, device, dtype):
    x = lbrx.ones((2, 3), device="metal")
    moved = x.to(*targets)
    assert (moved.device, moved.dtype, moved.numel()) == (device, dtype, 6)


def test_to_names_what_it_does_not_know():
    with pytest.raises(lbrx.DtypeError, match="'gpu' is not an element type"):
        lbrx.ones(2).to("gpu")
