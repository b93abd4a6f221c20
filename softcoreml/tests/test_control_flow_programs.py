"""Programs with branches, loops and lists, written with coremltools' builder, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mil_run import close

pytest.importorskip("coremltools", reason="writes the programs: pip install coremltools")

import coremltools as ct
from coremltools.converters.mil.mil import Builder, types

import softcoreml

Inputs = dict[str, np.ndarray]


def run(folder: Path, body: Callable[..., Any], inputs: Inputs) -> list[Any]:
    """Convert a program, save and load it, and give its outputs in their order."""
    specs = [
        Builder.TensorSpec(shape=one.shape, dtype=types.numpy_type_to_builtin_type(one.dtype))
        for one in inputs.values()
    ]
    program = Builder.program(input_specs=specs, opset_version=ct.target.iOS17)(body)
    model = ct.convert(
        program,
        minimum_deployment_target=ct.target.iOS17,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )
    model.save(str(folder / "program.mlpackage"))
    loaded = softcoreml.load(folder / "program.mlpackage")
    found = loaded.predict(inputs)
    return [found[one.name] for one in loaded.description.outputs]


@pytest.mark.parametrize("value", [-2.0, 0.0, 3.0])
def test_nested_branches(value: float, tmp_path: Path) -> None:
    def program(x: Any) -> Any:
        total = Builder.reduce_sum(x=x)

        def positive() -> Any:
            return Builder.cond(
                pred=Builder.greater(x=total, y=np.float32(5)),
                _true_fn=lambda: Builder.mul(x=x, y=np.float32(10)),
                _false_fn=lambda: Builder.add(x=x, y=total),
            )

        return Builder.cond(
            pred=Builder.greater(x=total, y=np.float32(0)),
            _true_fn=positive,
            _false_fn=lambda: Builder.sub(x=x, y=np.float32(1)),
        )

    x = np.full((2, 2), value, np.float32)
    total = x.sum()
    expected = x - 1 if total <= 0 else x * 10 if total > 5 else x + total
    close(run(tmp_path, program, {"x": x})[0], expected)


@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_loop_with_several_values(count: int, tmp_path: Path) -> None:
    """Fibonacci's numbers, and a matrix to a power: the loop may run no time at all."""

    def program(limit: Any, matrix: Any) -> Any:
        bound = Builder.squeeze(x=limit)
        zero = Builder.mul(x=Builder.cast(x=bound, dtype="fp32"), y=np.float32(0))
        identity = Builder.add(x=np.eye(2, dtype=np.float32), y=zero)
        start = (np.int32(0), zero, Builder.add(x=zero, y=np.float32(1)), identity)

        def step(i: Any, a: Any, b: Any, power: Any) -> Any:
            following = Builder.add(x=a, y=b), Builder.matmul(x=power, y=matrix)
            return Builder.add(x=i, y=np.int32(1)), Builder.identity(x=b), *following

        found = Builder.while_loop(
            _cond=lambda i, a, b, power: Builder.less(x=i, y=bound), _body=step, loop_vars=start
        )
        return found[1], found[3]

    matrix = np.array([[1, 0.5], [-0.25, 2]], np.float32)
    inputs = {"limit": np.array([count], np.int32), "matrix": matrix}
    fibonacci, power = run(tmp_path, program, inputs)
    assert float(fibonacci[0]) == [0, 1, 1, 2, 3, 5, 8][count]
    close(power, np.linalg.matrix_power(matrix.astype(np.float64), count))


def test_a_branch_within_a_loop_sees_values_around_both(tmp_path: Path) -> None:
    """Collatz' steps of several numbers, one after the other."""

    def program(x: Any, offset: Any) -> Any:
        shift = Builder.squeeze(x=offset)

        def step(n: Any, steps: Any) -> Any:
            odd = Builder.equal(x=Builder.mod(x=n, y=np.int32(2)), y=np.int32(1))
            following = Builder.cond(
                pred=odd,
                _true_fn=lambda: Builder.add(x=Builder.mul(x=n, y=np.int32(3)), y=shift),
                _false_fn=lambda: Builder.floor_div(x=n, y=np.int32(2)),
            )
            return following, Builder.add(x=steps, y=np.int32(1))

        found = Builder.while_loop(
            _cond=lambda n, steps: Builder.greater(x=n, y=np.int32(1)),
            _body=step,
            loop_vars=(Builder.squeeze(x=x), np.int32(0)),
        )
        return found[1]

    for start, steps in ((6, 8), (7, 16), (27, 111)):
        inputs = {"x": np.array([start], np.int32), "offset": np.array([1], np.int32)}
        (found,) = run(tmp_path, program, inputs)
        assert int(found[0]) == steps


def test_a_list_written_in_a_loop(tmp_path: Path) -> None:
    def program(x: Any) -> Any:
        kept = Builder.make_list(init_length=4, elem_shape=(3,), dynamic_length=False)

        def step(i: Any, kept: Any) -> Any:
            row = Builder.mul(x=x, y=Builder.cast(x=i, dtype="fp32"))
            return Builder.add(x=i, y=np.int32(1)), Builder.list_write(ls=kept, index=i, value=row)

        _, kept = Builder.while_loop(
            _cond=lambda i, kept: Builder.less(x=i, y=np.int32(4)),
            _body=step,
            loop_vars=(np.int32(0), kept),
        )
        rows = Builder.list_gather(ls=kept, indices=np.array([3, 0, 2], np.int32))
        return rows, Builder.list_read(ls=kept, index=np.int32(1))

    x = np.array([1, -2, 0.5], np.float32)
    rows, one = run(tmp_path, program, {"x": x})
    close(rows, np.outer([3, 0, 2], x))
    close(one, x)
