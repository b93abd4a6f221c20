"""A new context for each test, with its pipelines in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lbrx.metal import Context, DeviceEvent, Pipeline
from lbrx.metal import context as shared_context
from lbrx.metal.replay_choice import replay_choice

WORDS = """
#include <metal_stdlib>
using namespace metal;
kernel void fill(device uint* out [[buffer(0)]], constant uint& value [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) { out[i] = value; }
kernel void copy(device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) { out[i] = in[i]; }
"""


@pytest.fixture(scope="session")
def lbrx_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("lbrx-cache"))


@pytest.fixture
def gpu(lbrx_cache: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setenv("LBRX_CACHE", lbrx_cache)
    context = Context()
    yield context
    context.close()


@pytest.fixture
def replay_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Chooses how recorded commands run again, and skips a test of what the device cannot."""

    def choose(way: str) -> None:
        monkeypatch.delenv("LBRX_REPLAY", raising=False)
        if way == "icb" and replay_choice(shared_context().info).kind != "icb":
            pytest.skip("this GPU does not run indirect commands")
        monkeypatch.setenv("LBRX_REPLAY", way)

    return choose


@pytest.fixture
def gate(gpu: Context) -> Iterator[DeviceEvent]:
    """Holds the device until the test calls `release`, or ends."""
    event = gpu.event()
    event.hold()
    yield event
    if not event.query():
        event.release()


@pytest.fixture
def fill(gpu: Context) -> Pipeline:
    """A kernel that writes a word everywhere."""
    return gpu.shaders.pipeline("words", "fill", source=WORDS)


@pytest.fixture
def copy(gpu: Context) -> Pipeline:
    return gpu.shaders.pipeline("words", "copy", source=WORDS)
