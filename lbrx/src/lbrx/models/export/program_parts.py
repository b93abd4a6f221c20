"""A language model as several packages, for models whose weights are too many for one.

Core ML leaves the Neural Engine, without a word, for packages of more than about 2 GB on a Mac. A
folder therefore has one for what depends on token ids and positions, one for some layers each, and
one for the output matrix. What they give is what the next ones take, by name. The layers and the
output matrix have no integers: with masks every operation of theirs suits the Neural Engine.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import LbrxError
from lbrx.models.config import ModelConfig
from lbrx.models.export.network_parts import LayerParts, PartsReader
from lbrx.models.export.network_program import FunctionBuilder, ProgramStyle
from lbrx.neural_engine.binding import mil_builder, mil_types
from lbrx.neural_engine.core_ml_model import CoreMLChain, CoreMLModel, compiled_model
from lbrx.neural_engine.mil_package import build_function, write_package
from lbrx.neural_engine.weight_forms import ProgramWeight

LIST = "parts.json"
LARGEST_PACKAGE = 2_000_000_000
"""Bytes of weights, above which a Mac's Neural Engine does not take a package."""
USUAL_PART = 1_000_000_000
"""Bytes of weights in each part, which an iPhone takes too."""

Function = Callable[[int], Any]
"""A MIL function of so many tokens."""


