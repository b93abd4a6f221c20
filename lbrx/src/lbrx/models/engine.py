"""Runs a network with its KV cache: prompts in chunks, then one token per text at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.errors import LbrxError
from lbrx.interrupt import UNINTERRUPTED
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import CacheType, ForwardStep, KVCache
from lbrx.models.memory_plan import CHUNK, MemoryPlan
from lbrx.tensors.compilation import compile
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor
from lbrx.tensors.evaluation import Event, start

CAPACITY_STEP = 256  # tokens: cache capacities are multiples of it
MIN_CAPACITY = 256  # tokens, so that short texts share one recorded step
SHORT_PROMPT = 16  # tokens: up to here, the recorded step is faster than a graph for the prompt


class Prediction(NamedTuple):
    """The result of a forward step: one row per text."""

    logits: Tensor
    """(batch, vocabulary), float32."""
    best: Tensor
    """(batch, 1): the most likely next token."""
    positions: Tensor
    """(batch, 1): the position of the next token."""


class PromptReader(Protocol):
    """Another unit that computes the keys and values of a prompt's tokens."""

    def read(self, tokens: Sequence[int], cache: KVCache, first: int) -> bool:
        """Write the keys and values of the tokens from `first` on into the cache, or return False
        to have the engine compute them."""
        ...


Progress = Callable[[int, int], None]
"""A function that is called with how many tokens of a text are read, and how many it has."""


