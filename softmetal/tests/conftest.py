"""Fixtures: the Metal module of this system, and wheels of other projects to compare with."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from wheels import wheel

if target := os.environ.get("SOFTMETAL_TEST_TARGET"):
    from emulated import install

    install(target)


@pytest.fixture(scope="session")
def metal_wheel() -> Path:
    return wheel("pyobjc-framework-Metal")


@pytest.fixture(scope="session")
def mps_wheel() -> Path:
    return wheel("pyobjc-framework-MetalPerformanceShaders")


@pytest.fixture(scope="session")
def mlx_include(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The headers in MLX's wheel: its Metal kernels, and metal-cpp."""
    folder = tmp_path_factory.mktemp("mlx")
    with zipfile.ZipFile(wheel("mlx-metal")) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith("mlx/include/")])
    return folder / "mlx" / "include"


@pytest.fixture(scope="session")
def selectors(mlx_include: Path) -> set[str]:
    """Every selector of Metal, from the header that metal-cpp keeps them in."""
    text = (mlx_include / "metal_cpp" / "Metal" / "MTLHeaderBridge.hpp").read_text()
    return set(re.findall(r'_MTL_PRIVATE_DEF_SEL\(\w+,\s*"([^"]+)"\)', text))


@pytest.fixture(autouse=True, scope="module")
def _own_registrations() -> Iterator[None]:
    """What other code of this process has registered as a result is not one here."""
    if sys.platform == "darwin":
        yield
        return
    from softmetal.api import objc

    others = {key: objc.registrations[key] for key in objc.registrations if "reflection:" in key[1]}
    for key in others:
        del objc.registrations[key]
    yield
    objc.registrations.update(others)


@pytest.fixture(autouse=True)
def _bridge(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that also run on Apple's Metal module cross PyObjC's bridge there: they are judged."""
    if sys.platform == "darwin" or request.node.get_closest_marker("metal") is None:
        yield
        return
    from softmetal import bridge

    with bridge.judging():
        yield


@pytest.fixture(scope="session")
def metal() -> ModuleType:
    """Apple's Metal on a Mac, softmetal elsewhere."""
    if sys.platform == "darwin":
        module = pytest.importorskip("Metal")
        objc = import_module("objc")
    else:
        import softmetal as module
        from softmetal.api import objc
    # PyObjC declares these structures as integers.
    size = {"type": b"{MTLSize=QQQ}"}
    sizes = {"arguments": {2: size, 3: size}}
    for what in (b"Threadgroups", b"Threads"):
        selector = b"concurrentDispatch" + what + b":threadsPerThreadgroup:"
        objc.registerMetaDataForSelector(b"NSObject", selector, sizes)
    return module


@pytest.fixture(scope="session")
def device(metal):
    return metal.MTLCreateSystemDefaultDevice()
