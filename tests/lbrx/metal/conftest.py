"""A context of its own for each test, with its pipelines in a folder of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbrx.metal import Context, Event


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
def gate(gpu: Context) -> Iterator[Event]:
    """Holds the device until the test calls `release`, or ends."""
    event = gpu.event()
    event.hold()
    yield event
    if not event.query():
        event.release()
