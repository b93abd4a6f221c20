"""The modelled choice of units: one case for each rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softcoreml import mil, placement

HALF = mil.TensorType("fp16", (4, 64))


def operation(kind: str, out: mil.ValueType = HALF, **inputs: Any) -> mil.Operation:
    given = {name: one if isinstance(one, tuple) else (one,) for name, one in inputs.items()}
    return mil.Operation(kind, given, (mil.NamedType("y", out),))


def half(*dims: int | None) -> mil.TensorType:
    return mil.TensorType("fp16", dims)


def placed(
    last: mil.Operation,
    *before: mil.Operation,
    allowed: frozenset[str] = frozenset(placement.UNITS),
    **inputs: mil.ValueType,
) -> placement.Placement:
    block = mil.Block((), ("y",), (*before, last))
    parameters = tuple(mil.NamedType(name, kind) for name, kind in inputs.items())
    function = mil.Function(parameters, "CoreML8", {"CoreML8": block})
    return placement.place(function, allowed)[last]


def constant(name: str, kind: mil.TensorType, data: Any = None) -> mil.Operation:
    value = mil.Value(kind, mil.Blob("w", 64) if data is None else np.array(data))
    return mil.Operation("const", {}, (mil.NamedType(name, kind),), (), {"val": value})


REFUSED = [
    (operation("relu", x="x"), {"x": mil.TensorType("fp32", (4, 64))}, "fp32 values"),
    (operation("cast", mil.TensorType("int32", (4,)), x="x"), {"x": half(4)}, "int32 values"),
    (operation("relu", half(None, 4), x="x"), {"x": half(None, 4)}, "not known before it runs"),
    (operation("relu", half(*[1] * 6), x="x"), {"x": half(*[1] * 6)}, "rank 6"),
    (operation("relu", half(1, 65537), x="x"), {"x": half(1, 65537)}, "dimension of 65537"),
    (operation("matmul", x="x", y="z"), {"x": half(4, 32769), "z": half(32769, 64)}, "contraction"),
    (
        operation("read_state", half(4, 33), input="s"),
        {"s": mil.StateType(half(4, 33))},
        "width 33",
    ),
    (operation("cumsum", x="x"), {"x": HALF}, "does not have it"),
    (operation("lstm", x="x"), {"x": HALF}, "recurrent"),
    (operation("while_loop", loop_vars="x"), {"x": HALF}, "control flow"),
    (
        operation("gather", x="x", indices="i"),
        {"x": HALF, "i": mil.TensorType("int32", (4,))},
        "int32",
    ),
]


@pytest.mark.parametrize(
    ("one", "inputs", "says"), REFUSED, ids=lambda one: getattr(one, "type", None)
)
def test_what_the_neural_engine_refuses(
    one: mil.Operation, inputs: dict[str, mil.ValueType], says: str
) -> None:
    found = placed(one, **inputs)
    assert says in found.reason
    assert "neural-engine" not in found.supported
    assert found.preferred in ("cpu", "gpu")


@pytest.mark.parametrize(
    ("kernel", "fits"),
    [
        ((1, 15), True),
        ((1, 16), False),
        ((31, 1), True),
        ((32, 1), False),
        ((16, 16), True),
        ((17, 2), False),
    ],
)
def test_convolution_kernels(kernel: tuple[int, int], fits: bool) -> None:
    weight = constant("w", half(8, 8, *kernel))
    found = placed(
        operation("conv", half(1, 8, 9, 9), x="x", weight="w"), weight, x=half(1, 8, 40, 40)
    )
    assert (found.preferred == "neural-engine") == fits


@pytest.mark.parametrize(("size", "fits"), [(8, True), (9, False)])
def test_pools(size: int, fits: bool) -> None:
    sizes = constant("k", mil.TensorType("int32", (2,)), [size, 2])
    found = placed(
        operation("max_pool", half(1, 8, 9, 9), x="x", kernel_sizes="k"),
        sizes,
        x=half(1, 8, 40, 40),
    )
    assert (found.preferred == "neural-engine") == fits


@pytest.mark.parametrize(("scale", "fits"), [((8, 1), True), ((1, 1), True), ((8, 4), False)])
def test_scales_of_weights(scale: tuple[int, int], fits: bool) -> None:
    data = constant("d", mil.TensorType("int4", (8, 64)))
    scales = constant("s", half(*scale))
    inputs = {"data": ("d",), "scale": ("s",)}
    weight = mil.Operation(
        "constexpr_blockwise_shift_scale", inputs, (mil.NamedType("w", half(8, 64)),)
    )
    found = placed(operation("linear", half(4, 8), x="x", weight="w"), data, scales, weight, x=HALF)
    assert (found.preferred == "neural-engine") == fits
    assert fits or "one for each output channel" in found.reason


def test_indices_that_are_constant_do_not_matter() -> None:
    indices = constant("i", mil.TensorType("int32", (4,)), [0, 1, 2, 3])
    found = placed(operation("gather", x="x", indices="i"), indices, x=HALF)
    assert found.preferred == "neural-engine"


def test_allowed_units() -> None:
    one = operation("relu", x="x")
    everything = {
        frozenset({"cpu"}): "cpu",
        frozenset({"cpu", "gpu"}): "gpu",
        frozenset({"cpu", "neural-engine"}): "neural-engine",
        frozenset(placement.UNITS): "neural-engine",
    }
    for allowed, expected in everything.items():
        found = placed(one, allowed=allowed, x=HALF)
        assert found.preferred == expected
        assert set(found.supported) == allowed
        assert bool(found.reason) == ("neural-engine" not in allowed)


def test_what_the_engine_cannot_do_is_the_cpus_beside_it_and_the_gpus_without_it() -> None:
    last = mil.Operation("cumsum", {"x": ("a",)}, (mil.NamedType("y", HALF),))
    before = mil.Operation("relu", {"x": ("x",)}, (mil.NamedType("a", HALF),))
    assert placed(last, before, x=HALF).preferred == "cpu"
    assert placed(operation("cumsum", x="x"), x=HALF).preferred == "gpu"


def test_costs_are_products_for_contractions_and_elements_otherwise() -> None:
    block = mil.Block((), ("y",), ())
    parameters = (mil.NamedType("x", HALF), mil.NamedType("w", half(8, 64)))
    names = placement.Names(mil.Function(parameters, "CoreML8", {"CoreML8": block}))
    assert placement.cost(operation("linear", half(4, 8), x="x", weight="w"), names) == 4 * 8 * 64
    assert placement.cost(operation("relu", x="x"), names) == 4 * 64
    assert placement.cost(operation("conv", half(1, 8, 3, 3), x="x", weight="w"), names) == 72 * 64
