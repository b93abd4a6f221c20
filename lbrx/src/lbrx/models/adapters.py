"""LoRA adapters beside the weights: x @ W.T + (x @ A.T) @ B.T, so that W stays as it is stored.
DoRA's multiply each row of the result by its magnitude over the norm of the row of W + B A."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.errors import FormatError, LbrxError
from lbrx.files.stored.adapters import Adapter, read_adapter
from lbrx.files.stored.recipe_arrays import RecipeArrays
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import tensor
from lbrx.tensors.long_lived import keep
from lbrx.tensors.quantized import linear

AdapterLike = str | PathLike[str]
DECODED = 1 << 22
"""Elements of a weight that are decoded at a time for the norms of its rows."""
_SCALED = re.compile(r"(?P<path>.+):(?P<scale>[-+]?[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?)")


class LowRankUpdate:
    """What adapters make of products with one matrix."""

    def __init__(self, down: Tensor, up: Tensor, factors: Tensor | None = None) -> None:
        self.down = down
        """(ranks of all adapters, inputs)"""
        self.up = up
        """(outputs, ranks), with the scales."""
        self.factors = factors
        """What DoRA multiplies the results by."""

    def __call__(self, x: Tensor, product: Tensor) -> Tensor:
        total = product + linear(linear(x, self.down), self.up)
        return total if self.factors is None else total * self.factors


def row_squares(weight: Tensor) -> Tensor:
    """The sum of the squares of each row, in float32. Some rows are decoded at a time."""
    rows, columns = weight.shape
    step = max(DECODED // max(columns, 1), 1)
    parts = [weight[i : i + step].astype(dt.float32).square() for i in range(0, rows, step)]
    return call("concat", *(part.sum(axis=1) for part in parts), axis=0)


def row_norms(weight: Tensor, squares: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """The norms of the rows of weight + up @ down, in float32, from the sums of squares of the
    weight's rows: that matrix is not computed."""
    along = linear(down, weight).astype(dt.float32).T
    changes = (up * (along * 2 + up @ (down @ down.T))).sum(axis=1)
    return call("maximum", squares + changes, 0).sqrt()


@dataclass(frozen=True)
class ScaledAdapter:
    """An adapter, and what its scale is multiplied by."""

    adapter: Adapter
    factor: float


class Adapters:
    """The adapters of a model, which may be several at once."""

    def __init__(self, given: Sequence[AdapterLike]) -> None:
        self.adapters = [_read(each) for each in given]
        self._arrays = RecipeArrays()
        self._used: set[str] = set()

    @property
    def modules(self) -> set[str]:
        """The names of the matrices that are changed."""
        return {module for each in self.adapters for module in each.adapter.parts}

    def update(
        self,
        module: str,
        weight: Tensor,
        order: NDArray[np.intp] | None,
        dtype: Dtype,
    ) -> LowRankUpdate | None:
        """What is made of products with a matrix (outputs, inputs); its rows may have another
        order than Hugging Face's."""
        downs, ups = [], []
        magnitudes: NDArray[np.float32] | None = None
        shape = weight.shape
        for each in self.adapters:
            if module not in each.adapter.parts:
                continue
            parts = each.adapter.parts[module]
            down, up = (self._values(parts[name]) for name in ("lora_A", "lora_B"))
            if (len(up), down.shape[1]) != shape:
                raise FormatError(
                    f"{each.adapter.path}: {module} changes a matrix of "
                    f"{(len(up), down.shape[1])}, and the model's is {shape}: the adapter belongs "
                    "to another model"
                )
            downs.append(down)
            scaled = up * np.float32(each.adapter.scale(module) * each.factor)
            ups.append(scaled if order is None else scaled[order])
            if "lora_magnitude_vector" in parts:
                own = self._values(parts["lora_magnitude_vector"]).reshape(-1)
                magnitudes = own if order is None else own[order]
        if not downs:
            return None
        self._used.add(module)
        both = np.concatenate(downs), np.concatenate(ups, axis=1)
        if magnitudes is None:
            return LowRankUpdate(*(tensor(x, dtype=dtype, device=weight.device) for x in both))
        if len(downs) > 1:
            raise LbrxError(
                f"{module} is changed by DoRA and another adapter: give one adapter, or "
                "BASE+ADAPTER as the model, which computes the changed weights"
            )
        lower, upper, sizes = (tensor(x, device=weight.device) for x in (*both, magnitudes))
        factors = sizes / row_norms(weight, row_squares(weight), lower, upper)
        every = (lower, upper, factors)
        return LowRankUpdate(*(keep(x.astype(dtype), weight.device) for x in every))

    def _values(self, info: object) -> NDArray[np.float32]:
        array = self._arrays.array(info)  # type: ignore[arg-type]
        return np.asarray(array.numpy(), np.float32)

    def check_used(self) -> None:
        """Raise FormatError if an adapter changes what no linear map of the network has."""
        left = sorted(self.modules - self._used)
        if left:
            raise FormatError(
                f"an adapter changes {left[0]}, which is not a linear map of this network: give "
                "BASE+ADAPTER as the model, which computes the changed weights"
            )

    def fingerprint(self) -> str:
        """A hash of the adapters' files and factors."""
        seen = hashlib.sha256()
        for each in self.adapters:
            seen.update(repr((each.factor, dict(each.adapter.settings))).encode())
            for parts in each.adapter.parts.values():
                for info in parts.values():
                    seen.update(self._values(info).tobytes())
        return seen.hexdigest()


def _read(given: AdapterLike) -> ScaledAdapter:
    """An adapter from `PATH` or `PATH:scale`."""
    path, factor = fspath(given), 1.0
    found = _SCALED.fullmatch(path)
    if found is not None and not Path(path).exists():
        path, factor = found["path"], float(found["scale"])
    adapter = read_adapter(path)
    kind = ""
    if adapter.saved:
        kind = "whole tensors beside its products"
    elif any("embed" in module.rpartition(".")[2] for module in adapter.parts):
        kind = "changed embeddings"
    elif adapter.settings.get("fan_in_fan_out"):
        kind = "matrices with inputs first"
    if kind:
        raise LbrxError(
            f"{path} has {kind}, which is not added beside packed weights: give BASE+{path} as the "
            "model, which computes the changed weights"
        )
    return ScaledAdapter(adapter, factor)
