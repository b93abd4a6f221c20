"""LoRA: products of two thin matrices that are added to a model's linear maps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.errors import FormatError, LbrxError
from lbrx.files.stored.adapters import PREFIX, WEIGHTS, write_adapter
from lbrx.files.stored.load_and_save import load
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Linear
from lbrx.nn import Module
from lbrx.tensors import random
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor, zeros

ROUTERS = frozenset(("gate", "shared_expert_gate"))
"""Maps that choose experts, which are not trained."""


class Factors(Module):
    """scale * (x @ a.T) @ b.T, in float32, and in the dtype of x."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float, device: str) -> None:
        super().__init__()
        limit = 1 / math.sqrt(inputs)
        self.a = random.uniform((rank, inputs), -limit, limit, device=device)
        self.b = zeros((outputs, rank), device=device)
        self._scale = scale

    def __call__(self, x: Tensor) -> Tensor:
        made = (x.astype(dt.float32) @ self.a.mT) @ self.b.mT * self._scale
        return made.astype(x.dtype)


class LowRank(Module):
    """An adapter of a network: factors for each of some linear maps."""

    def __init__(self, maps: Sequence[Linear], rank: int, scale: float, device: str) -> None:
        super().__init__()
        self._maps = list(maps)
        self._rank = rank
        self._alpha = scale * rank
        self.factors = []
        for each in maps:
            outputs, inputs = each.weight.shape
            made = Factors(inputs, outputs, min(rank, inputs, outputs), scale, device)
            self.factors.append(made)
            each.update = made

    @property
    def count(self) -> int:
        """The number of trained values."""
        return sum(each.a.size + each.b.size for each in self.factors)

    def named(self) -> dict[str, NDArray[Any]]:
        """The tensors by PEFT's names, with the rows of Hugging Face's layout."""
        found = {}
        for own, factors in zip(self._maps, self.factors, strict=True):
            name = f"{PREFIX}{own.name}"
            found[f"{name}.lora_A.weight"] = factors.a.numpy()
            b = factors.b.numpy()
            found[f"{name}.lora_B.weight"] = _by_halves(b, own) if own.paired else b
        return found

    def config(self, base: str) -> dict[str, Any]:
        """PEFT's adapter_config.json."""
        ranks = {own.name: f.a.shape[0] for own, f in zip(self._maps, self.factors, strict=True)}
        smaller = {name: rank for name, rank in ranks.items() if rank != self._rank}
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self._rank,
            "lora_alpha": self._alpha,
            "lora_dropout": 0.0,
            "target_modules": sorted({name.rpartition(".")[2] for name in ranks}),
            "layers_to_transform": _layers(ranks),
            "modules_to_save": None,
            "bias": "none",
            "rank_pattern": smaller,
            "alpha_pattern": {
                name: self._alpha / self._rank * rank for name, rank in smaller.items()
            },
            "fan_in_fan_out": False,
            "inference_mode": True,
        }

    def save(self, target: Path, base: str) -> None:
        """Write the adapter as PEFT reads it."""
        write_adapter(target, self.named(), self.config(base))

    def restore(self, folder: Path) -> None:
        """Read the tensors that `save` wrote, bit for bit."""
        stored = dict(load(folder / WEIGHTS[0]))
        for own, factors in zip(self._maps, self.factors, strict=True):
            for part, letter in (("a", "A"), ("b", "B")):
                name = f"{PREFIX}{own.name}.lora_{letter}.weight"
                old = getattr(factors, part)
                if name not in stored or stored[name].shape != old.shape:
                    raise FormatError(f"{folder} is not a checkpoint of this run: {name} differs")
                values = stored[name].numpy()
                if own.paired and part == "b":
                    values = _by_neighbours(values, own)
                setattr(factors, part, tensor(values, device=old.device))

    def detach(self) -> None:
        """Take the adapter off the network."""
        for each in self._maps:
            each.update = None


def _by_halves(rows: NDArray[Any], own: Linear) -> NDArray[Any]:
    """Rows whose neighbours RoPE rotates together, as Hugging Face has them: one half of a head
    after the other."""
    size = own.head_size
    paired = rows.reshape(-1, size // 2, 2, rows.shape[1])
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(rows.shape))


def _by_neighbours(rows: NDArray[Any], own: Linear) -> NDArray[Any]:
    """The inverse of `_by_halves`."""
    size = own.head_size
    halves = rows.reshape(-1, 2, size // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def _layers(ranks: Mapping[str, int]) -> list[int] | None:
    """The numbers of the layers that have factors."""
    parts = [part for name in ranks for part in name.split(".") if part.isdigit()]
    return sorted({int(part) for part in parts}) or None


def attach(
    network: Decoder, *, rank: int, scale: float, layers: int, targets: Sequence[str]
) -> LowRank:
    """New factors for linear maps of a network: of the last layers, or all for 0, and with the last
    names of `targets`, or all."""
    chosen = network.layers[-layers:] if layers else network.layers
    maps = list(dict.fromkeys(found for layer in chosen for found in _linears(layer)))
    own = {each.name.rpartition(".")[2] for each in maps}
    if unknown := sorted(set(targets) - own):
        raise LbrxError(
            f"the layers have no linear map {unknown[0]!r}: give some of {', '.join(sorted(own))}"
        )
    wanted = set(targets) or own - ROUTERS
    maps = [each for each in maps if each.name.rpartition(".")[2] in wanted]
    if not maps:
        raise LbrxError("this architecture has no linear maps that LoRA can change yet")
    return LowRank(maps, rank, scale, network.device)


def _linears(part: Any) -> Iterator[Linear]:
    """The linear maps in a layer, in the order of its attributes."""
    if isinstance(part, Linear):
        yield part
    elif isinstance(part, list | tuple):
        for item in part:
            yield from _linears(item)
    elif type(part).__module__.startswith("lbrx.models"):
        for value in vars(part).values():
            yield from _linears(value)
