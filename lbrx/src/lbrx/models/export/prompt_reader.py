"""Reads prompts with an exported program and hands their keys and values to the cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays.storage import empty_aligned
from lbrx.models.decoder import Decoder
from lbrx.models.export.exporter import (
    DEFAULT_CHUNK,
    MAX_CONTEXT,
    ExportSettings,
    export_network,
    package_path,
)
from lbrx.models.export.network_parts import check_exportable, half_split
from lbrx.models.export.program_parts import LARGEST_PACKAGE, USUAL_PART, open_program
from lbrx.models.export.unit_plan import BITS, PrefillChoice, Workload, choose_prefill
from lbrx.models.kv_cache import KVCache
from lbrx.models.weights import bytes_in_memory
from lbrx.neural_engine.binding import unit_name
from lbrx.neural_engine.core_ml_model import CoreMLChain, use_state
from lbrx.neural_engine.unit_figures import Unit
from lbrx.neural_engine.weight_forms import WeightForm
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import from_numpy, tensor
from lbrx.tensors.evaluation import eval as evaluate

SMALLEST_CONTEXT, CONTEXT_STEP = 512, 4
"""Programs are exported for contexts of 512, 2,048 and 8,192 tokens: shapes are static, and a
longer context makes each chunk slower."""
SHORT_CHUNK = 64  # tokens, in the program of the smallest context: less of it is padding


@dataclass(frozen=True)
class PromptReport:
    """What the Neural Engine read of a prompt."""

    tokens: int
    chunks: int
    chunk: int
    seconds: float
    exported_seconds: float
    """Time that exporting and compiling the program took; 0 if it was in the cache."""

    def __str__(self) -> str:
        made = f" (exported in {self.exported_seconds:.1f} s)" if self.exported_seconds else ""
        chunks = "chunk" if self.chunks == 1 else "chunks"
        return (
            f"prompt: {self.tokens:,} tokens read by {unit_name()}, {self.chunks} {chunks} of "
            f"{self.chunk} in {self.seconds:.2f} s{made}"
        )


def settings_for(network: Decoder, tokens: int) -> ExportSettings | None:
    """The program for a prompt of so many tokens; None if no context is long enough."""
    limit = min(network.config.context, MAX_CONTEXT)
    context = SMALLEST_CONTEXT
    while context < tokens:
        context *= CONTEXT_STEP
    chunk = min(SHORT_CHUNK if context == SMALLEST_CONTEXT else DEFAULT_CHUNK, limit)
    context = min(context, limit // chunk * chunk)
    if tokens > context:
        return None
    weights = Workload.of(network.config, 0).layer_values * BITS[WeightForm.F16] // 8
    part_bytes = USUAL_PART if weights > LARGEST_PACKAGE else 0
    return ExportSettings(context, chunk, part_bytes=part_bytes)


class NeuralEngineReader:
    """Reads prompts on the Neural Engine: all tokens but the last, whose logits are needed.

    With `automatic` the planner decides for each prompt. `reports` collects a line for each prompt:
    what was read, or why the GPU reads it.
    """

    def __init__(self, network: Decoder, automatic: bool = False) -> None:
        check_exportable(network)
        self.network = network
        self.automatic = automatic
        self.reports: list[str] = []
        self._settings: ExportSettings | None = None
        self._program: CoreMLChain | None = None
        self._states: list[Any] = []
        self._held: list[int] = []  # the tokens whose keys and values are in the states

    def read(self, tokens: Sequence[int], cache: KVCache, first: int) -> bool:
        """Write the keys and values of the tokens from `first` on into the cache. The tokens before
        it are in the cache, too. False if the GPU should read them."""
        settings = settings_for(self.network, len(tokens))
        if settings is None or len(tokens) <= first:
            said = "none to read" if len(tokens) <= first else "more than the longest program's"
            self.reports.append(f"prompt: read by gpu, not neural-engine: {len(tokens)} are {said}")
            return False
        if self.automatic:
            choice = self._choice(settings, len(tokens))
            self.reports.append(f"prompt: {choice.unit}, since {choice.reason}")
            if choice.unit is not Unit.NEURAL_ENGINE:
                return False
        exported = self._open(settings)
        began = time.perf_counter()
        chunks = self._predict(tokens, settings.chunk)
        self._hand_over(cache, first, len(tokens))
        seconds = time.perf_counter() - began
        report = PromptReport(len(tokens), chunks, settings.chunk, seconds, exported)
        self.reports.append(str(report))
        return True

    def _choice(self, settings: ExportSettings, tokens: int) -> PrefillChoice:
        network = self.network
        chip = None
        if network.device == "metal":
            from lbrx.metal import context

            chip = context().info.chip
        work = Workload.of(network.config, bytes_in_memory(network.weights.model.files))
        kept = package_path(network, settings).exists()
        return choose_prefill(work, chip, tokens, settings, kept)

    def _open(self, settings: ExportSettings) -> float:
        """Load the program of these settings, and return the time of writing it."""
        if settings == self._settings:
            return 0.0
        began = time.perf_counter()
        path: Path = package_path(self.network, settings)
        there = path.exists()
        if not there:
            export_network(self.network, path, settings, functions=("prefill",))
        self._program = open_program(path, "prefill")
        seconds = 0.0 if there else time.perf_counter() - began
        self._settings, self._states, self._held = settings, self._program.new_state(), []
        return seconds

    def _predict(self, tokens: Sequence[int], chunk: int) -> int:
        """Bring the state to these tokens; the number of chunks that were computed."""
        same = 0
        while same < min(len(tokens), len(self._held)) and tokens[same] == self._held[same]:
            same += 1
        self._held = self._held[:same]
        places = range(same // chunk * chunk, len(tokens), chunk)
        for place in places:
            ids = np.zeros((1, chunk), np.int32)
            piece = tokens[place : place + chunk]
            ids[0, : len(piece)] = piece
            assert self._program is not None
            position = np.array([place], np.int32)
            self._program.predict({"tokens": ids, "position": position}, self._states)
        self._held = list(tokens)
        return len(places)

    def _hand_over(self, cache: KVCache, first: int, end: int) -> None:
        """Write the states' rows from `first` to `end` into the cache."""
        places = tensor(
            np.arange(first, end, dtype=np.int32)[None, None],
            dtype=dt.int32,
            device=cache.device,
        )
        layer = 0
        for state in self._states:
            if state is None:
                continue
            for part, name in enumerate(("keys", "values")):
                put = partial(self._put, cache, layer, part, places, first)
                count = use_state(state, name, put)
            layer += count

    def _put(
        self, cache: KVCache, start: int, part: int, places: Tensor, first: int, held: NDArray[Any]
    ) -> int:
        """Write a state's rows into the cache's layers from `start` on; the number of layers. The
        device has read the state's memory when this returns."""
        end = first + places.shape[-1]
        rows = on_device(held, slice(first, end), cache.device)
        written: list[Tensor] = []
        for index in range(len(held)):
            given = rows[index][None]
            if part == 0 and (order := self._order(start + index)) is not None:
                given = given[..., order]
            given = given.astype(self.network.dtype)
            written.append(cache.put(start + index, part, given, places))
        evaluate(*written)
        return len(held)

    def _order(self, layer: int) -> NDArray[np.intp] | None:
        """Where our order of a key's features has them in the program's; None if it is the same."""
        size = self.network.config.head_size
        rotary = self.network.layers[layer].attention.rotary  # type: ignore[attr-defined]
        if rotary is None or not rotary.interleaved:
            return None
        return np.argsort(half_split(1, size, rotary.rope.dims))


def on_device(held: NDArray[Any], rows: slice, device: str) -> Tensor:
    """Some rows (axis 2) of a state as a tensor: over the state's own memory if the device can
    share it, else over the one copy that the host makes."""
    try:
        return from_numpy(held, device, copy=False)[:, :, rows]
    except ValueError:
        taken = held[:, :, rows]
        copied = empty_aligned(taken.shape, taken.dtype)
        copied[...] = taken
        return from_numpy(copied, device)
