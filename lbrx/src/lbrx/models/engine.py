"""Runs a model: prompts in chunks, then a token of each text at a time, by a replayed step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from lbrx import dtype as dt
from lbrx.errors import LbrxError
from lbrx.interrupt import UNINTERRUPTED
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import CacheType, ForwardStep, KVCache
from lbrx.models.memory_plan import CHUNK, MemoryPlan
from lbrx.tensor.compilation import compile
from lbrx.tensor.core import Tensor
from lbrx.tensor.creation import tensor
from lbrx.tensor.evaluation import start

BLOCK = 256  # tokens: capacities are multiples of it
FEW = 16  # tokens that are read quicker one by one than by a graph made for them
LEAST = 256  # tokens of room, so that short texts share one trace


class Next(NamedTuple):
    """After a pass: one row for each text."""

    logits: Tensor
    """(batch, vocabulary)"""
    best: Tensor
    """(batch, 1): the most likely token"""
    positions: Tensor
    """(batch, 1): where the next token stands"""


class Engine:
    """A model with its cache. `remembered` is what the cache holds, if it is of a single text.

    There is one cache: who reads a text takes it from the text before. `turn` counts that, and
    whoever holds `lock` finds the cache as it was.
    """

    def __init__(self, model: Decoder, cache_type: CacheType, memory: MemoryPlan) -> None:
        self.model = model
        self.cache_type = cache_type
        self.memory = memory
        self.context = memory.tokens
        self.remembered: list[int] = []
        self.cache: KVCache | None = None
        self.lock = threading.RLock()
        self.turn = 0
        self._decode: Callable[[Tensor, Tensor], Next] | None = None

    def reserve(self, batch: int, tokens: int) -> KVCache:
        """Room for so many tokens of each text. A cache that is large enough serves again."""
        if tokens > self.context:
            raise LbrxError(
                f"{tokens:,} tokens do not fit the context of {self.context:,}: shorten the "
                "prompt, or load the model with a larger context"
            )
        self.turn += 1
        old, kept = self.cache, self.remembered
        if old is not None and old.batch == batch and old.capacity >= tokens:
            return old
        smaller = old if old is not None and batch == old.batch == 1 else None
        # A new one means a new trace: a text that grows and grows makes few of them.
        wanted = max(tokens, LEAST if smaller is None else 2 * smaller.capacity)
        capacity = min(-(-wanted // BLOCK) * BLOCK, max(self.context, LEAST))
        self.memory.check_cache(batch, capacity)
        device = self.model.device
        new = KVCache(self.model.config, batch, capacity, self.cache_type, device)
        if smaller is None:
            kept = []
        else:
            new.copy_from(smaller, len(kept))
        # In this order, so that an interrupt leaves nothing that is wrong.
        self.remembered = []
        self.cache, self._decode = new, self._decoder(new)
        self.remembered = kept
        return new

    def _decoder(self, cache: KVCache) -> Callable[[Tensor, Tensor], Next]:
        """The step for one more token of each text. Its shapes are always the same, so on a
        device it is traced once and then replayed."""

        def step(tokens: Tensor, positions: Tensor) -> Next:
            # Texts that have ended stay within the cache while others of their batch go on. These
            # are no inputs or results, which a replay would bind anew to each layer's kernels.
            places = positions.minimum(cache.capacity - 1)
            place = ForwardStep(cache, places, (places + 1).reshape(-1))
            return self._next(self.model.logits(tokens, place), positions + 1, place)

        return step if cache.device == "cpu" else compile(step)

    def _next(self, logits: Tensor, positions: Tensor, step: ForwardStep) -> Next:
        step.commit()
        return Next(logits, logits.argmax(axis=-1, keepdims=True), positions)

    def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> Next:
        """Take in the prompts, with room for more tokens."""
        longest = max(map(len, prompts))
        cache = self.reserve(len(prompts), min(longest + room, self.context))
        known = self.known(prompts)
        # Until all is read, an interrupt leaves what is certain.
        self.remembered = self.remembered[:known]
        if len(prompts) == 1 and longest - known <= FEW:
            state = self._step_by_step(prompts[0], known)
        else:
            state = self._in_chunks(cache, prompts, known)
        self.remembered = list(prompts[0]) if len(prompts) == 1 else []
        return state

    def _in_chunks(self, cache: KVCache, prompts: Sequence[Sequence[int]], known: int) -> Next:
        """Shorter prompts are filled up in front: so all end together."""
        longest = max(map(len, prompts))
        tokens = np.zeros((len(prompts), longest), np.int32)
        lengths = np.array([[len(prompt)] for prompt in prompts], np.int32)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[longest - len(prompt) :] = prompt
        size = max(CHUNK // len(prompts), FEW)  # as many tokens, and as much memory, in any batch
        for first in range(known, longest, size):
            end = min(first + size, longest)
            places = np.arange(first, end, dtype=np.int32) - (longest - lengths)
            valid = np.maximum(places[:, -1] + 1, 0)
            step = ForwardStep(cache, self._tensor(places), self._tensor(valid))
            piece = self._tensor(tokens[:, first:end])
            if end == longest:
                break
            self.model.hidden(piece, step)
            start(step.written)
            step.commit()
        state = self._next(self.model.logits(piece, step), self._tensor(lengths), step)
        # The cache is filled even if nobody looks at the logits.
        start(state)
        self._trim()
        return state

    def _trim(self) -> None:
        """The pieces that a prompt was computed in are larger than all that a token needs."""
        if self.model.device == "metal":
            # An interrupt in a destructor would be shown, and lost.
            with UNINTERRUPTED:
                import_module("lbrx.metal").context().trim()

    def _step_by_step(self, prompt: Sequence[int], known: int) -> Next:
        """The rest of a prompt through the step for one token, which is traced anyway."""
        state = None
        for place in range(known, len(prompt)):
            token = tensor([[prompt[place]]], dtype=dt.int64, device=self.model.device)
            state = self.decode(token, self._tensor([[place]]))
        assert state is not None
        return state

    def known(self, prompts: Sequence[Sequence[int]]) -> int:
        """How many tokens the cache has already; the last is always computed, for its logits."""
        if len(prompts) > 1:
            return 0
        same = 0
        for old, new in zip(self.remembered, prompts[0][:-1], strict=False):
            if old != new:
                break
            same += 1
        return same

    def decode(self, tokens: Tensor, positions: Tensor) -> Next:
        """One more token of each text."""
        assert self._decode is not None
        return self._decode(tokens, positions)

    def all_logits(self, tokens: Sequence[int], first: int = 0) -> Tensor:
        """After every token from one on, (tokens, vocabulary); those before are in the cache."""
        cache = self.reserve(1, first + len(tokens))
        self.remembered = self.remembered[:first]
        places = np.arange(first, first + len(tokens), dtype=np.int32)
        length = np.array([first + len(tokens)], np.int32)
        step = ForwardStep(cache, self._tensor(places[None]), self._tensor(length))
        logits = self.model.logits(self._tensor(np.array([tokens])), step, every=True)
        start(logits)
        step.commit()
        self.remembered += tokens
        return logits[0]

    def _tensor(self, values: Any) -> Tensor:
        return tensor(np.ascontiguousarray(values), dtype=dt.int32, device=self.model.device)