@dataclass(frozen=True)
class SplitProgram:
    """Which part takes and gives what. Hidden states are numbered by the parts that give them."""

    config: ModelConfig
    context: int
    style: ProgramStyle
    windows: tuple[int, ...]
    """The different numbers of tokens that layers see; 0 for all."""

    def embedding(self, matrix: ProgramWeight, tokens: int) -> Any:
        """From token ids and a position to hidden states and what attention needs."""
        builder = FunctionBuilder(self.config, self.context, tokens, self.style)

        def body(ids: Any, position: Any) -> Any:
            x = builder.embedded(matrix, ids)
            builder.find_positions(position, self.windows)
            given = {"hidden0": x, "cosines": builder.cos, "sines": builder.sin}
            if self.style.cache == "masks":
                given["rows"] = builder.here
            given |= {mask_name(window): mask for window, mask in builder.masks.items()}
            identity = mil_builder().identity
            return tuple(identity(x=value, name=name) for name, value in given.items())

        return build_function(builder.token_inputs(), body)

    def some_layers(self, layers: list[LayerParts], number: int, tokens: int) -> Any:
        """The layers of the part of this number, from 1 on."""
        builder = FunctionBuilder(self.config, self.context, tokens, self.style)
        inputs = self._layer_inputs(builder, number - 1, sorted({each.window for each in layers}))
        names = (*inputs, "keys", "values")

        def body(*variables: Any) -> Any:
            given = dict(zip(names, variables, strict=True))
            builder.cos, builder.sin = given["cosines"], given["sines"]
            builder.place, builder.here = given.get("position"), given.get("rows")
            builder.masks = {window: given.get(mask_name(window)) for window in self.windows}
            states = given["keys"], given["values"]
            x = builder.layers(layers, given[f"hidden{number - 1}"], states)
            return mil_builder().identity(x=x, name=f"hidden{number}")

        return build_function({**inputs, **builder.states(len(layers))}, body)

    def _layer_inputs(self, builder: FunctionBuilder, number: int, windows: list[int]) -> Any:
        mb, config, count = mil_builder(), self.config, builder.tokens
        rotary = (1, 1, config.head_size, count)
        shapes: dict[str, tuple[int, ...]] = {
            f"hidden{number}": (1, config.hidden, 1, count),
            "cosines": rotary,
            "sines": rotary,
        }
        if self.style.cache == "masks":
            shapes["rows"] = (1, 1, self.context // count, 1)
        for window in windows:
            shapes[mask_name(window)] = (1, 1, builder.group * count, self.context)
        kind = mil_types().fp16
        inputs = {name: mb.placeholder(shape, dtype=kind) for name, shape in shapes.items()}
        if self.style.cache == "slices":
            inputs["position"] = builder.token_inputs()["position"]
        return inputs

    def head(self, norm: NDArray[np.float16], matrix: ProgramWeight, number: int) -> Any:
        """From the hidden states of one token to its logits."""
        builder = FunctionBuilder(self.config, self.context, 1, self.style)
        shape = (1, self.config.hidden, 1, 1)
        given = {f"hidden{number}": mil_builder().placeholder(shape, dtype=mil_types().fp16)}
        return build_function(given, lambda x: builder.result(norm, matrix, x))


def mask_name(window: int) -> str:
    """The feature that hides tokens from layers that see so many; 0 for all."""
    return f"mask{window}" if window else "mask"


def groups(layers: Iterable[LayerParts], limit: int) -> Iterator[list[LayerParts]]:
    """Successive layers whose weights fit into a part. Raises LbrxError if one does not."""
    group: list[LayerParts] = []
    held = 0
    for index, layer in enumerate(layers):
        _check_fits(f"layer {index}", layer.nbytes, limit)
        if group and held + layer.nbytes > limit:
            yield group
            group, held = [], 0
        group.append(layer)
        held += layer.nbytes
    yield group


def _check_fits(name: str, nbytes: int, limit: int) -> None:
    if nbytes > limit:
        raise LbrxError(
            f"{name} alone has {nbytes:,} bytes of weights, more than a part's {limit:,}: give "
            "larger parts, or a smaller type of weights"
        )


class PartsWriter:
    """Writes the packages of a folder, and the list of them."""

    def __init__(
        self,
        folder: Path,
        sizes: Mapping[str, int],
        features: Mapping[str, str],
        metadata: Mapping[str, str],
    ) -> None:
        self.folder = folder
        self.sizes = sizes  # tokens of each function
        self.features = features
        self.metadata = metadata
        self.list: list[dict[str, Any]] = []

    def add(self, name: str, summary: str, function: Function, sizes: Iterable[str] = ()) -> None:
        """Write a part with all functions, or those named."""
        names = [each for each in self.sizes if each in (tuple(sizes) or self.sizes)]
        if not names:
            return
        made = {each: function(self.sizes[each]) for each in names}
        path = self.folder / f"{name}.mlpackage"
        texts = {"features": self.features, "metadata": self.metadata}
        write_package(path, made, summary=summary, **texts)
        self.list.append({"package": path.name, "functions": names})

    def finish(self) -> None:
        """Write the list."""
        (self.folder / LIST).write_text(
            json.dumps({"parts": self.list, **self.metadata}, indent=1) + "\n"
        )


def write_parts(
    reader: PartsReader, program: SplitProgram, limit: int, writer: PartsWriter
) -> None:
    """Write all packages of a network, of which each layer part has at most `limit` bytes."""
    config = program.config
    head, embedding = reader.head(), reader.embedding()
    matrix = embedding if head is None else head
    if "decode" in writer.sizes:
        _check_fits("the output matrix", matrix.nbytes, limit)
    name = f"{config.model_type}, written by lbrx: "
    writer.add("embedding", f"{name}embedding", lambda count: program.embedding(embedding, count))
    layers = (reader.layer(index) for index in range(config.layers))
    first = number = 0
    for number, group in enumerate(groups(layers, limit), 1):
        last = first + len(group) - 1

        def function(count: int, group: list[LayerParts] = group, number: int = number) -> Any:
            return program.some_layers(group, number, count)

        writer.add(f"layers-{number}", f"{name}layers {first} to {last}", function)
        first = last + 1
    writer.add(
        "head",
        f"{name}norm and output matrix",
        lambda count: program.head(reader.final_norm(), matrix, number),
        ["decode"],
    )
    writer.finish()


def replace_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Write a folder beside the path, and put it there when it is complete."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        write(unfinished)
        shutil.rmtree(path, ignore_errors=True)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def packages_of(path: Path, function: str) -> list[Path]:
    """The packages that a function of an exported model is in, in the order in which they run."""
    if path.suffix == ".mlpackage":
        return [path]
    parts = json.loads((path / LIST).read_text())["parts"]
    return [path / part["package"] for part in parts if function in part["functions"]]


def open_program(path: Path, function: str) -> CoreMLChain:
    """One function of an exported model: of a package, or of a folder of parts."""
    packages = packages_of(path, function)
    return CoreMLChain([CoreMLModel(compiled_model(each), function) for each in packages])
