"""LoRA and DoRA: products of two thin matrices that are added to a model's linear maps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.errors import LbrxError
from lbrx.files.stored.adapters import PREFIX
from lbrx.gradients.functions import stop_gradient
from lbrx.models.adapters import row_norms, row_squares
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Linear
from lbrx.nn import Module
from lbrx.tensors import random
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import zeros
from lbrx.train.change import Change, Entry, chosen_parts, linears_of

ROUTERS = frozenset(("gate", "shared_expert_gate"))
"""Maps that choose experts, which are not trained."""


class Factors(Module):
    """product + scale * (x @ a.T) @ b.T, in float32, and in the dtype of the product."""

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        rank = min(rank, inputs, outputs)
        limit = 1 / math.sqrt(inputs)
        self.a = random.uniform((rank, inputs), -limit, limit, device=weight.device)
        self.b = zeros((outputs, rank), device=weight.device)
        self._scale = scale

    def __call__(self, x: Tensor, product: Tensor) -> Tensor:
        made = (x.astype(dt.float32) @ self.a.mT) @ self.b.mT * self._scale
        return product + made.astype(product.dtype)


class DirectedFactors(Factors):
    """DoRA's: the rows of weight + scale * b @ a are brought to the lengths `m`.

    Their norms count as constants for the gradient, as PEFT and MLX have it. The weight stays as it
    is stored.
    """

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__(weight, rank, scale)
        self._weight = weight
        self._squares = row_squares(weight)
        self.m = self._squares.sqrt()

    def __call__(self, x: Tensor, product: Tensor) -> Tensor:
        a, b = stop_gradient(self.a), stop_gradient(self.b) * self._scale
        shares = self.m / row_norms(self._weight, self._squares, a, b)
        return super().__call__(x, product) * shares.astype(product.dtype)


class LowRank(Change):
    """An adapter of a network: factors for each of some linear maps."""

    def __init__(
        self, maps: Sequence[Linear], rank: int, scale: float, *, directed: bool = False
    ) -> None:
        super().__init__()
        kind = DirectedFactors if directed else Factors
        self._maps = list(maps)
        self._rank = rank
        self._alpha = scale * rank
        self._directed = directed
        self.factors = [kind(each.weight, rank, scale) for each in maps]
        self.attach()

    def attach(self) -> None:
        for own, factors in zip(self._maps, self.factors, strict=True):
            own.update = factors

    def detach(self) -> None:
        """Take the adapter off the network."""
        for each in self._maps:
            each.update = None

    def entries(self) -> Iterator[Entry]:
        for own, factors in zip(self._maps, self.factors, strict=True):
            name, size = f"{PREFIX}{own.name}", own.head_size if own.paired else 0
            yield Entry(f"{name}.lora_A.weight", vars(factors), "a")
            yield Entry(f"{name}.lora_B.weight", vars(factors), "b", size)
            if self._directed:
                yield Entry(f"{name}.lora_magnitude_vector", vars(factors), "m", size)

    def config(self, base: str) -> dict[str, Any]:
        ranks = {own.name: f.a.shape[0] for own, f in zip(self._maps, self.factors, strict=True)}
        smaller = {name: rank for name, rank in ranks.items() if rank != self._rank}
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self._rank,
            "lora_alpha": self._alpha,
            "lora_dropout": 0.0,
            "use_dora": self._directed,
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


def _layers(ranks: Mapping[str, int]) -> list[int] | None:
    """The numbers of the layers that have factors."""
    parts = [part for name in ranks for part in name.split(".") if part.isdigit()]
    return sorted({int(part) for part in parts}) or None


def chosen_maps(network: Decoder, layers: int, targets: Sequence[str]) -> list[Linear]:
    """Linear maps of a network: of the last layers, or all for 0, and with the last names of
    `targets`, or all but routers."""
    maps = linears_of(chosen_parts(network, layers))
    own = {each.name.rpartition(".")[2] for each in maps}
    if unknown := sorted(set(targets) - own):
        raise LbrxError(
            f"the layers have no linear map {unknown[0]!r}: give some of {', '.join(sorted(own))}"
        )
    wanted = set(targets) or own - ROUTERS
    maps = [each for each in maps if each.name.rpartition(".")[2] in wanted]
    if not maps:
        raise LbrxError("this architecture has no linear maps that can be trained yet")
    return maps
