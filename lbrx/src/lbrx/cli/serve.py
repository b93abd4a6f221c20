"""lbrx serve: answer requests of the APIs of OpenAI, Anthropic and Ollama."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lbrx.cli.generate import add_model_arguments, open_language_model
from lbrx.errors import LbrxError
from lbrx.extras import install
from lbrx.models.batch_engine import BatchEngine
from lbrx.models.sampling import check_number
from lbrx.serve.gate import LOOPBACK, GateRules
from lbrx.serve.service import Service

KEY = "LBRX_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1)")
    add("--port", type=int, default=8080, metavar="N", help="the port (8080); 0 for any free one")
    add("--name", metavar="NAME", help="the model's name in the APIs (default: that of its file)")
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
        model = open_language_model(options)
        engine = BatchEngine(
            model.engine,
            options.parallel,
            deterministic=options.deterministic,
            look_up=options.draft == "ngram",
        )
        name = options.name or Path(options.model).stem or options.model
        service = Service(model, name, engine, options.timeout)
        try:
            serve(service, GateRules(options.host, keys, options.cors), bound)
        finally:
            service.close()
    return 0
