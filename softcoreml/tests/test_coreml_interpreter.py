"""The interpreter: control flow, lists, states, rounding, constants, and programs it refuses."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coreml_models import FULL, HALF, RNG, WEIGHT, built, counter, ct, dense, flexible, mb, written

import softcoreml
from softcoreml import mil
from softcoreml.errors import InputError, ModelError, UnsupportedOperation
from softcoreml.format.weights import MemoryWeights
from softcoreml.interpreter import prepare
from softcoreml.interpreter.constants import Decompressed
from softcoreml.interpreter.prepare import check_operations

NO_WEIGHTS = MemoryWeights({})
PAIR = mil.TensorType("fp32", (2,))
TWO = np.array([1.5, -2], np.float32)


def operation(kind: str, out: str, given: Mapping[str, Any], **more: Any) -> mil.Operation:
    inputs = {name: one if isinstance(one, tuple) else (one,) for name, one in given.items()}
    return mil.Operation(kind, inputs, (mil.NamedType(out, more.pop("type", PAIR)),), **more)


def function(*operations: mil.Operation, outputs: tuple[str, ...] = ("y",)) -> mil.Function:
    block = mil.Block((), outputs, operations)
    return mil.Function((mil.NamedType("x", PAIR),), "CoreML7", {"CoreML7": block})


def test_cond_runs_one_of_its_blocks(tmp_path: Path) -> None:
    def main(x: Any) -> Any:
        positive = mb.greater(x=mb.reduce_sum(x=x, axes=[0], keep_dims=False), y=np.float32(0))
        return mb.cond(
            pred=positive,
            _true_fn=lambda: mb.mul(x=x, y=np.float32(10)),
            _false_fn=lambda: mb.sub(x=x, y=np.float32(1)),
            name="out",
        )

    model = softcoreml.load(written(built(main, (3,)), tmp_path / "m.mlpackage"))
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(model.predict({"x": x})["out"], x * 10)
    np.testing.assert_array_equal(model.predict({"x": -x})["out"], -x - 1)


def test_while_loops_carry_their_values(tmp_path: Path) -> None:
    """Doubles x until its sum is at least 100, and counts."""

    def main(x: Any) -> Any:
        def condition(count: Any, value: Any) -> Any:
            return mb.less(x=mb.reduce_sum(x=value, axes=[0], keep_dims=False), y=np.float32(100))

        def body(count: Any, value: Any) -> Any:
            return mb.add(x=count, y=np.float32(1)), mb.add(x=value, y=value)

        start = mb.mul(x=mb.reduce_sum(x=x, axes=[0], keep_dims=True), y=np.float32(0))
        count, value = mb.while_loop(_cond=condition, _body=body, loop_vars=(start, x))
        return mb.identity(x=count, name="count"), mb.identity(x=value, name="value")

    model = softcoreml.load(written(built(main, (2,)), tmp_path / "m.mlpackage"))
    for x in ([1.0, 2.0], [60.0, 70.0]):
        array, count = np.array(x, np.float32), 0
        while array.sum() < 100:
            array, count = array * 2, count + 1
        found = model.predict({"x": np.array(x, np.float32)})
        assert found["count"].tolist() == [count]
        np.testing.assert_array_equal(found["value"], array)


def test_lists(tmp_path: Path) -> None:
    """Fills a list in a loop, then reads, gathers and scatters."""

    def main(x: Any) -> Any:
        ls = mb.make_list(init_length=2, dynamic_length=True, elem_shape=(3,), dtype="fp32")
        ls = mb.list_write(ls=ls, index=0, value=x)
        ls = mb.list_write(ls=ls, index=3, value=mb.mul(x=x, y=np.float32(3)))
        both = np.array([1, 2], np.int32)
        rows = mb.stack(values=(mb.add(x=x, y=np.float32(1)), mb.add(x=x, y=np.float32(2))), axis=0)
        ls = mb.list_scatter(ls=ls, indices=both, value=rows)
        length = mb.cast(x=mb.list_length(ls=ls), dtype="fp32")
        return (
            mb.identity(x=mb.list_gather(ls=ls, indices=np.array([3, 1], np.int32)), name="some"),
            mb.mul(x=mb.list_read(ls=ls, index=2), y=length, name="one"),
        )

    model = softcoreml.load(written(built(main, (3,)), tmp_path / "m.mlpackage"))
    x = np.array([1, 2, 4], np.float32)
    found = model.predict({"x": x})
    np.testing.assert_array_equal(found["some"], [x * 3, x + 1])
    np.testing.assert_array_equal(found["one"], (x + 2) * 4)


def test_states_live_between_predictions_and_are_each_others_strangers(tmp_path: Path) -> None:
    model = softcoreml.load(counter(tmp_path / "m.mlpackage"))
    first, second = model.new_states(), model.new_states()
    x = np.ones((2, 32), np.float16)
    buffer = first["total"]
    for step in (1, 2, 3):
        found = model.predict({"x": x}, first)
        assert found["new"].max() == step
        assert found["old"].max() == step - 1
    assert model.predict({"x": x}, second)["new"].max() == 1
    assert first["total"] is buffer
    assert buffer.dtype == np.float16
    assert buffer.min() == buffer.max() == 3
    buffer[:] = 10
    found = model.predict({"x": x}, first)
    assert (found["old"].max(), buffer.max()) == (10, 11)
    found["new"][:] = 0
    assert first["total"].max() == 11


def test_a_prediction_that_fails_leaves_states_alone(tmp_path: Path) -> None:
    model = softcoreml.load(counter(tmp_path / "m.mlpackage"))
    states = model.new_states()

    def fail(**_: Any) -> Any:
        raise RuntimeError("no")

    remove = softcoreml.accelerate("mul", fail)
    with pytest.raises(ModelError, match=r"operation '.*' \(mul\): RuntimeError: no"):
        model.predict({"x": np.ones((2, 32), np.float16)}, states)
    remove()
    assert states["total"].max() == 0
    with pytest.raises(InputError, match="state 'total' is missing"):
        model.predict({"x": np.ones((2, 32), np.float16)})
    with states.in_use(), pytest.raises(InputError, match="two predictions at once"):
        model.predict({"x": np.ones((2, 32), np.float16)}, states)


def test_results_are_rounded_to_their_types(tmp_path: Path) -> None:
    path = dense(tmp_path / "m.mlpackage", HALF)
    x = RNG.standard_normal((3, 12)).astype(np.float32)
    declared = softcoreml.load(path).predict({"x": x})["out"]
    single = softcoreml.load(path, precision="float32").predict({"x": x})["out"]
    weight = WEIGHT.astype(np.float16).astype(np.float64)
    exact = np.maximum(x.astype(np.float64) @ weight.T, 0)
    half = np.maximum(x.astype(np.float16).astype(np.float64) @ weight.T, 0).astype(np.float16)
    assert (declared == declared.astype(np.float16)).all()
    np.testing.assert_allclose(declared, half, rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(single, exact, rtol=1e-5, atol=1e-6)
    assert not (single == single.astype(np.float16)).all()
    with pytest.raises(ValueError, match='"declared" or "float32"'):
        softcoreml.load(path, precision="half")  # type: ignore[arg-type]


def test_values_are_freed_after_their_last_use() -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def watch(_: Any, __: Any, rounded: tuple[Any, ...]) -> None:
        nonlocal most
        alive.append(weakref.ref(rounded[0]))
        most = max(most, sum(one() is not None for one in alive))

    steps = [operation("add", "v1", {"x": "x", "y": "x"})]
    steps += [operation("add", f"v{n + 1}", {"x": f"v{n}", "y": "x"}) for n in range(1, 20)]
    steps.append(operation("add", "unused", {"x": "x", "y": "x"}))
    prepared = prepare(function(*steps, outputs=("v20",)), NO_WEIGHTS)
    found = prepared.run({"x": TWO}, watch=watch)
    np.testing.assert_array_equal(found["v20"], TWO * 21)
    assert most <= 3


def test_a_value_used_in_a_nested_block_is_kept_for_it() -> None:
    outer = operation("add", "a", {"x": "x", "y": "x"})
    yes = mil.Value(mil.TensorType("bool"), np.array(True))
    inner = mil.Block((), ("b",), (operation("add", "b", {"x": "a", "y": "a"}),))
    same = mil.Block((), ("a",), ())
    chosen = operation("cond", "y", {"pred": yes}, blocks=(inner, same))
    found = prepare(function(outer, chosen), NO_WEIGHTS).run({"x": TWO})
    np.testing.assert_array_equal(found["y"], TWO * 4)


def test_unknown_operations_are_refused_by_name_and_all_at_once() -> None:
    main = function(
        operation("teleport", "a", {"x": "x"}),
        operation("abs", "b", {"x": "x"}),
        operation("divine", "y", {"x": "a"}),
    )
    with pytest.raises(UnsupportedOperation, match=r"does not have: divine, teleport$"):
        check_operations(mil.Program(1, {"main": main}))


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([operation("add", "y", {"x": "x", "y": "y"})], "uses 'y' before it is defined"),
        (
            [operation("abs", "a", {"x": "y"}), operation("abs", "y", {"x": "a"})],
            "uses 'y' before it is defined",
        ),
        ([operation("abs", "x", {"x": "x"})], "defines 'x' a second time"),
        ([operation("abs", "z", {"x": "x"})], "the block's output uses 'y'"),
        ([operation("const", "y", {})], "has no value"),
        ([operation("cond", "y", {"pred": "x"})], "0 blocks instead of 2"),
        (
            [operation("abs", "y", {"x": "x"}, blocks=(mil.Block((), (), ()),))],
            "has 1 blocks, and abs takes none",
        ),
        ([operation("constexpr_cast", "y", {"source_val": "x"})], "not a constant"),
        (
            [operation("fill", "y", {"shape": "x"}, type=mil.TensorType("fp32", (1 << 40, 99)))],
            "bytes, and this machine has",
        ),
    ],
)
def test_malformed_programs_are_refused(operations: list[mil.Operation], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        prepare(function(*operations), NO_WEIGHTS)


def test_blocks_nested_without_end_are_refused() -> None:
    yes = mil.Value(mil.TensorType("bool"), np.array(True))
    block = mil.Block((), ("x",), ())
    for number in range(40):
        inside = operation(
            "cond", f"v{number}", {"pred": yes}, blocks=(block, mil.Block((), ("x",), ()))
        )
        block = mil.Block((), (f"v{number}",), (inside,))
    main = mil.Function((mil.NamedType("x", PAIR),), "CoreML7", {"CoreML7": block})
    with pytest.raises(ModelError, match="nested more than"):
        prepare(main, NO_WEIGHTS)


def test_an_operation_that_cannot_run_is_named() -> None:
    wide = mil.Value(mil.TensorType("fp32", (3,)), np.zeros(3, np.float32))
    prepared = prepare(function(operation("add", "y", {"x": "x", "y": wide})), NO_WEIGHTS)
    with pytest.raises(ModelError, match=r"operation 'y' \(add\)"):
        prepared.run({"x": TWO})
    wrong = operation("abs", "y", {"x": "x"}, type=mil.TensorType("fp32", (5,)))
    with pytest.raises(ModelError, match=r"gives the shape \(2,\) where the program says"):
        prepare(function(wrong), NO_WEIGHTS).run({"x": TWO})


def test_outputs_share_no_memory_with_inputs_and_weights(tmp_path: Path) -> None:
    def main(x: Any) -> Any:
        return mb.identity(x=x, name="same"), mb.transpose(x=x, perm=[1, 0], name="turned")

    model = softcoreml.load(written(built(main, (2, 3)), tmp_path / "m.mlpackage"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for name, found in model.predict({"x": x}).items():
        assert not np.shares_memory(found, x), name
        found[:] = -1
    assert x.min() == 0


def test_a_kernel_of_another_package_is_tried_first(tmp_path: Path) -> None:
    model = softcoreml.load(dense(tmp_path / "m.mlpackage"))
    calls = []

    def kernel(x: Any, weight: Any, bias: Any = None) -> Any:
        calls.append(x.shape)
        return NotImplemented if x[0, 0] < 0 else x @ weight.T + (0 if bias is None else bias)

    remove = softcoreml.accelerate("linear", kernel)
    x = np.ones((3, 12), np.float32)
    expected = np.maximum(x @ WEIGHT.T, 0)
    np.testing.assert_allclose(model.predict({"x": x})["out"], expected, rtol=1e-5)
    np.testing.assert_allclose(
        model.predict({"x": -x})["out"], np.maximum(-x @ WEIGHT.T, 0), rtol=1e-5
    )
    remove()
    model.predict({"x": x})
    assert calls == [(3, 12), (3, 12)]


def test_decompressed_weights_are_bounded() -> None:
    kept = Decompressed(limit=100)
    made: list[int] = []

    def make(number: int, size: int = 10) -> Any:
        return lambda: made.append(number) or (np.zeros(size, np.float32),)

    for number in (1, 2, 1, 3, 1):
        kept.get(number, make(number))
    assert made == [1, 2, 3]
    assert kept.nbytes == 80
    kept.get(2, make(2))
    assert made == [1, 2, 3, 2]
    kept.get(9, make(9, 1000))
    assert kept.nbytes == 80


def test_compressed_weights_are_decompressed_once(tmp_path: Path) -> None:
    import coremltools.optimize.coreml as optimize

    dense(tmp_path / "m.mlpackage")
    config = optimize.OptimizationConfig(
        optimize.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=0)
    )
    whole = ct.models.MLModel(str(tmp_path / "m.mlpackage"), skip_model_load=True)
    optimize.linear_quantize_weights(whole, config).save(str(tmp_path / "q.mlpackage"))
    model = softcoreml.load(tmp_path / "q.mlpackage")
    assert "constexpr_blockwise_shift_scale" in {one.type for one in mil.walk(model.function.block)}
    seen: list[Any] = []
    remove = softcoreml.accelerate(
        "linear", lambda **given: seen.append(given["weight"]) or NotImplemented
    )
    x = RNG.standard_normal((3, 12)).astype(np.float32)
    for _ in range(2):
        found = model.predict({"x": x})["out"]
    remove()
    assert seen[0] is seen[1]
    np.testing.assert_allclose(found, np.maximum(x @ WEIGHT.T, 0), atol=0.05)


@pytest.mark.parametrize(
    ("shapes", "fits", "misfits"),
    [
        (
            lambda: ct.EnumeratedShapes(shapes=[(1, 4), (3, 4)], default=(1, 4)),
            [(1, 4), (3, 4)],
            {(2, 4): "is not one of"},
        ),
        (
            lambda: ct.Shape((ct.RangeDim(1, 5), 4)),
            [(1, 4), (5, 4)],
            {(6, 4): "dimension 0 is 6", (1, 5): "dimension 1 is 5", (4,): "1 dimensions"},
        ),
    ],
)
def test_flexible_shapes(
    tmp_path: Path, shapes: Any, fits: list[tuple[int, ...]], misfits: dict[tuple[int, ...], str]
) -> None:
    model = softcoreml.load(flexible(tmp_path / "m.mlpackage", shapes()))
    for shape in fits:
        x = RNG.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(model.predict({"x": x})["out"], 2 * x + 1, rtol=1e-6)
    for shape, says in misfits.items():
        with pytest.raises(InputError, match=says):
            model.predict({"x": np.zeros(shape, np.float32)})


def test_inputs_are_checked(tmp_path: Path) -> None:
    model = softcoreml.load(dense(tmp_path / "m.mlpackage"))
    x = np.zeros((3, 12), np.float32)
    with pytest.raises(InputError, match="'z' is not an input of main: its inputs are x"):
        model.predict({"x": x, "z": x})
    with pytest.raises(InputError, match="input 'x' is missing"):
        model.predict({})
    with pytest.raises(InputError, match=r"shape \(3, 11\) where the model takes \(3, 12\)"):
        model.predict({"x": x[:, 1:]})
    with pytest.raises(InputError, match="not numbers"):
        model.predict({"x": np.full((3, 12), "a")})
    np.testing.assert_array_equal(
        model.predict({"x": np.ones((3, 12), np.int64)})["out"],
        model.predict({"x": np.ones((3, 12), np.float64)})["out"],
    )


@pytest.mark.parametrize(
    "target", [ct.target.iOS15, ct.target.iOS16, ct.target.iOS17, ct.target.iOS18]
)
@pytest.mark.parametrize("precision", [HALF, FULL])
def test_every_opset_loads(tmp_path: Path, target: Any, precision: Any) -> None:
    model = softcoreml.load(dense(tmp_path / "m.mlpackage", precision, target))
    x = RNG.standard_normal((3, 12)).astype(np.float32)
    tolerance = 1e-5 if precision is FULL else 5e-3
    np.testing.assert_allclose(
        model.predict({"x": x})["out"],
        np.maximum(x @ WEIGHT.T, 0),
        rtol=tolerance,
        atol=tolerance,
    )


def test_an_unknown_opset_is_refused() -> None:
    main = replace(function(operation("abs", "y", {"x": "x"})), opset="CoreML99")
    main = replace(main, blocks={"CoreML99": next(iter(main.blocks.values()))})
    with pytest.raises(ModelError, match="'CoreML99' is not known"):
        prepare(main, NO_WEIGHTS)


def test_a_state_too_large_for_memory_is_refused() -> None:
    huge = mil.StateType(mil.TensorType("fp16", (1 << 45, 1 << 20)))
    block = mil.Block((), ("x",), ())
    inputs = (mil.NamedType("x", PAIR), mil.NamedType("s", huge))
    prepared = prepare(mil.Function(inputs, "CoreML8", {"CoreML8": block}), NO_WEIGHTS)
    with pytest.raises(ModelError, match="no memory for a state"):
        prepared.states()


@pytest.mark.parametrize(
    ("condition", "body", "says"),
    [
        (("yes", "yes"), ("v",), "condition of a while_loop gives 2 values"),
        (("yes",), ("v", "v"), "a block of 1 inputs is given 2 values"),
        ((), ("v",), "gives 0 values"),
    ],
)
def test_malformed_loops_are_refused(
    condition: tuple[str, ...], body: tuple[str, ...], says: str
) -> None:
    value = mil.Value(mil.TensorType("bool"), np.array(True))
    yes = operation("const", "yes", {}, type=mil.TensorType("bool"), attributes={"val": value})
    parameter = (mil.NamedType("v", PAIR),)
    blocks = (mil.Block(parameter, condition, ()), mil.Block(parameter, body, ()))
    loop = operation("while_loop", "y", {"loop_vars": "x"}, blocks=blocks)
    with pytest.raises(ModelError, match=says):
        prepare(function(yes, loop), NO_WEIGHTS).run({"x": TWO})
    with pytest.raises(ModelError, match="has no input 'loop_vars'"):
        prepare(function(yes, operation("while_loop", "y", {}, blocks=blocks)), NO_WEIGHTS)


def test_enumerated_shapes_of_several_inputs_belong_together(tmp_path: Path) -> None:
    def main(x: Any, y: Any) -> Any:
        return mb.add(
            x=mb.reduce_sum(x=x, axes=[0, 1]), y=mb.reduce_sum(x=y, axes=[0, 1]), name="out"
        )

    symbol = ct.converters.mil.mil.get_new_symbol
    path = written(
        built(main, (symbol(), 4), (symbol(), 2)),
        tmp_path / "m.mlpackage",
        inputs=[
            ct.TensorType(name="x", shape=ct.EnumeratedShapes([(1, 4), (3, 4)], default=(1, 4))),
            ct.TensorType(name="y", shape=ct.EnumeratedShapes([(5, 2), (7, 2)], default=(5, 2))),
        ],
    )
    model = softcoreml.load(path)
    for rows, others in ((1, 5), (3, 7)):
        found = model.predict({"x": np.ones((rows, 4)), "y": np.ones((others, 2))})["out"]
        assert found.tolist() == [rows * 4 + others * 2]
    with pytest.raises(InputError, match="do not belong together"):
        model.predict({"x": np.ones((1, 4)), "y": np.ones((7, 2))})


def test_an_optional_input_has_a_default(tmp_path: Path) -> None:
    def main(x: Any, y: Any) -> Any:
        return mb.add(x=x, y=y, name="out")

    path = written(
        built(main, (2,), (2,)),
        tmp_path / "m.mlpackage",
        inputs=[
            ct.TensorType(name="x", shape=(2,)),
            ct.TensorType(name="y", shape=(2,), default_value=np.full(2, 3, np.float32)),
        ],
    )
    model = softcoreml.load(path)
    assert model.predict({"x": TWO})["out"].tolist() == (TWO + 3).tolist()
    assert model.predict({"x": TWO, "y": TWO})["out"].tolist() == (TWO * 2).tolist()
    with pytest.raises(InputError, match="input 'x' is missing"):
        model.predict({"y": TWO})
