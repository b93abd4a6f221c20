"""Recurrent layers over sequences (..., length, features): all hidden states are returned."""

from __future__ import annotations

import math
from collections.abc import Callable

from lbrx.nn.module import Module
from lbrx.tensors import quantized, random
from lbrx.tensors.core import Tensor, call


def _joined(steps: list[Tensor]) -> Tensor:
    """The states of all steps, with the steps in the second-last axis."""
    return call("concat", *(step[..., None, :] for step in steps), axis=steps[0].ndim - 1)


class _Recurrent(Module):
    """Weights for inputs and hidden states, of several gates one after the other."""

    _gates = 1
    _names = ("Wx", "Wh")

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self._hidden_size = hidden_size
        self._scale = 1 / math.sqrt(hidden_size)
        for name, columns in zip(self._names, (input_size, hidden_size), strict=True):
            setattr(self, name, self._drawn(self._gates * hidden_size, columns))

    def _drawn(self, *shape: int) -> Tensor:
        return random.uniform(shape, -self._scale, self._scale)

    def _extra_repr(self) -> str:
        inputs = getattr(self, self._names[0]).shape[1]
        return f"input_dims={inputs}, hidden_size={self._hidden_size}"

    def _projected(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The inputs of all steps times their weights, in one product."""
        return quantized.linear(x, getattr(self, self._names[0]), bias)


class RNN(_Recurrent):
    """h' = tanh(x @ Wxh.T + h @ Whh.T + bias), or with another nonlinearity."""

    _names = ("Wxh", "Whh")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self._nonlinearity = nonlinearity or (lambda x: x.tanh())
        if bias:
            self.bias = self._drawn(hidden_size)

    def __call__(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        projected = self._projected(x, getattr(self, "bias", None))
        states = []
        for i in range(x.shape[-2]):
            step = projected[..., i, :]
            if hidden is not None:
                step = step + quantized.linear(hidden, self.Whh)
            hidden = self._nonlinearity(step)
            states.append(hidden)
        return _joined(states)

    Whh: Tensor


class GRU(_Recurrent):
    """Gated recurrent unit: reset and update gates r and z, and new values n, in this order.

    n = tanh(x + r * (h @ Whn.T + bhn)), and h' = (1 - z) * n + z * h.
    """

    _gates = 3

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        if bias:
            self.b = self._drawn(3 * hidden_size)
            self.bhn = self._drawn(hidden_size)

    def __call__(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        size = self._hidden_size
        projected = self._projected(x, getattr(self, "b", None))
        states = []
        for i in range(x.shape[-2]):
            gates, new = projected[..., i, : 2 * size], projected[..., i, 2 * size :]
            change = getattr(self, "bhn", None)
            if hidden is not None:
                from_hidden = quantized.linear(hidden, self.Wh)
                gates = gates + from_hidden[..., : 2 * size]
                own = from_hidden[..., 2 * size :]
                change = own if change is None else own + change
            gates = gates.sigmoid()
            reset, update = gates[..., :size], gates[..., size:]
            new = (new if change is None else new + reset * change).tanh()
            kept = (1 - update) * new
            hidden = kept if hidden is None else kept + update * hidden
            states.append(hidden)
        return _joined(states)

    Wh: Tensor


class LSTM(_Recurrent):
    """Long short-term memory: input and forget gates, new values and output gate, in this order.

    Returns the hidden states and the cell states of all steps.
    """

    _gates = 4

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        if bias:
            self.bias = self._drawn(4 * hidden_size)

    def __call__(
        self, x: Tensor, hidden: Tensor | None = None, cell: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        size = self._hidden_size
        projected = self._projected(x, getattr(self, "bias", None))
        states, cells = [], []
        for i in range(x.shape[-2]):
            gates = projected[..., i, :]
            if hidden is not None:
                gates = gates + quantized.linear(hidden, self.Wh)
            entering, kept, new, shown = (gates[..., j * size : (j + 1) * size] for j in range(4))
            added = entering.sigmoid() * new.tanh()
            cell = added if cell is None else kept.sigmoid() * cell + added
            hidden = shown.sigmoid() * cell.tanh()
            states.append(hidden)
            cells.append(cell)
        return _joined(states), _joined(cells)

    Wh: Tensor
