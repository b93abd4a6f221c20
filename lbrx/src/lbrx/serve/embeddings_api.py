"""OpenAI's and Ollama's embeddings."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Any

from lbrx.models.embeddings import Embedding
from lbrx.models.generation import check_prompt
from lbrx.serve.problems import RequestError, refuse
from lbrx.serve.service import Service

MOST_TEXTS = 2048


async def openai_answer(service: Service, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer in OpenAI's API, whose clients ask for base64 unless told otherwise."""
    form = body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise RequestError(400, f"encoding_format={form!r:.80}: give float or base64")
    size = service.model.config.hidden
    if body.get("dimensions") not in (None, size):
        text = f"dimensions: the model's embeddings have {size:,} values: leave it out"
        raise RequestError(400, text, "dimensions")
    tokens, made = await _embed(service, body.get("input"))
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(each, form)}
        for index, each in enumerate(made)
    ]
    used = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": service.name, "usage": used}


async def ollama_answer(service: Service, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer in Ollama's API."""
    refuse(body, "dimensions")
    tokens, made = await _embed(service, body.get("input"))
    embeddings = [each.tolist() for each in made]
    return {"model": service.name, "embeddings": embeddings, "prompt_eval_count": tokens}


def _encoded(embedding: Embedding, form: str) -> str | list[float]:
    if form == "float":
        return [float(value) for value in embedding]
    return base64.b64encode(embedding.astype("<f4").tobytes()).decode()


async def _embed(service: Service, given: Any) -> tuple[int, list[Embedding]]:
    """The number of tokens of all texts, and their embeddings."""
    texts = await asyncio.to_thread(_tokens_of, service, given)
    made = await asyncio.gather(*(service.embedding(tokens) for tokens in texts))
    return sum(map(len, texts)), made


def _tokens_of(service: Service, given: Any) -> list[list[int]]:
    """The token ids of each text: texts, or lists of token ids."""
    several = [given] if isinstance(given, str) or _are_tokens(given) else given
    kinds = (str, list)
    if (
        not isinstance(several, list)
        or not several
        or not all(isinstance(t, kinds) for t in several)
    ):
        raise RequestError(400, "input: give a text, token ids, or a list of these", "input")
    if len(several) > MOST_TEXTS:
        raise RequestError(400, f"input: give at most {MOST_TEXTS:,} texts", "input")
    texts = [service.model.prompt_tokens(each) for each in several]
    for tokens in texts:
        check_prompt(len(tokens), service.engine.slots.context)
    return texts


def _are_tokens(given: Any) -> bool:
    return isinstance(given, Sequence) and bool(given) and all(isinstance(t, int) for t in given)
