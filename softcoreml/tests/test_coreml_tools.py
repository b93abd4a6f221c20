"""coremltools' own API on this machine: predictions, states, compiled models, compute plans."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coreml_models import (
    FULL,
    HALF,
    RNG,
    WEIGHT,
    built,
    counter,
    ct,
    dense,
    flexible,
    mb,
    two_functions,
    written,
)

import softcoreml

softcoreml.install(coremltools=True)

X = RNG.standard_normal((3, 12)).astype(np.float32)
EXPECTED = np.maximum(X @ WEIGHT.T, 0)


def close(actual: Any, expected: Any = EXPECTED, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_predict(tmp_path: Path) -> None:
    model = ct.models.MLModel(str(dense(tmp_path / "m.mlpackage")))
    found = model.predict({"x": X})
    assert list(found) == ["out"]
    close(found["out"])
    close(model.predict({"x": X.tolist()})["out"])
    several = model.predict([{"x": X}, {"x": -X}])
    close(several[0]["out"])
    close(several[1]["out"], np.maximum(-X @ WEIGHT.T, 0))


def test_a_model_predicts_right_after_its_conversion() -> None:
    def main(x: Any) -> Any:
        return mb.relu(x=mb.linear(x=x, weight=WEIGHT), name="out")

    model = ct.convert(
        built(main, (3, 12)),
        convert_to="mlprogram",
        compute_precision=FULL,
        minimum_deployment_target=ct.target.iOS18,
    )
    close(model.predict({"x": X})["out"])
    assert model.get_spec().specificationVersion == 9


@pytest.mark.parametrize("units", list(ct.ComputeUnit))
def test_compute_units_are_accepted(tmp_path: Path, units: Any) -> None:
    path = str(dense(tmp_path / "m.mlpackage", HALF))
    close(ct.models.MLModel(path, compute_units=units).predict({"x": X})["out"], tolerance=5e-3)


def test_float16_comes_out_as_float32_as_on_a_mac(tmp_path: Path) -> None:
    model = ct.models.MLModel(str(counter(tmp_path / "m.mlpackage")))
    state = model.make_state()
    x = np.full((2, 32), 0.5, np.float16)
    found = model.predict({"x": x}, state)["new"]
    assert found.dtype == np.float32
    assert found.max() == 0.5


def test_states(tmp_path: Path) -> None:
    model = ct.models.MLModel(str(counter(tmp_path / "m.mlpackage")))
    state, other = model.make_state(), model.make_state()
    x = np.ones((2, 32), np.float32)
    for step in (1, 2, 3):
        assert model.predict({"x": x}, state)["new"].max() == step
    assert state.read_state("total").max() == 3
    state.write_state("total", np.full((2, 32), 7, np.float32))
    assert model.predict({"x": x}, state)["old"].min() == 7
    assert other.read_state("total").max() == 0
    with pytest.raises(RuntimeError, match="'none' is not a state"):
        state.read_state("none")
    with pytest.raises(RuntimeError, match="does not fit"):
        state.write_state("total", np.zeros((3, 3)))
    with pytest.raises(RuntimeError, match="state 'total' is missing"):
        model.predict({"x": x})


def test_compiled_models(tmp_path: Path) -> None:
    path = dense(tmp_path / "m.mlpackage")
    folder = ct.utils.compile_model(str(path), str(tmp_path / "m.mlmodelc"))
    assert Path(folder) == tmp_path / "m.mlmodelc"
    close(ct.models.CompiledMLModel(folder).predict({"x": X})["out"])
    loaded = ct.models.MLModel(str(path))
    compiled = loaded.get_compiled_model_path()
    assert Path(compiled, "model.mil").exists()
    close(ct.models.CompiledMLModel(compiled).predict({"x": X})["out"])
    del loaded
    assert not Path(compiled).exists()


def test_assets_in_memory_and_from_a_path(tmp_path: Path) -> None:
    path = dense(tmp_path / "m.mlpackage")
    inside = path / "Data" / "com.apple.CoreML"
    kinds = ct.models.model.MLModelAsset
    memory = kinds.from_memory(
        (inside / "model.mlmodel").read_bytes(),
        {"weights/weight.bin": (inside / "weights" / "weight.bin").read_bytes()},
    )
    close(ct.models.CompiledMLModel.from_asset(memory).predict({"x": X})["out"])
    folder = ct.utils.compile_model(str(path), str(tmp_path / "m.mlmodelc"))
    asset = kinds.from_path(folder)
    close(ct.models.CompiledMLModel.from_asset(asset).predict({"x": X})["out"])


def test_functions(tmp_path: Path) -> None:
    path = str(two_functions(tmp_path / "two.mlpackage"))
    x = np.ones((4, 40), np.float32)
    plus = ct.models.MLModel(path).predict({"x": x})["out"]
    times = ct.models.MLModel(path, function_name="times").predict({"x": x})["out"]
    close(plus, times + 1)


@pytest.mark.parametrize(
    "shapes",
    [
        lambda: ct.EnumeratedShapes(shapes=[(1, 4), (3, 4)], default=(1, 4)),
        lambda: ct.Shape((ct.RangeDim(1, 5), 4)),
    ],
)
def test_flexible_shapes(tmp_path: Path, shapes: Any) -> None:
    model = ct.models.MLModel(str(flexible(tmp_path / "m.mlpackage", shapes())))
    for rows in (1, 3):
        x = RNG.standard_normal((rows, 4)).astype(np.float32)
        close(model.predict({"x": x})["out"], 2 * x + 1)
    with pytest.raises(RuntimeError, match="input 'x'"):
        model.predict({"x": np.zeros((9, 4), np.float32)})


def test_bad_input_is_an_error_that_names_it(tmp_path: Path) -> None:
    model = ct.models.MLModel(str(dense(tmp_path / "m.mlpackage")))
    with pytest.raises(RuntimeError, match=r"input 'x': shape \(3, 11\)"):
        model.predict({"x": X[:, 1:]})
    with pytest.raises(RuntimeError, match="input 'x' is missing"):
        model.predict({})


def test_an_operation_that_is_missing_is_named_when_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from softcoreml.operations import registry

    path = dense(tmp_path / "m.mlpackage")
    monkeypatch.delitem(registry._DEFINITIONS, "relu")
    with pytest.warns(RuntimeWarning, match="softcoreml does not have: relu"):
        model = ct.models.MLModel(str(path))
    with pytest.raises(RuntimeError, match="does not have: relu"):
        model.predict({"x": X})


def test_compute_plans(tmp_path: Path) -> None:
    def main(x: Any) -> Any:
        y = mb.linear(x=x, weight=WEIGHT)
        return mb.cumsum(x=mb.relu(x=y), axis=1, name="out")

    path = written(built(main, (3, 12)), tmp_path / "m.mlpackage", precision=HALF)
    folder = ct.utils.compile_model(str(path), str(tmp_path / "m.mlmodelc"))
    kinds = ct.models.compute_device
    plan = ct.models.compute_plan.MLComputePlan.load_from_path(folder)
    operations = plan.model_structure.program.functions["main"].block.operations
    chosen, costs = {}, []
    for one in operations:
        usage = plan.get_compute_device_usage_for_mlprogram_operation(one)
        assert (usage is None) == (one.operator_name == "const")
        if usage is not None:
            chosen[one.operator_name] = usage.preferred_compute_device
            costs.append(plan.get_estimated_cost_for_mlprogram_operation(one).weight)
    assert isinstance(chosen["ios18.linear"], kinds.MLNeuralEngineComputeDevice)
    assert isinstance(chosen["ios18.relu"], kinds.MLNeuralEngineComputeDevice)
    assert isinstance(chosen["ios18.cumsum"], kinds.MLCPUComputeDevice)
    assert sum(costs) == pytest.approx(1)
    on_cpu = ct.models.compute_plan.MLComputePlan.load_from_path(folder, ct.ComputeUnit.CPU_ONLY)
    for one in on_cpu.model_structure.program.functions["main"].block.operations:
        usage = on_cpu.get_compute_device_usage_for_mlprogram_operation(one)
        assert usage is None or isinstance(usage.preferred_compute_device, kinds.MLCPUComputeDevice)
    structure = ct.models.compute_plan.MLModelStructure.load_from_path(folder)
    names = [one.operator_name for one in structure.program.functions["main"].block.operations]
    assert names == [one.operator_name for one in operations]


def test_devices() -> None:
    kinds = ct.models.compute_device
    found = kinds.MLComputeDevice.get_all_compute_devices()
    assert [type(one) for one in found] == [
        kinds.MLCPUComputeDevice,
        kinds.MLGPUComputeDevice,
        kinds.MLNeuralEngineComputeDevice,
    ]
    assert found[2].total_core_count == 16
    assert len(ct.models.MLModel.get_available_compute_devices()) == 3


def test_durations_are_measured(tmp_path: Path) -> None:
    model = ct.models.MLModel(str(dense(tmp_path / "m.mlpackage")))
    assert model.load_duration_in_nano_seconds > 0
    model.predict({"x": X})
    assert model.last_predict_duration_in_nano_seconds > 0


def test_optimization_hints_are_accepted(tmp_path: Path) -> None:
    hints = {
        "reshapeFrequency": ct.ReshapeFrequency.Infrequent,
        "specializationStrategy": ct.SpecializationStrategy.FastPrediction,
        "allowLowPrecisionAccumulationOnGPU": True,
    }
    path = str(dense(tmp_path / "m.mlpackage"))
    close(ct.models.MLModel(path, optimization_hints=hints).predict({"x": X})["out"])


class Picture:
    """What coremltools' native module uses of a picture of PIL, for where PIL is not installed."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.mode, self._pixels = "RGB", pixels

    def tobytes(self) -> bytes:
        return self._pixels.tobytes()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._pixels.astype(dtype or np.uint8)


