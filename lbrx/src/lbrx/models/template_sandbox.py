"""The program of the process that renders chat templates, which `template_process` starts.

It imports jinja2 and nothing of lbrx. Requests come through standard input, answers leave through
standard output: JSON after its length. A template that exceeds a limit ends the process.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LENGTH_BYTES = 8
OUT_OF_MEMORY = 3  # exit status


class Generation(Extension):
    """`{% generation %}` surrounds what the model has said, which only training needs to know."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def main(seconds: float, memory: int, characters: int) -> None:
    """Answer requests until the input ends. A template may use `seconds` of processor time, the
    process `memory` bytes (0: any number), and a text has at most `characters`."""
    # What the parent blocks or ignores is inherited.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if memory:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    _send({})
    while length := sys.stdin.buffer.read(LENGTH_BYTES):
        request = sys.stdin.buffer.read(int.from_bytes(length, "big"))
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process
        try:
            answer = _answer(json.loads(request), characters)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(answer)


def _send(answer: Mapping[str, str]) -> None:
    data = json.dumps(answer).encode()
    sys.stdout.buffer.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    sys.stdout.flush()


def _answer(request: Mapping[str, Any], characters: int) -> dict[str, str]:
    """The text of a template, or what is wrong with it."""
    try:
        text = _compiled(request["template"]).render(request["variables"])
    except MemoryError:
        raise
    except TemplateError as problem:
        return {"problem": f"{problem!s:.500}"}
    except Exception as problem:  # templates are programs and raise errors of any type
        return {"problem": f"{type(problem).__name__}: {problem!s:.500}"}
    if len(text) > characters:
        return {"limit": f"its text has more than {characters:,} characters"}
    return {"text": text}


@lru_cache(maxsize=4)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment.from_string(source)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """JSON without the HTML escapes of jinja's own filter, as in transformers."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: object) -> None:
    raise TemplateError(message if isinstance(message, str) else type(message).__name__)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
