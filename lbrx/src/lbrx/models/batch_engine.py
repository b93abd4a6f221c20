"""Generates many texts at once: which texts have a slot, what is computed next, who is told."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from lbrx.errors import LbrxError
from lbrx.kernels.registry import deterministic
from lbrx.models.drafts import LookUp, width_of
from lbrx.models.engine import SHORT_PROMPT, Engine
from lbrx.models.generation import FinishReason, TextState, check_prompt, not_finite
from lbrx.models.memory_plan import CHUNK
from lbrx.models.slots import Block, Decoded, Slots

log = logging.getLogger("lbrx")
QUANTUM = 256  # tokens after which a text gives its slot to one that waits
READ_AGAIN = 4  # a text is preempted after at least 1/4 of what it would have to read again
MOST_WAITING = 512


class QueueFullError(LbrxError):
    """So many texts wait already that another one is refused."""


@dataclass(frozen=True)
class Piece:
    """What became known of a text in one step."""

    shown: str
    """The next part of the text; may be empty while a character or a stop string is incomplete."""
    tokens: int
    """How many tokens the text has now."""
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    """Why the text ended early. It has either this or a `finish_reason` at its end."""


class Job:
    """A text that is generated among others. `listener` is called for each piece, by the thread
    that computes; what it raises ends the text and no other."""

    def __init__(
        self, text: TextState, ends: frozenset[int], listener: Callable[[Piece], None]
    ) -> None:
        self.text = text
        self.ends = ends
        self.listener = listener
        self.tokens = list(text.prompt)
        self.cached_tokens: int | None = None
        """Tokens of the prompt that some slot held when it was first read."""
        self.cancelled = False
        self.slot = NO_SLOT
        self.look_up: LookUp | None = None
        self.prefix_known = False
        """Whether its slot holds as much of the text as any other."""
        self.served = 0
        """Tokens that were chosen since it last got a slot."""

    @property
    def greedy_goes_on(self) -> bool:
        """Whether the most likely token, unless it ends the text, is surely decoded next."""
        return self.text.is_greedy and len(self.text.tokens) + 1 < self.text.limit


NO_SLOT = -1


@dataclass
class BatchCounts:
    """What a batch engine has done since it was made."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of prompts that were not computed again."""
    generated_tokens: int = 0
    steps: int = 0
    """Forward passes that gave texts a token each."""
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    preempted: int = 0
    guessed_tokens: int = 0
    """Tokens that were guessed and checked in one pass with others."""
    right_tokens: int = 0
    """Those of them that were right."""


