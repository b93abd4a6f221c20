"""Devices of several kinds for tests of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from device_memory import GPU

from lbrx import metal


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("lbrx-kernels"))


@pytest.fixture
def on_chip(
    monkeypatch: pytest.MonkeyPatch, kernel_cache: str
) -> Callable[[str], AbstractContextManager[metal.Context]]:
    """`with on_chip("m1"):` runs with a soft device that says it is an Apple M1."""

    @contextmanager
    def entered(chip: str) -> Iterator[metal.Context]:
        metal.context().close()
        with monkeypatch.context() as patch:
            patch.setenv("SOFTMETAL_PROFILE", f"apple-{chip}")
            patch.setenv("LBRX_CACHE", kernel_cache)
            if GPU:  # it has a name of its own; processors play chips
                patch.delenv("SOFTMETAL_DEVICE")
            try:
                yield metal.context()
            finally:
                metal.context().close()

    return entered
