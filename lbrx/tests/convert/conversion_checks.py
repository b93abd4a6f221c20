"""Comparisons for tests of conversions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from lbrx.convert import Result, Settings, convert


def to(
    source: Path,
    target: Path,
    *,
    resume: bool = False,
    force: bool = False,
    durable: bool | None = None,
    **settings: Any,
) -> Result:
    """Convert on the CPU, which compiles no kernels."""
    return convert(
        source,
        target,
        Settings(**settings),
        resume=resume,
        force=force,
        durable=durable,
        device="cpu",
    )


def contents(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of the files of a folder, by name."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in files}


def gguf_values(path: Path) -> dict[str, NDArray[np.float32]]:
    """The tensors as the gguf package reads them."""
    return {
        t.name: gguf.dequantize(t.data, t.tensor_type).reshape(t.shape.tolist()[::-1])
        for t in gguf.GGUFReader(path).tensors
    }


def gguf_types(path: Path) -> dict[str, str]:
    return {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}


def in_pairs(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of heads in llama.cpp's order."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def relative(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The root of the mean squared error, relative to the values'."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.sqrt(np.square(found - expected).sum() / np.square(expected).sum()))
