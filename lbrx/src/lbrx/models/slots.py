"""The slots of a batch: rows of one KV cache, each with the tokens that it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.models.engine import CAPACITY_STEP, MIN_CAPACITY, Engine, Prediction
from lbrx.models.kv_cache import ForwardStep, KVCache
from lbrx.tensors.compilation import compile
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor
from lbrx.tensors.evaluation import start
from lbrx.tensors.long_lived import write

NOWHERE = -1  # the position of rows without a text, which neither write nor see


@dataclass(frozen=True)
class Block:
    """Neighbouring slots that are decoded together: a power of two of them, so that few steps are
    recorded, from a multiple of their number on."""

    first: int
    size: int

    @classmethod
    def around(cls, slots: Sequence[int], count: int) -> Block:
        """The smallest block of `count` slots that has all of these."""
        size = 1
        while min(slots) // size != max(slots) // size:
            size *= 2
        first = min(slots) // size * size
        return cls(first, min(size, count - first))


@dataclass(frozen=True)
class Decoded:
    """A step that was started for a block of slots."""

    block: Block
    prediction: Prediction


class Slots:
    """Room for `count` texts of `capacity` tokens in one KV cache.

    `tokens` are those whose keys and values a slot holds: what computes more of them appends them,
    and what is beyond them in the cache is never read. A slot keeps them when its text has ended,
    for texts that begin alike.
    """

    def __init__(self, engine: Engine, count: int, context: int) -> None:
        """Raises LbrxError if the cache does not fit beside the model."""
        self.engine = engine
        self.count = count
        self.context = context
        # Whole steps, as for a single text, so that both have kernels in common.
        capacity = -(-context // CAPACITY_STEP) * CAPACITY_STEP
        engine.memory.check_cache(count, capacity)
        config, device = engine.network.config, engine.network.device
        self.capacity = capacity
        self.cache = KVCache(config, count, capacity, engine.cache_type, device)
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self.is_recurrent = bool(self.cache.states)
        self._steps: dict[tuple[Block, int], Callable[[Tensor, Tensor], Prediction]] = {}
        self._verifying: dict[tuple[Block, int, int], Callable[[Tensor, Tensor], Tensor]] = {}

    def shared(self, slot: int, tokens: Sequence[int]) -> int:
        """How many of the first tokens a slot holds. Recurrent layers know no earlier state than
        the last one, so a text of theirs is read from its beginning."""
        return 0 if self.is_recurrent else common_prefix(self.tokens[slot], tokens)

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a slot the first tokens of another one."""
        self.tokens[target] = []
        store = self.cache.store[..., :length, :]
        write(store[:, :, target : target + 1], store[:, :, source : source + 1])
        self.tokens[target] = self.tokens[source][:length]

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        """Compute the keys and values of a slot's next tokens, in one pass."""
        known = len(self.tokens[slot])
        places = np.arange(known, known + len(tokens), dtype=np.int32)
        step = ForwardStep(
            self.cache.slots(slot, 1, self._seen(known + len(tokens))),
            self._tensor(places[None]),
            self._tensor([known + len(tokens)]),
        )
        self.engine.network.hidden_states(self._tensor([tokens]), step)
        start(step.written)
        self.tokens[slot] += tokens

    def decode(self, tokens: Mapping[int, int]) -> Decoded:
        """Start the step for the next token of these slots, one forward pass for all."""
        block = Block.around(list(tokens), self.count)
        ids = np.zeros((block.size, 1), np.int64)
        places = np.full((block.size, 1), NOWHERE, np.int32)
        for slot, token in tokens.items():
            ids[slot - block.first] = token
            places[slot - block.first] = len(self.tokens[slot])
        device = self.engine.network.device
        seen = self._seen(int(places.max()) + 1)
        step = self._step(block, seen)
        result = step(tensor(ids, dtype=dt.int64, device=device), self._tensor(places))
        start(result)
        for slot, token in tokens.items():
            self.tokens[slot].append(token)
        return Decoded(block, result)

    def verify(self, tokens: Mapping[int, Sequence[int]], width: int) -> dict[int, Tensor]:
        """Start the pass for up to `width` tokens of each of these slots: the logits after each
        token. The caller says which of them become tokens of the slots."""
        block = Block.around(list(tokens), self.count)
        ids = np.zeros((block.size, width), np.int64)
        places = np.full((block.size, width), NOWHERE, np.int32)
        for slot, new in tokens.items():
            row, known = slot - block.first, len(self.tokens[slot])
            ids[row, width - len(new) :] = new
            places[row, width - len(new) :] = np.arange(known, known + len(new))
        key = block, self._seen(int(places.max()) + 1), width
        if key not in self._verifying:
            part = self.cache.slots(block.first, block.size, key[1])
            step = self.engine.verify_step(part)
            self._verifying[key] = step if part.device == "cpu" else compile(step)
        device = self.engine.network.device
        logits = self._verifying[key](
            tensor(ids, dtype=dt.int64, device=device), self._tensor(places)
        )
        start(logits)
        return {
            slot: logits[slot - block.first, width - len(new) :] for slot, new in tokens.items()
        }

    def decode_likely(self, last: Decoded) -> Decoded:
        """Start the step for the most likely tokens after a step whose slots all had a text. They
        become tokens of the slots when they are known to be those that were chosen."""
        block, prediction = last.block, last.prediction
        longest = max(map(len, self.tokens[block.first : block.first + block.size]))
        seen = self._seen(longest + 1)
        following = self._step(block, seen)(prediction.best, prediction.positions)
        start(following)
        return Decoded(block, following)

    def _seen(self, tokens: int) -> int:
        """The tokens of each slot that kernels look through: a power of two, so that short texts
        are fast and few steps are recorded."""
        return min(max(MIN_CAPACITY, 1 << (tokens - 1).bit_length()), self.cache.capacity)

    def _step(self, block: Block, seen: int) -> Callable[[Tensor, Tensor], Prediction]:
        key = block, seen
        if key not in self._steps:
            part = self.cache.slots(block.first, block.size, seen)
            step = self.engine.decode_step(part)
            self._steps[key] = step if part.device == "cpu" else compile(step)
        return self._steps[key]

    def _tensor(self, values: object) -> Tensor:
        host = np.ascontiguousarray(values, np.int32)
        return tensor(host, dtype=dt.int32, device=self.engine.network.device)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of tokens with which both begin, by comparing halves as a whole."""
    same, end = 0, min(len(a), len(b))
    while same < end:
        middle = (same + end + 1) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same
