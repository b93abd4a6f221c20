"""What lbrx assumes of Apple's software and GPUs, tried: docs/howto/mac.md lists each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import lbrx
from lbrx.arrays.storage.mapped import MmapStorage
from lbrx.kernels import forced
from lbrx.mac_report.steps import Recorder
from lbrx.metal import context
from lbrx.metal.encoder_library import encoder_library
from lbrx.metal.replay_choice import replay_choice

LONG_FILE = 5 << 30  # bytes, of which few are on the disk
PLACE = (9 << 29) + 4096  # of its data: above 4 GiB

ELEMENTS = """
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
kernel void elements(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                     uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 m;
  simdgroup_load(m, x);
  out[2 * lane] = m.thread_elements()[0];
  out[2 * lane + 1] = m.thread_elements()[1];
}
"""


def record_assumptions(record: Recorder) -> None:
    tried: dict[str, Callable[[dict[str, Any]], None]] = {
        "elements of a matrix": _elements,
        "replay by indirect command buffers": _listed,
        "replay by encoding": _encoded,
        "offsets above 4 GiB": _far,
        "long sums by MPS": _long_sums,
        "what kernels write": _written,
        "archives": _archives,
        "residency": _residency,
    }
    for name, try_ in tried.items():
        if not record.skips(name):
            with record.trying(name) as values:
                try_(values)


def _require(right: bool, text: str) -> None:
    if not right:
        raise ArithmeticError(text)


def _elements(values: dict[str, Any]) -> None:
    """Which elements a lane holds, as tile.h says."""
    gpu = context()
    x, out = gpu.upload(np.arange(64, dtype=np.float32)), gpu.buffer(256)
    pipeline = gpu.shaders.pipeline("elements", "elements", source=ELEMENTS)
    gpu.queue.dispatch(pipeline, [x, out], (32, 1, 1), (32, 1, 1))
    found = out.array(np.float32).astype(int).tolist()
    want = []
    for lane in range(32):
        row = (lane >> 4 & 1) * 4 + (lane >> 2 & 1) * 2 + (lane >> 1 & 1)
        column = (lane >> 3 & 1) * 4 + (lane & 1) * 2
        want += [8 * row + column, 8 * row + column + 1]
    values["found"] = found
    _require(found == want, "lanes hold other elements than the tiles of products assume")


@contextmanager
def _setting(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _replay(way: str) -> None:
    with _setting("LBRX_REPLAY", way):
        step = lbrx.compile(lambda x: [(x * 2 + i).softmax(axis=-1) for i in range(12)])
        for scale in (1.0, 2.0, 3.0):
            x = lbrx.tensor(np.linspace(-scale, scale, 256).reshape(8, 32), dtype="float32",
                            device="metal")  # fmt: skip
            for i, found in enumerate(step(x)):
                want = (x * 2 + i).softmax(axis=-1).numpy()
                _require(np.array_equal(found.numpy(), want), f"result {i} differs")


def _listed(values: dict[str, Any]) -> None:
    """Also on GPUs where `auto` encodes: then it says whether it would have worked."""
    kind, reason = replay_choice(context().info)
    values.update(chosen=kind, reason=reason)
    _replay("icb")


def _encoded(values: dict[str, Any]) -> None:
    """By the library where the installation has it, else by PyObjC's calls."""
    values["library"] = encoder_library() is not None
    _replay("encode")


def _far(values: dict[str, Any]) -> None:
    """Weights at the end of a file that one buffer of 32-bit offsets cannot reach."""
    rows = np.random.default_rng(4).standard_normal((64, 64)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder, _setting("LBRX_REPLAY", "icb"):
        path = Path(folder) / "weights"
        with path.open("wb") as file:
            file.truncate(LONG_FILE)
            file.seek(PLACE)
            file.write(rows.tobytes())
        part = MmapStorage(path).host()[PLACE : PLACE + rows.nbytes]
        array = part.view(np.float32).reshape(rows.shape)
        weight = lbrx.from_numpy(array, device="metal")
        step = lbrx.compile(lambda x: [(x + i) * weight for i in range(12)])
        x = lbrx.ones(rows.shape, device="metal")
        for _ in range(2):
            found = [y.numpy() for y in step(x)]
        for i, each in enumerate(found):
            _require(np.array_equal(each, (1 + i) * rows), "weights above 4 GiB are read wrongly")


def _long_sums(values: dict[str, Any]) -> None:
    """MPS is wrong from 32767 terms on where lbrx does not choose it."""
    for terms in (32766, 32767, 40000):
        x, y = np.random.default_rng(6).standard_normal((2, 64, terms)).astype(np.float32)
        a, b = (lbrx.tensor(each, device="metal") for each in (x, y))
        with forced(matmul="mps"):
            found = (a @ b.T).numpy()
        want = x.astype(float) @ y.T.astype(float)
        values[f"error at {terms}"] = error = float(np.abs(found - want).max() / np.abs(want).max())
        _require(error < 1e-3, f"a product with sums of {terms} terms is {error} off")


def _written(values: dict[str, Any]) -> None:
    gpu = context()
    pipeline = gpu.shaders.pipeline("written", "elements", source=ELEMENTS)
    _require(
        pipeline.written == frozenset({1}), f"reflection says that {pipeline.written} are written"
    )


def _archives(values: dict[str, Any]) -> None:
    gpu = context()
    gpu.shaders.pipeline("random", "random_uniform_float32")
    gpu.shaders.save()
    archive = gpu.shaders._library("random", None, False).archive
    values["archive"] = archive.opened() is not None
    values["file"] = archive.path.exists()


def _residency(values: dict[str, Any]) -> None:
    gpu = context()
    values["sets"] = gpu.residency.members is not None
    buffer = gpu.heap_buffer(1 << 20, "mac report")
    _require(buffer.size == 1 << 20, "a heap's buffer has another size")