class BatchEngine:
    """Generates texts in the slots of one cache, each step one forward pass for all of them.

    `submit` and `cancel` may be called from any thread; `step` from one thread, such as that of
    `run`. Texts wait in the order of their arrival. A step reads up to `chunk` tokens of prompts,
    then decodes. While texts wait, one that has generated `quantum` tokens gives up its slot
    and waits behind them; it goes on from its tokens, with its sampler, and loses nothing.
    """

    def __init__(
        self,
        engine: Engine,
        slots: int,
        *,
        context: int | None = None,
        chunk: int = CHUNK,
        quantum: int = QUANTUM,
        most_waiting: int = MOST_WAITING,
        deterministic: bool = False,
        look_up: bool = False,
    ) -> None:
        """With `deterministic`, a text has the same bits alone and in any company. With `look_up`,
        tokens are guessed from what a text repeats. Raises LbrxError if the slots do not fit the
        memory, or for guesses at texts of recurrent layers, whose states know no way back."""
        self.slots = Slots(engine, slots, context or engine.context)
        self.counts = BatchCounts()
        self.deterministic = deterministic
        self.look_up = look_up
        if look_up and self.slots.is_recurrent:
            raise LbrxError(
                "a model with recurrent layers cannot check guessed tokens: leave out --draft"
            )
        self.chunk = chunk
        self.quantum = quantum
        self.most_waiting = most_waiting
        self._waiting: deque[Job] = deque()
        self._calls: deque[Iterator[None]] = deque()
        self._running: dict[int, Job] = {}
        self._used = [0] * slots  # when each slot was last given away
        self._turn = 0
        self._shortest_next = False
        self._ahead: tuple[Decoded, dict[int, Job]] | None = None
        self._changed = threading.Condition()
        self._closing = False

    # ---- from any thread ----

    def submit(self, job: Job) -> None:
        """Let a text wait for a slot. Raises LbrxError if its prompt leaves no room in a slot, and
        QueueFullError if too many wait."""
        check_prompt(len(job.text.prompt), self.slots.context)
        with self._changed:
            if self._closing:
                raise QueueFullError("the engine is being closed")
            if len(self._waiting) >= self.most_waiting:
                raise QueueFullError(f"{len(self._waiting):,} texts are waiting: try again later")
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """End a text before the next step, also while its prompt is read. Its listener is not
        called any more."""
        job.cancelled = True

    def call(self, work: Iterator[None]) -> None:
        """Have other work done by the thread that computes: a piece of it after each step, and
        nothing of the next one before its end. It tells of its result and its errors itself."""
        with self._changed:
            if self._closing:
                raise QueueFullError("the engine is being closed")
            if len(self._calls) >= self.most_waiting:
                raise QueueFullError(f"{len(self._calls):,} calls are waiting: try again later")
            self._calls.append(work)
            self._changed.notify()

    @property
    def nbytes(self) -> int:
        """The bytes that the model and the cache of all slots use at most."""
        plan, slots = self.slots.engine.memory, self.slots
        return plan.weights + plan.scratch + slots.count * slots.capacity * plan.bytes_per_token

    @property
    def waiting(self) -> int:
        """The number of texts without a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """The number of texts with a slot."""
        return len(self._running)

    def close(self) -> None:
        """Let `run` return when all texts that were submitted have ended."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def run(self) -> None:
        """Make steps while there are texts, and wait for more, until `close`."""
        while True:
            with self._changed:
                while not (self._is_busy or self._closing):
                    self._changed.wait()
                if not self._is_busy:
                    return
            self.step()

    # ---- from the thread that computes ----

    def step(self) -> bool:
        """Read pieces of prompts, then give each text that is read a token. Returns whether texts
        are left. An error of the device ends all running texts with it."""
        try:
            with deterministic() if self.deterministic else nullcontext():
                self._drop_cancelled()
                self._admit()
                self._read()
                self._decode()
        except Exception as problem:
            log.exception("a step of the batch failed")
            self._ahead = None
            for slot, job in list(self._running.items()):
                self.slots.tokens[slot] = []
                self._end(job, problem)
        self._advance_call()
        return self._is_busy

    @property
    def _is_busy(self) -> bool:
        return bool(self._waiting or self._running or self._calls)

    def _advance_call(self) -> None:
        """Do the next piece of the first call."""
        if not self._calls:
            return
        try:
            next(self._calls[0])
        except StopIteration:
            self._calls.popleft()
        except Exception:
            log.exception("a call between steps failed")
            self._calls.popleft()

    def _drop_cancelled(self) -> None:
        with self._changed:
            gone = [job for job in self._waiting if job.cancelled]
            for job in gone:
                self._waiting.remove(job)
        for job in [job for job in self._running.values() if job.cancelled]:
            self._release(job)
            gone.append(job)
        self.counts.cancelled += len(gone)

    def _admit(self) -> None:
        """Give slots to the texts that wait longest."""
        while self._waiting:
            if len(self._running) == self.slots.count and not self._preempt():
                return
            with self._changed:
                job = self._waiting.popleft()
            slot = self._slot_for(job)
            # What is kept is true of the slot, as nothing beyond it is read.
            kept = self.slots.shared(slot, job.tokens[:-1])
            self.slots.tokens[slot] = self.slots.tokens[slot][:kept]
            self._turn += 1
            self._used[slot] = self._turn
            job.slot, job.served, job.prefix_known = slot, 0, False
            self._running[slot] = job

    def _preempt(self) -> bool:
        """Take the slot of the text that was served most, if it was served enough."""
        most = max(self._running.values(), key=lambda job: job.served)
        if most.served < max(self.quantum, len(most.tokens) // READ_AGAIN):
            return False
        self._release(most)
        self.counts.preempted += 1
        with self._changed:
            self._waiting.append(most)
        return True

    def _slot_for(self, job: Job) -> int:
        """A free slot: one that holds more of the text than of anything else, or one near those in
        use, the longest unused first."""
        free = [slot for slot in range(self.slots.count) if slot not in self._running]
        shared = {slot: self.slots.shared(slot, job.tokens[:-1]) for slot in free}
        best = max(free, key=shared.__getitem__)
        if 2 * shared[best] > max(len(self.slots.tokens[best]), 2 * SHORT_PROMPT):
            return best

        def cost(slot: int) -> tuple[int, int]:
            block = Block.around([*self._running, slot], self.slots.count)
            return block.size, self._used[slot]

        return min(free, key=cost)

    def _read(self) -> None:
        """Read a chunk of prompts. Turns alternate between the text that came first and the one
        with the least left, so that short prompts need not wait for long ones, nor the reverse."""
        left = self.chunk
        while left > 0 and (reading := self._reading()):
            job = min(reading, key=self._unread) if self._shortest_next else reading[0]
            if not job.prefix_known:
                self._find_prefix(job)
                continue
            self._shortest_next = not self._shortest_next
            held = len(self.slots.tokens[job.slot])
            # The last token is decoded with those of other texts.
            piece = job.tokens[held : held + left][: len(job.tokens) - 1 - held]
            self.slots.read(job.slot, piece)
            left -= len(piece)

    def _reading(self) -> list[Job]:
        """Texts whose prompts are read in pieces."""
        jobs = self._running.values()
        most = self._decoded_unread()
        return [job for job in jobs if not job.prefix_known or self._unread(job) > most]

    def _decoded_unread(self) -> int:
        """Up to how many unread tokens a text has them decoded one by one, as that is faster; with
        chunks of other prompts between them it would not be."""
        unread = max(map(self._unread, self._running.values()), default=0)
        return SHORT_PROMPT if unread <= SHORT_PROMPT else 1

    def _unread(self, job: Job) -> int:
        return len(job.tokens) - len(self.slots.tokens[job.slot])

    def _find_prefix(self, job: Job) -> None:
        """Copy the first tokens of a text from the slot that holds most of them. Looked for when
        a text is first read, as one before it may have the same prefix."""
        before_last = job.tokens[:-1]
        shared = [self.slots.shared(slot, before_last) for slot in range(self.slots.count)]
        best = max(range(self.slots.count), key=shared.__getitem__)
        if shared[best] > shared[job.slot]:
            self.slots.copy(best, job.slot, shared[best])
        job.prefix_known = True
        if job.cached_tokens is not None:  # a text that was preempted
            return
        job.cached_tokens = shared[best]
        self.counts.prompt_tokens += len(job.text.prompt)
        self.counts.cached_tokens += shared[best]

    def _ready(self) -> dict[int, Job]:
        """Texts that are read, or nearly so."""
        most = self._decoded_unread()
        return {
            slot: job
            for slot, job in self._running.items()
            if job.prefix_known and self._unread(job) <= most
        }

    def _decode(self) -> None:
        """Decode one token of each text that is read, and choose the next one of each."""
        ready = self._ready()
        guesses = self._guesses(ready) if self.look_up else {}
        if guesses:
            self._verify(ready, guesses)
            return
        decoded, jobs = self._started(ready)
        if decoded is None:
            return
        self.counts.steps += 1
        # Texts that still read the end of their prompt need no logits.
        choosing = [job for job in jobs.values() if self._unread(job) == 0]
        if len(choosing) == len(ready):
            self._decode_ahead(decoded, jobs)
        for job in choosing:
            self._prepare(job)
        choosing = [job for job in choosing if job.slot != NO_SLOT]
        logits = decoded.prediction.logits.numpy() if choosing else None
        for job in choosing:
            assert logits is not None
            self._choose(job, logits[job.slot - decoded.block.first])

    def _prepare(self, job: Job) -> None:
        """Have the host do what a text's choice needs while the device computes the logits."""
        try:
            job.text.prepare()
        except Exception as problem:
            self._end(job, problem)

    def _started(self, ready: dict[int, Job]) -> tuple[Decoded | None, dict[int, Job]]:
        """The step that was started ahead, for those of its texts that go on, or else a new one."""
        if self._ahead is not None:
            decoded, jobs = self._ahead
            self._ahead = None
            same = {slot: job for slot, job in jobs.items() if ready.get(slot) is job}
            for slot, job in same.items():
                self.slots.tokens[slot].append(job.tokens[-1])
            if same:
                return decoded, same
        if not ready:
            return None, {}
        following = {slot: job.tokens[len(self.slots.tokens[slot])] for slot, job in ready.items()}
        return self.slots.decode(following), ready

    def _decode_ahead(self, decoded: Decoded, jobs: dict[int, Job]) -> None:
        """Start the next step before the host has read the logits, so that the device is busy
        meanwhile: where all rows have texts, whose next tokens are the most likely ones. States of
        recurrent layers could not be rolled back where one ends."""
        on_device = self.slots.cache.device != "cpu" and not self.slots.is_recurrent
        full = len(jobs) == decoded.block.size and not self.look_up
        if on_device and full and all(job.greedy_goes_on for job in jobs.values()):
            self._ahead = self.slots.decode_likely(decoded), dict(jobs)

    def _guesses(self, ready: Mapping[int, Job]) -> dict[int, list[int]]:
        """What may follow the texts that choose their next token; nothing unless there is on
        average a guessed token for each text."""
        guesses = {}
        for slot, job in ready.items():
            # The last token of the limit is never decoded.
            left = min(
                job.text.limit - len(job.text.tokens) - 1, self.slots.context - len(job.tokens)
            )
            if self._unread(job) == 1 and left > 0:
                job.look_up = job.look_up or LookUp()
                guesses[slot] = job.look_up.guess(job.tokens, left)
        many = sum(map(len, guesses.values())) >= len(ready)
        return {slot: guess for slot, guess in guesses.items() if guess} if many else {}

    def _verify(self, ready: Mapping[int, Job], guesses: Mapping[int, list[int]]) -> None:
        """Check guesses in one pass. The tokens are those that would have been chosen one by one:
        each is chosen from its logits, and what was guessed counts as far as it is the same."""
        self.counts.steps += 1
        passed = {
            slot: [job.tokens[len(self.slots.tokens[slot])], *guesses.get(slot, [])]
            for slot, job in ready.items()
        }
        rows = self.slots.verify(passed, width_of(max(map(len, passed.values()))))
        for slot, job in ready.items():
            new, known = passed[slot], len(self.slots.tokens[slot])
            self.slots.tokens[slot].append(new[0])
            if self._unread(job) > 0:
                continue
            logits, right = rows[slot].numpy(), 0
            for place in range(len(new)):
                self._choose(job, logits[place])
                is_right = job.tokens[known + place + 1 :] == new[place + 1 : place + 2]
                if job.slot == NO_SLOT or not is_right:
                    break
                self.slots.tokens[slot].append(new[place + 1])
                right += 1
            self._note_guess(job, len(new) - 1, right)

    def _note_guess(self, job: Job, guessed: int, right: int) -> None:
        self.counts.guessed_tokens += guessed
        self.counts.right_tokens += right
        if guessed and job.look_up is not None:
            job.look_up.learn(guessed, right)

    def _choose(self, job: Job, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        """Choose the next token of a text, and tell its listener."""
        text = job.text
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            self._end(job, not_finite(len(job.tokens)))
            return
        try:
            known = len(text.tokens)
            token = best if text.is_greedy else text.choose(logits)
            shown = text.accept(token, logits, job.ends)
            new = text.tokens[known:]
            job.tokens += new
            job.served += len(new)
            self.counts.generated_tokens += len(new)
            if not job.cancelled:
                job.listener(Piece(shown, len(text.tokens), text.finish_reason))
        except Exception as problem:
            self._end(job, problem)
            return
        if text.finish_reason is not None:
            self._release(job)
            self.counts.finished += 1

    def _end(self, job: Job, problem: Exception) -> None:
        """End a text with an error."""
        self._release(job)
        self.counts.failed += 1
        try:
            if not job.cancelled:
                job.listener(Piece("", len(job.text.tokens), error=problem))
        except Exception:
            log.exception("the listener of a text failed")

    def _release(self, job: Job) -> None:
        self._running.pop(job.slot, None)
        job.slot = NO_SLOT
