"""What the server has done, in the text format of Prometheus."""

from __future__ import annotations

from dataclasses import asdict

from lbrx.process import peak_memory
from lbrx.serve.service import Service


def text(service: Service) -> str:
    """All metrics."""
    engine = service.engine
    lines = []

    def add(name: str, kind: str, value: float) -> None:
        lines.extend([f"# TYPE lbrx_{name} {kind}", f"lbrx_{name} {value}"])

    add("texts_running", "gauge", engine.running)
    add("texts_waiting", "gauge", engine.waiting)
    add("slots", "gauge", engine.slots.count)
    add("process_peak_memory_bytes", "gauge", peak_memory())
    for name, value in asdict(engine.counts).items():
        add(f"{name}_total", "counter", value)
    lines += [
        "# TYPE lbrx_time_to_first_token_seconds summary",
        f"lbrx_time_to_first_token_seconds_sum {service.first_token_seconds}",
        f"lbrx_time_to_first_token_seconds_count {service.first_tokens}",
    ]
    return "\n".join(lines) + "\n"
