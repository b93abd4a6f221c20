"""Full fine-tunes: a network's own weights, in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.files.stored.adapters import PREFIX
from lbrx.models.decoder import Decoder
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.long_lived import keep
from lbrx.train.change import Change, Entry, chosen_parts, parts_of
from lbrx.train.low_rank import chosen_maps


class FloatWeights(Weights):
    """Weights in float32, with the names of the matrices and vectors that were taken. The stacks of
    experts stay as they are stored."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.taken: dict[int, Taken] = {}
        """What was taken, below any prefix, by the identity of the tensor."""

    def vector(self, name: str, *shape: int) -> Tensor:
        return self._noted(name, super().vector(name, *shape))

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        wide = self._tensor(name, (rows, columns)).astype(dt.float32)
        return self._noted(name, keep(wide, self.device))

    def _noted(self, name: str, taken: Tensor) -> Tensor:
        size = self.head_size if self.has_pairs else 0
        self.taken[id(taken)] = Taken(f"{self.prefix}{name}", taken, size)
        return taken


@dataclass
class Taken:
    """A tensor of a network, with the attributes that hold it."""

    name: str
    value: Tensor
    head_size: int
    places: list[tuple[Any, str]] = field(default_factory=list)


class WholeWeights(Change):
    """Weights of a network that are trained themselves: linear maps, and with all of them norms,
    embedding and output."""

    def __init__(self, network: Decoder, layers: int, targets: Sequence[str]) -> None:
        super().__init__()
        assert isinstance(network.weights, FloatWeights)
        known = network.weights.taken
        maps = chosen_maps(network, layers, targets)
        whole = chosen_parts(network, layers) if layers else [network]
        self._places = {
            each.name: each for each in _placed(maps if targets else whole, known) if each.places
        }
        self.values = {name: each.value for name, each in self._places.items()}

    def attach(self) -> None:
        for name, value in self.values.items():
            for part, attribute in self._places[name].places:
                setattr(part, attribute, value)

    def update(self, parameters: Mapping[str, Any], strict: bool = True) -> WholeWeights:
        super().update(parameters, strict)
        self.attach()
        return self

    def entries(self) -> Iterator[Entry]:
        for name, each in self._places.items():
            yield Entry(f"{PREFIX}{name}", self.values, name, each.head_size)

    def config(self, base: str) -> dict[str, Any]:
        """An adapter of whole tensors alone, which replace those of the model."""
        modules = {name.rpartition(".")[0] for name in self.values}
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": 1,
            "lora_alpha": 1,
            "target_modules": [],
            "modules_to_save": sorted({name.rpartition(".")[2] for name in modules}),
            "inference_mode": True,
        }


def _placed(parts: Sequence[Any], known: Mapping[int, Taken]) -> list[Taken]:
    """The tensors that parts of a network hold, with their places."""
    for part in {id(each): each for each in parts_of(list(parts))}.values():
        for attribute, value in vars(part).items():
            if isinstance(value, Tensor) and id(value) in known:
                known[id(value)].places.append((part, attribute))
    return list(known.values())