def test_images(tmp_path: Path) -> None:
    try:
        picture = importlib.import_module("PIL.Image").fromarray
    except ImportError:
        picture = Picture

    def main(x: Any) -> Any:
        return mb.reduce_sum(x=x, axes=[2, 3], keep_dims=False, name="out")

    path = written(
        built(main, (1, 3, 4, 5)),
        tmp_path / "m.mlpackage",
        inputs=[ct.ImageType(name="x", shape=(1, 3, 4, 5), scale=0.5, color_layout="RGB")],
    )
    model = ct.models.MLModel(str(path))
    pixels = RNG.integers(0, 256, (4, 5, 3)).astype(np.uint8)
    found = model.predict({"x": picture(pixels)})["out"]
    close(found, pixels.sum((0, 1))[None] * 0.5)


def test_a_classifier(tmp_path: Path) -> None:
    def main(x: Any) -> Any:
        return mb.softmax(x=x, axis=-1, name="probabilities")

    path = written(
        built(main, (1, 3)),
        tmp_path / "m.mlpackage",
        classifier_config=ct.ClassifierConfig(["ant", "bee", "cat"]),
    )
    x = np.array([[0.5, 2, 1]], np.float32)
    found = ct.models.MLModel(str(path)).predict({"x": x})
    assert found["classLabel"] == "bee"
    (scores,) = (value for value in found.values() if isinstance(value, dict))
    expected = np.exp(x[0]) / np.exp(x[0]).sum()
    close([scores[name] for name in ("ant", "bee", "cat")], expected)