class Engine:
    """A network with one KV cache, which the texts that are generated share.

    `cached_tokens` are the tokens in the cache, if it belongs to a single text. Each `reserve`
    gives the cache to another text and increments `reservation`: a caller whose number differs
    has lost its contents. Hold `lock` to keep the cache over several calls.
    """

    def __init__(self, network: Decoder, cache_type: CacheType, memory: MemoryPlan) -> None:
        self.network = network
        self.cache_type = cache_type
        self.memory = memory
        self.context = memory.tokens
        self.cached_tokens: list[int] = []
        self.advanced = 0
        """Tokens that the states of recurrent layers have seen, since the text began."""
        self.cache: KVCache | None = None
        self.lock = threading.RLock()
        self.reservation = 0
        self.prompt_reader: PromptReader | None = None
        self.progress: Progress | None = None
        self._decode: Callable[[Tensor, Tensor], Prediction] | None = None

    def reserve(self, batch: int, tokens: int) -> KVCache:
        """A cache with room for `tokens` tokens of each text; a large enough one is kept.

        Raises LbrxError if that is more than the context, or a batch does not fit the memory.
        """
        if tokens > self.context:
            raise LbrxError(
                f"{tokens:,} tokens do not fit the context of {self.context:,}: shorten the "
                "prompt, or open the model with a larger context"
            )
        self.reservation += 1
        old, kept = self.cache, self.cached_tokens
        if old is not None and old.batch == batch and old.capacity >= tokens:
            return old
        smaller = old if old is not None and batch == old.batch == 1 else None
        # Each capacity needs its own recorded step, so a growing text doubles the capacity.
        wanted = max(tokens, MIN_CAPACITY if smaller is None else 2 * smaller.capacity)
        steps = -(-wanted // CAPACITY_STEP)
        capacity = min(steps * CAPACITY_STEP, max(self.context, MIN_CAPACITY))
        self.memory.check_cache(batch, capacity)
        device = self.network.device
        new = KVCache(self.network.config, batch, capacity, self.cache_type, device)
        if smaller is None:
            kept = []
        else:
            new.copy_from(smaller, len(kept))
        # In this order, so that after an interrupt `cached_tokens` is true of `cache`.
        self.cached_tokens = []
        step = self.decode_step(new)
        # On a Metal device it is recorded once and each token replays the recorded command list.
        self.cache, self._decode = new, step if new.device == "cpu" else compile(step)
        self.cached_tokens = kept
        return new

    def decode_step(self, cache: KVCache) -> Callable[[Tensor, Tensor], Prediction]:
        """The step for one more token of each text, or for as many as a chunk of a prompt has."""

        def step(tokens: Tensor, positions: Tensor) -> Prediction:
            # Texts that have ended stay within the cache while others of their batch continue.
            # Computed here, these are intermediates: a replay would have to bind an input or a
            # result to each layer's kernels again.
            within = positions.minimum(cache.capacity - 1)
            last = within if tokens.shape[1] == 1 else within[:, -1].maximum(-1)
            forward = ForwardStep(cache, within, (last + 1).reshape(-1))
            return self.predict(self.network.logits(tokens, forward), positions[:, -1:] + 1)

        return step

    def verify_step(self, cache: KVCache) -> Callable[[Tensor, Tensor], Tensor]:
        """The step for several tokens of each text that gives the logits after each of them:
        (batch, tokens) to (batch, tokens, vocabulary). Fewer tokens of a text come last."""

        def step(tokens: Tensor, positions: Tensor) -> Tensor:
            within = positions.minimum(cache.capacity - 1)
            last = within[:, -1].maximum(-1)
            forward = ForwardStep(cache, within, (last + 1).reshape(-1))
            return self.network.logits(tokens, forward, every=True)

        return step

    def predict(self, logits: Tensor, positions: Tensor) -> Prediction:
        """What logits say of the next token, which is at these positions."""
        return Prediction(logits, logits.argmax(axis=-1, keepdims=True), positions)

    def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> Prediction:
        """Run the prompts through the network, with room for `room` more tokens of each. Tokens
        that are in the cache are not computed again."""
        longest = max(map(len, prompts))
        cache = self.reserve(len(prompts), min(longest + room, self.context))
        known = self.cached_prefix(prompts)
        # An interrupt may leave anything beyond these.
        self.cached_tokens = self.cached_tokens[:known]
        self.advanced = known
        self.report(0, longest - known)
        if self.prompt_reader is not None and len(prompts) == 1:
            before_last = prompts[0][:-1]
            if self.prompt_reader.read(before_last, cache, known):
                self.cached_tokens, known = list(before_last), len(before_last)
        if len(prompts) == 1 and longest - known <= SHORT_PROMPT:
            prediction = self._prefill_by_token(prompts[0], known)
        else:
            prediction = self._prefill_in_chunks(cache, prompts, known)
        self.cached_tokens = list(prompts[0]) if len(prompts) == 1 else []
        return prediction

    def _prefill_in_chunks(
        self, cache: KVCache, prompts: Sequence[Sequence[int]], known: int
    ) -> Prediction:
        """Shorter prompts of a batch are padded at the front, so that all end together."""
        longest = max(map(len, prompts))
        tokens = np.zeros((len(prompts), longest), np.int32)
        lengths = np.array([[len(prompt)] for prompt in prompts], np.int32)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[longest - len(prompt) :] = prompt
        # The same number of tokens, and thus memory, for any batch.
        size = max(CHUNK // len(prompts), SHORT_PROMPT)
        waiting = _WaitingReports(self, longest - known)
        for first in range(known, longest, size):
            end = min(first + size, longest)
            places = np.arange(first, end, dtype=np.int32) - (longest - lengths)
            piece = self._tensor(tokens[:, first:end])
            if end - first == size and self._replays_chunks():
                prediction = self.decode(piece, self._tensor(places))
                waiting.add(end - known)
                continue
            valid = np.maximum(places[:, -1] + 1, 0)
            step = ForwardStep(cache, self._tensor(places), self._tensor(valid))
            self.advanced = end
            if end == longest:
                prediction = self.predict(self.network.logits(piece, step), self._tensor(lengths))
            else:
                self.network.hidden_states(piece, step)
                start(step.written)
                waiting.add(end - known)
        # Started here, so that the cache is filled even if the logits are never read.
        start(prediction)
        waiting.add(longest - known)
        self._free_scratch()
        return prediction

    def report(self, done: int, total: int) -> None:
        """Tell `progress`, if it is set, how much of a text is read."""
        if self.progress is not None:
            self.progress(done, total)

    def _replays_chunks(self) -> bool:
        """Whether whole chunks of prompts are recorded once and replayed: a GPU computes one in
        less time than the host needs to encode it."""
        if self.network.device != "metal":
            return False
        from lbrx.metal import context

        return context().info.simd_hardware

    def _free_scratch(self) -> None:
        """Return a prompt's intermediate buffers to the system: a single token needs far less."""
        if self.network.device == "metal":
            from lbrx.metal import context

            # Python prints and drops a KeyboardInterrupt that is raised in a destructor.
            with UNINTERRUPTED:
                context().trim()

    def _prefill_by_token(self, prompt: Sequence[int], known: int) -> Prediction:
        """Run the rest of a prompt through the recorded step, which generation needs anyway."""
        prediction = None
        for place in range(known, len(prompt)):
            token = tensor([[prompt[place]]], dtype=dt.int64, device=self.network.device)
            prediction = self.decode(token, self._tensor([[place]]))
        assert prediction is not None
        return prediction

    def cached_prefix(self, prompts: Sequence[Sequence[int]]) -> int:
        """How many of the first tokens are in the cache. The last token never counts, as its
        logits are needed."""
        if len(prompts) > 1:
            return 0
        if self.network.config.states and not self._continues(prompts[0]):
            return 0
        same = 0
        for old, new in zip(self.cached_tokens, prompts[0][:-1], strict=False):
            if old != new:
                break
            same += 1
        return same

    def _continues(self, prompt: Sequence[int]) -> bool:
        """Whether states are those after the tokens in the cache, and a prompt goes on from there:
        states know no earlier token."""
        known = len(self.cached_tokens)
        return self.advanced == known and list(prompt[:known]) == self.cached_tokens != prompt

    def decode(self, tokens: Tensor, positions: Tensor) -> Prediction:
        """Run one more token of each text: (batch, 1) tokens at (batch, 1) positions; or more."""
        self.advanced += tokens.shape[1]
        assert self._decode is not None
        return self._decode(tokens, positions)

    def all_logits(self, tokens: Sequence[int], first: int = 0) -> Tensor:
        """The logits after each of these tokens, (tokens, vocabulary). `first` tokens before them
        are in the cache."""
        ids, step = self._reading(tokens, first)
        logits = self.network.logits(ids, step, every=True)
        start(logits)
        self.cached_tokens += tokens
        return logits[0]

    def final_states(self, tokens: Sequence[int], first: int = 0) -> Tensor:
        """The hidden states after the last norm at each of these tokens, (tokens, hidden) in
        float32. `first` tokens before them are in the cache."""
        ids, step = self._reading(tokens, first)
        normed, _ = self.network.norm.of_sum(*self.network.hidden_states(ids, step))
        states = normed.astype(dt.float32)
        start(states)
        self.cached_tokens += tokens
        return states[0]

    def _reading(self, tokens: Sequence[int], first: int) -> tuple[Tensor, ForwardStep]:
        """What the network needs to read tokens after `first` that are in the cache."""
        cache = self.reserve(1, first + len(tokens))
        if self.network.config.states and first not in (0, self.advanced):
            raise LbrxError(
                f"the states of recurrent layers are those after {self.advanced:,} tokens, not "
                f"{first:,}: begin with the first token"
            )
        self.cached_tokens = self.cached_tokens[:first]
        self.advanced = first + len(tokens)
        places = np.arange(first, first + len(tokens), dtype=np.int32)
        length = np.array([first + len(tokens)], np.int32)
        step = ForwardStep(cache, self._tensor(places[None]), self._tensor(length))
        return self._tensor(np.array([tokens])), step

    def layer_inputs(self, tokens: Sequence[int], layers: int | None = None) -> list[Tensor]:
        """The hidden states that enter each of the first `layers` layers, by default all, when the
        network reads a text: (tokens, hidden) in float32. The first are the embeddings."""
        cache = self.reserve(1, len(tokens))
        self.cached_tokens, self.advanced = [], len(tokens)
        places = np.arange(len(tokens), dtype=np.int32)
        length = np.array([len(tokens)], np.int32)
        step = ForwardStep(cache, self._tensor(places[None]), self._tensor(length))
        x, added = self.network.embed_at(self._tensor(np.array([tokens])), step), None
        states: list[Tensor] = []
        for layer in self.network.layers[:layers]:
            states.append((x if added is None else x + added)[0].astype(dt.float32))
            x, added = layer(x, added, step)
        return states

    def _tensor(self, values: Any) -> Tensor:
        return tensor(np.ascontiguousarray(values), dtype=dt.int32, device=self.network.device)


class _WaitingReports:
    """Reports each chunk of a prompt once the device has read it, if the engine has a `progress`.

    It waits for a chunk after the next one was started, so that the device always has work."""

    def __init__(self, engine: Engine, total: int) -> None:
        self._engine = engine
        self._total = total
        self._last: tuple[Event, int] | None = None

    def add(self, done: int) -> None:
        """The chunk that ends after so many tokens has been started."""
        if self._engine.progress is None:
            return
        event = Event(self._engine.network.device)
        event.record()
        if self._last is not None:
            before, read = self._last
            before.wait()
            self._engine.report(read, self._total)
        self._last = event, done
