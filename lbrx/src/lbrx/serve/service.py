"""A language model behind a server: a thread that computes, and the answers that clients await."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any

from lbrx.models import LanguageModel
from lbrx.models.batch_engine import BatchEngine, Job, Piece
from lbrx.models.embeddings import Embedding, embedding_steps
from lbrx.models.generation import TextState
from lbrx.models.language_model import read_options
from lbrx.serve.answer_reader import AnswerReader, Part, PartKind
from lbrx.serve.chat_request import ChatRequest, Said, prepare
from lbrx.serve.problems import TIMED_OUT, RequestError

SILENCE = 10.0  # seconds after which a stream says that it is alive


class Service:
    """A model under a name, and its batch engine, which a thread runs until `close`."""

    def __init__(
        self, model: LanguageModel, name: str, engine: BatchEngine, timeout: float
    ) -> None:
        self.model = model
        self.name = name
        self.engine = engine
        self.timeout = timeout
        self.created = int(time.time())
        self.first_tokens = 0
        self.first_token_seconds = 0.0
        self._thread = threading.Thread(target=engine.run, name="lbrx batch engine")
        self._thread.start()

    def close(self) -> None:
        """Wait until all texts have ended, and end the thread."""
        self.engine.close()
        self._thread.join()

    async def answers(
        self, prompts: Sequence[Any], options: dict[str, Any], count: int = 1
    ) -> Answers:
        """Let the model complete prompts, each `count` times. Raises LbrxError for bad ones."""
        texts = await asyncio.to_thread(self._texts, prompts, options, count)
        return Answers(self, texts)

    async def embedding(self, tokens: Sequence[int]) -> Embedding:
        """The embedding of a text."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Embedding] = loop.create_future()

        def tell(result: Embedding | Exception) -> None:
            if made.done():  # the client has gone
                return
            if isinstance(result, Exception):
                made.set_exception(result)
            else:
                made.set_result(result)

        def work() -> Iterator[None]:
            result: Embedding | Exception | None = None
            try:
                with self.model.engine.lock:
                    steps = embedding_steps(self.model.engine, tokens, self.engine.chunk)
                    while result is None and not made.done():
                        try:
                            yield next(steps)
                        except StopIteration as ended:
                            result = ended.value
            except Exception as problem:
                result = problem
            if result is not None:
                loop.call_soon_threadsafe(tell, result)

        self.engine.call(work())
        try:
            return await asyncio.wait_for(made, self.timeout)
        except TimeoutError:
            raise self.too_slow() from None

    def too_slow(self) -> RequestError:
        """The error for an answer that takes longer than the server allows."""
        return RequestError(TIMED_OUT, f"no complete answer within {self.timeout:g} seconds")

    async def chat(self, request: ChatRequest, options: dict[str, Any], count: int = 1) -> Answers:
        """Let the model answer a conversation `count` times."""
        texts, readers = await asyncio.to_thread(self._chat, request, options, count)
        return Answers(self, texts, readers)

    def _chat(
        self, request: ChatRequest, options: dict[str, Any], count: int
    ) -> tuple[list[TextState], list[AnswerReader]]:
        rest = dict(options)
        ruled = rest.keys() & {"regex", "grammar"}
        if ruled and request.tools:
            raise RequestError(400, f"{min(ruled)}: give a schema instead, or no tools")
        ready = prepare(self.model, request, rest.pop("schema", None))
        texts = self._texts([ready.tokens], {**rest, **ready.options}, count)
        return texts, [ready.reader() for _ in texts]

    def _texts(
        self, prompts: Sequence[Any], options: dict[str, Any], count: int
    ) -> list[TextState]:
        wanted = read_options({"max_tokens": self.engine.slots.context, **options})
        context = self.engine.slots.context
        tokens = [self.model.prompt_tokens(prompt) for prompt in prompts]
        return [
            self.model.new_text(each, wanted, context, repeat)
            for each in tokens
            for repeat in range(count)
        ]


class Answers:
    """The texts that one request asks for. They are computed until `pieces` ends or is left."""

    def __init__(
        self,
        service: Service,
        texts: list[TextState],
        readers: Sequence[AnswerReader] = (),
    ) -> None:
        """`readers` are those of the texts, where they answer conversations."""
        self.texts = texts
        self._readers = readers
        self._service = service
        self._began = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        self._jobs = [
            Job(text, service.model.end_tokens, partial(self._listen, index))
            for index, text in enumerate(texts)
        ]
        try:
            for job in self._jobs:
                service.engine.submit(job)
        except Exception:
            self.cancel()
            raise

    @property
    def generated(self) -> int:
        """The number of new tokens of all texts."""
        return sum(len(text.tokens) for text in self.texts)

    @property
    def cached(self) -> int:
        """The number of tokens of the first prompt that were not computed again."""
        return self._jobs[0].cached_tokens or 0

    def cancel(self) -> None:
        """End all texts."""
        for job in self._jobs:
            self._service.engine.cancel(job)

    def _listen(self, index: int, piece: Piece) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, piece))

    async def pieces(self) -> AsyncIterator[tuple[int, Piece] | None]:
        """Each piece with the index of its text, and None where nothing came for a while."""
        going = len(self.texts)
        try:
            while going:
                left = self._began + self._service.timeout - time.monotonic()
                if left <= 0:
                    raise self._service.too_slow()
                try:
                    index, piece = await asyncio.wait_for(self._queue.get(), min(left, SILENCE))
                except TimeoutError:
                    yield None
                    continue
                if piece.error is not None:
                    raise piece.error
                self._note_first(piece)
                going -= piece.finish_reason is not None
                yield index, piece
        finally:
            self.cancel()

    def _note_first(self, piece: Piece) -> None:
        if piece.tokens == 1:
            self._service.first_tokens += 1
            self._service.first_token_seconds += time.monotonic() - self._began

    async def parts(self) -> AsyncIterator[tuple[int, Piece, list[Part]] | None]:
        """Each piece with the parts of its answer that it completes. Completions are text."""
        async for item in self.pieces():
            if item is None:
                yield None
                continue
            index, piece = item
            if not self._readers:
                yield index, piece, [Part(PartKind.TEXT, piece.shown)] if piece.shown else []
                continue
            parts = self._readers[index].feed(piece.shown)
            if piece.finish_reason is not None:
                parts += self._readers[index].end()
            yield index, piece, parts

    async def said(self) -> list[Said]:
        """The complete answers."""
        every = [Said() for _ in self.texts]
        async for item in self.parts():
            if item is not None:
                for part in item[2]:
                    every[item[0]].add(part)
        return every
