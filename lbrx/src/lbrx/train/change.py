"""What a run trains: tensors that are written, and read again, as PEFT's adapter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import FormatError
from lbrx.files.stored.adapters import WEIGHTS, write_adapter
from lbrx.files.stored.load_and_save import load
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Linear
from lbrx.models.weights import Weights
from lbrx.nn import Module
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor


class Entry(NamedTuple):
    """A trained tensor: its name in PEFT's file, and where it is kept."""

    name: str
    kept: MutableMapping[str, Any]
    key: str
    head_size: int = 0
    """That of rows whose neighbours RoPE rotates together; 0 for other rows."""


class Change(Module):
    """What training makes of a network."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """The trained tensors."""

    @abstractmethod
    def config(self, base: str) -> dict[str, Any]:
        """PEFT's adapter_config.json."""

    @abstractmethod
    def attach(self) -> None:
        """Have the network compute with the tensors."""

    @property
    def count(self) -> int:
        """The number of trained values."""
        return sum(each.kept[each.key].size for each in self.entries())

    def save(self, target: Path, base: str) -> None:
        """Write the tensors as PEFT reads them, with the rows of Hugging Face's layout."""
        tensors = {each.name: _by_halves(_values(each), each.head_size) for each in self.entries()}
        write_adapter(target, tensors, self.config(base))

    def restore(self, folder: Path) -> None:
        """Read the tensors that `save` wrote, bit for bit."""
        stored = dict(load(folder / WEIGHTS[0]))
        for name, kept, key, head_size in self.entries():
            old: Tensor = kept[key]
            if name not in stored or stored[name].shape != old.shape:
                raise FormatError(f"{folder} is not a checkpoint of this run: {name} differs")
            values = _by_neighbours(stored[name].numpy(), head_size)
            kept[key] = tensor(values, device=old.device)
        self.attach()


def _values(entry: Entry) -> NDArray[Any]:
    found: NDArray[Any] = entry.kept[entry.key].numpy()
    return found


def _by_halves(rows: NDArray[Any], size: int) -> NDArray[Any]:
    """Rows whose neighbours RoPE rotates together, as Hugging Face has them: one half of a head
    after the other."""
    if not size:
        return rows
    paired = rows.reshape(-1, size // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(rows.shape))


def _by_neighbours(rows: NDArray[Any], size: int) -> NDArray[Any]:
    """The inverse of `_by_halves`."""
    if not size:
        return rows
    halves = rows.reshape(-1, 2, size // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def chosen_parts(network: Decoder, layers: int) -> list[Any]:
    """The last layers of a network, or for 0 all."""
    return list(network.layers[-layers:] if layers else network.layers)


def parts_of(part: Any) -> Iterator[Any]:
    """A part of a network and the parts in it, in the order of its attributes."""
    if isinstance(part, list | tuple):
        for item in part:
            yield from parts_of(item)
    elif type(part).__module__.startswith("lbrx.models") and not isinstance(part, Weights):
        yield part
        for value in vars(part).values():
            yield from parts_of(value)


def linears_of(parts: Any) -> list[Linear]:
    """The linear maps in parts of a network, each once."""
    return list(dict.fromkeys(each for each in parts_of(parts) if isinstance(each, Linear)))
