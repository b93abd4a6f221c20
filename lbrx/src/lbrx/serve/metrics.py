"""What the server has done, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from lbrx.process import peak_memory
from lbrx.serve.service import Service

FIRST_TOKEN = "time_to_first_token_seconds"


def text(every: Iterable[Service]) -> str:
    """All metrics. Those of a model have its name as a label."""
    kinds: dict[str, str] = {}
    lines: dict[str, list[str]] = {}

    def add(name: str, kind: str, value: float, model: str, part: str = "") -> None:
        kinds[name] = kind
        label = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.setdefault(name, []).append(f'lbrx_{name}{part}{{model="{label}"}} {value}')

    for service in every:
        engine, name = service.engine, service.name
        add("texts_running", "gauge", engine.running, name)
        add("texts_waiting", "gauge", engine.waiting, name)
        add("slots", "gauge", engine.slots.count, name)
        for count, value in asdict(engine.counts).items():
            add(f"{count}_total", "counter", value, name)
        add(FIRST_TOKEN, "summary", service.first_token_seconds, name, "_sum")
        add(FIRST_TOKEN, "summary", service.first_tokens, name, "_count")
    whole = ["# TYPE lbrx_process_peak_memory_bytes gauge"]
    whole.append(f"lbrx_process_peak_memory_bytes {peak_memory()}")
    for name, values in lines.items():
        whole += [f"# TYPE lbrx_{name} {kinds[name]}", *values]
    return "\n".join(whole) + "\n"
