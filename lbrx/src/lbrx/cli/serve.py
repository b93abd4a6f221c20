"""lbrx serve: answer requests of the APIs of OpenAI, Anthropic and Ollama."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from lbrx.cli.generate import add_model_arguments, open_language_model
from lbrx.errors import LbrxError
from lbrx.extras import install
from lbrx.models.batch_engine import BatchEngine
from lbrx.models.sampling import check_number
from lbrx.serve.gate import LOOPBACK, GateRules
from lbrx.serve.models import Models
from lbrx.serve.service import Service

KEY = "LBRX_API_KEY"
NAMED = re.compile(r"[^/\\=]+=")
"""The beginning of an adapter that has a name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1)")
    add("--port", type=int, default=8080, metavar="N", help="the port (8080); 0 for any free one")
    add("--name", metavar="NAME", help="the model's name in the APIs (default: that of its file)")
    add(
        "--also",
        action="append",
        default=[],
        metavar="[NAME=]MODEL",
        help="serve a further model, which requests name; may be repeated. With "
        "--adapter NAME=PATH the model is also served with that adapter, under its name",
    )
    add(
        "--parallel",
        type=int,
        default=4,
        metavar="N",
        help="texts at once, each with a cache as long as the context (4); others wait",
    )
    add(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"requests need this key; may be repeated (default: {KEY}, which `ps` does not show)",
    )
    add(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin, such as http://localhost:3000, use the server",
    )
    add("--timeout", type=float, default=600, metavar="S", help="seconds for an answer (600)")
    add(
        "--draft",
        choices=["ngram"],
        help="guess tokens and check several in one pass: ngram guesses that a text goes on as it "
        "did where its last tokens occurred before, as in code and answers about a text",
    )
    add(
        "--deterministic",
        action="store_true",
        help="an answer has the same bits whatever else is asked; reads prompts more slowly",
    )


def run(options: argparse.Namespace) -> int:
    check_number("--port", options.port, 0, 65535, integer=True)
    check_number("--parallel", options.parallel, 1, 256, integer=True)
    check_number("--timeout", options.timeout, 0.001)
    try:
        from lbrx.serve.running import listen, serve
    except ImportError as problem:
        if problem.name not in ("starlette", "uvicorn", "anyio"):
            raise
        text = f"lbrx serve needs the packages starlette and uvicorn: {install('serve')}"
        raise LbrxError(text) from None
    keys = options.api_key or [key for key in [os.environ.get(KEY)] if key]
    if options.host not in LOOPBACK and not keys:
        warning = "anybody who reaches this address can use the model: --api-key prevents it"
        print(f"lbrx: {warning}", file=sys.stderr)
    with listen(options.host, options.port) as bound:
        models = _open_models(options)
        try:
            serve(models, GateRules(options.host, keys, options.cors), bound)
        finally:
            models.close()
    return 0


def _open_models(options: argparse.Namespace) -> Models:
    """The model, further ones, and the model with each adapter that has a name."""
    beside = [one for one in options.adapter if not NAMED.match(one)]
    name = options.name or Path(options.model).stem or options.model
    wanted = [(name, options.model, beside)]
    for further in options.also:
        named, _, path = further.rpartition("=")
        wanted.append((named or Path(path).stem or path, path, []))
    for adapter in options.adapter:
        if NAMED.match(adapter):
            named, _, path = adapter.partition("=")
            wanted.append((named, options.model, [*beside, path]))
    names = [name for name, _, _ in wanted]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LbrxError(f"two models are called {twice}: give --name, or NAME=MODEL")
    services: list[Service] = []
    try:
        for name, model, adapters in wanted:
            one = argparse.Namespace(**{**vars(options), "model": model, "adapter": adapters})
            services.append(_service(name, one, services))
    except BaseException:
        for service in services:  # their threads would keep the process
            service.close()
        raise
    return Models(services)


def _service(name: str, options: argparse.Namespace, before: Sequence[Service]) -> Service:
    """A model behind an engine of its own, if it fits the memory beside those `before`."""
    model = open_language_model(options)
    engine = BatchEngine(
        model.engine,
        options.parallel,
        deterministic=options.deterministic,
        look_up=options.draft == "ngram",
    )
    used = engine.nbytes + sum(service.engine.nbytes for service in before)
    limit = model.memory.limit
    if used > limit:
        raise LbrxError(
            f"{name} does not fit beside the models before it: they need {used / 2**30:.2f} GiB of "
            f"{limit / 2**30:.2f} GiB: lower --parallel or --context, or serve fewer models"
        )
    return Service(model, name, engine, options.timeout)
