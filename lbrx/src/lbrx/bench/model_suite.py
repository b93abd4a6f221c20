"""The `models` suite: prefill and decode of a language model over context lengths."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lbrx.bench.ceilings import limits
from lbrx.bench.checkpoints import FULL, SHORT, Sizes, write_gguf
from lbrx.bench.kernel_suite import Tools
from lbrx.bench.report import Row
from lbrx.bench.timing import Timing, interleaved, summary
from lbrx.metal import stats
from lbrx.models import LanguageModel
from lbrx.models.loading import language_model
from lbrx.scheduler.profiler import profile

SCHEME = "q8_0"
CONTEXTS = {True: (128, 512), False: (128, 512, 2048, 4096)}  # short or not
DECODED = {True: 8, False: 32}
ROUNDS = {True: 3, False: 7}
OURS, LLAMA = "lbrx", "llama.cpp"


class Speed(NamedTuple):
    """Seconds of a prompt, and of each token after it."""

    prefill: float
    decode: float


Runner = Callable[[list[int], int], Speed]


@dataclass
class ModelSuite:
    """A model of random weights in `folder`, made when it is first needed."""

    folder: Path
    tools: Tools
    short: bool
    llama: bool
    """Whether llama.cpp is compared, if it is installed."""
    _model: LanguageModel | None = None
    _before: int = 0  # bytes in use before the model was loaded
    _peak: int = 0

    @property
    def sizes(self) -> Sizes:
        return SHORT if self.short else FULL

    @property
    def contexts(self) -> tuple[int, ...]:
        return CONTEXTS[self.short]

    def measure(self, context: int) -> list[Row]:
        """Rows for reading a prompt of so many tokens, and for decoding after it."""
        tokens = [3 + i * 7 % (self.sizes.vocabulary - 3) for i in range(context)]
        count = DECODED[self.short]
        runners: dict[str, Runner] = {OURS: lambda t, n: _ours(self.model, t, n)}
        if self.llama and find_spec("llama_cpp") is not None:
            threads = self.tools.ceilings.threads
            peer = _llama(self.path, context + count + 1, threads)
            runners[LLAMA] = lambda t, n: _theirs(peer, t, n)
        timings = _alternating(runners, tokens, count, ROUNDS[self.short])
        self._note_peak(tokens, count)
        return list(self._rows(context, timings))

    @property
    def path(self) -> Path:
        path = self.folder / "model.gguf"
        return path if path.exists() else write_gguf(path, self.sizes, SCHEME)

    @property
    def model(self) -> LanguageModel:
        if self._model is None:
            self._before = stats()["bytes_in_use"]
            self._model = language_model(self.path, context=self.sizes.context)
        return self._model

    def memory(self) -> dict[str, int]:
        """Bytes that were planned for the model before it was loaded, and that its buffers took at
        most. Weights that the device reads from the mapped file take no buffer."""
        if self._model is None:
            return {}
        return {"model_planned": self._model.memory.total, "model_peak": self._peak}

    def _note_peak(self, tokens: list[int], count: int) -> None:
        with profile() as seen:
            _ours(self.model, tokens, count)
        used = max((record.memory for record in seen.records), default=0)
        self._peak = max(self._peak, used - self._before)

    def _rows(self, context: int, timings: dict[str, tuple[Timing, Timing]]) -> Iterator[Row]:
        weights = float(self.path.stat().st_size)
        operations = 2.0 * self.sizes.multiplied
        for position, name in enumerate(("prefill", "decode")):
            count = context if name == "prefill" else 1
            own = timings[OURS][position]
            ceilings = self.tools.ceilings.of(weights, operations * count, True, "float32")
            measured = interleaved({n: c.work for n, c in ceilings.items()}, self.tools.effort)
            allowed = limits(ceilings, measured)
            rivals = {n: t[position] for n, t in timings.items() if n != OURS}
            yield Row(
                suite="models",
                name=name,
                family="model",
                dtype=SCHEME,
                shape=[context],
                variant="replay" if name == "decode" else "prompt",
                seconds=own.median,
                spread=own.spread,
                rounds=own.rounds,
                share_of_ceiling=allowed.seconds(weights, operations * count) / own.median,
                nbytes=weights,
                operations=operations * count if name == "prefill" else 0.0,
                bandwidth=allowed.bandwidth,
                peak=allowed.peak,
                peers={n: t.median for n, t in rivals.items()},
                peer_spreads={n: t.spread for n, t in rivals.items()},
                peak_memory=self._peak,
            )


def _alternating(
    runners: dict[str, Runner], tokens: list[int], count: int, rounds: int
) -> dict[str, tuple[Timing, Timing]]:
    """Timings of prefill and decode; the first round is not counted."""
    taken: dict[str, list[Speed]] = {name: [] for name in runners}
    for number in range(rounds + 1):
        for name, run in runners.items():
            speed = run(tokens, count)
            if number:
                taken[name].append(speed)
    return {
        name: (summary([s.prefill for s in speeds]), summary([s.decode for s in speeds]))
        for name, speeds in taken.items()
    }


def _ours(model: LanguageModel, tokens: list[int], count: int) -> Speed:
    model.engine.cached_tokens = []
    stream = model.stream(tokens, max_tokens=count + 1, ignore_end=True)
    for _ in stream:
        pass
    timing = stream.timing
    return Speed(timing.prefill_seconds, timing.decode_seconds / max(1, timing.decoded_tokens))


def _llama(path: Path, context: int, threads: int) -> Any:
    settings = {"n_ctx": context, "n_threads": threads, "n_threads_batch": threads}
    return import_module("llama_cpp").Llama(str(path), verbose=False, **settings)


def _theirs(model: Any, tokens: list[int], count: int) -> Speed:
    """llama.cpp's evaluation calls, without its sampling loop in Python."""
    model.reset()
    began = time.perf_counter()
    model.eval(tokens)
    read = time.perf_counter()
    for token in tokens[:count]:
        model.eval([token])
    return Speed(read - began, (time.perf_counter() - read) / count)
