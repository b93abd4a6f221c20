"""Recurrent layers over sequences (time, batch, features).

All gates of all steps take one product with the inputs, and each step one with its state. State and
sums are float32 from the first step to the last: only the results are rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.activation import hard_logistic, logistic, rectified
from softcoreml.operations.arguments import Array, define, require_rank, widen
from softcoreml.operations.registry import Function
from softcoreml.operations.widening import widen_weight

_ACTIVATIONS: dict[str, Function] = {
    "hard_sigmoid": hard_logistic,
    "linear": lambda x: x,
    "relu": rectified,
    "scaled_tanh": np.tanh,  # a recurrent layer's has the scales 1 and 1
    "sigmoid": logistic,
    "sigmoid_hard": hard_logistic,
    "tanh": np.tanh,
}


def _activation(name: str, parameter: str) -> Function:
    found = _ACTIVATIONS.get(str(name).lower())
    if found is None:
        known = ", ".join(_ACTIVATIONS)
        raise ModelError(f"{parameter} {name!r} is unknown: give one of {known}")
    return found


def _inputs(
    x: Array, weight_ih: Array, weight_hh: Array, bias: Array | None, gates: int
) -> tuple[Array, Array]:
    """The inputs' part of every gate (time, batch, gates * hidden), and the state's weights."""
    x, ih, hh = widen(x), widen_weight(weight_ih), widen_weight(weight_hh)
    require_rank(x, "x", 3)
    hidden = hh.shape[-1]
    if ih.shape != (gates * hidden, x.shape[2]) or hh.shape != (gates * hidden, hidden):
        raise ModelError(
            f"weight_ih {list(ih.shape)} and weight_hh {list(hh.shape)} need {gates} gates of one "
            f"hidden size, for {x.shape[2]} inputs"
        )
    given = np.matmul(x, ih.T)
    if bias is not None:
        if np.shape(bias) != (gates * hidden,):
            raise ModelError(f"bias {list(np.shape(bias))} needs {gates * hidden} values")
        given = given + widen(bias)
    return given, hh


def _state(values: Array, batch: int, hidden: int, name: str) -> Array:
    if np.shape(values) != (batch, hidden):
        raise ModelError(f"{name} {list(np.shape(values))} needs the shape {[batch, hidden]}")
    return widen(values)


def _steps(count: int, direction: str) -> range:
    if direction not in ("forward", "reverse"):
        raise ModelError(f"direction {direction!r} is unknown here: give forward or reverse")
    return range(count) if direction == "forward" else range(count - 1, -1, -1)


def _collected(states: list[Array], last: Array, output_sequence: bool) -> Array:
    """The states in the order of processing, or only the last."""
    if output_sequence and states:
        return np.stack(states)
    return last[None] if not output_sequence else np.zeros((0, *last.shape), dtype=last.dtype)


@define("rnn")
def rnn(
    x: Array,
    initial_h: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias: Array | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    activation: str = "tanh",
) -> tuple[Array, Array]:
    given, hh = _inputs(x, weight_ih, weight_hh, bias, 1)
    act = _activation(activation, "activation")
    h = _state(initial_h, given.shape[1], hh.shape[1], "initial_h")
    states = []
    for step in _steps(len(given), direction):
        h = act(given[step] + h @ hh.T)
        states.append(h)
    return _collected(states, h, bool(output_sequence)), h


@define("gru")
def gru(
    x: Array,
    initial_h: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias: Array | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    activation: str = "tanh",
    reset_after: bool = False,
    input_bias: Array | None = None,
) -> tuple[Array, Array]:
    """Gates in the order reset, output, update.

    The reset gate multiplies the state before its product with the weights. With reset_after (of
    iOS 18) it multiplies that product with its bias, which is PyTorch's and Keras' form.
    """
    after = bool(reset_after)
    given, hh = _inputs(x, weight_ih, weight_hh, input_bias, 3)
    hidden = hh.shape[1]
    own: Array = np.zeros(3 * hidden, dtype=np.float32) if bias is None else widen(bias)
    if own.shape != (3 * hidden,):
        raise ModelError(f"bias {list(own.shape)} needs {3 * hidden} values")
    gate = _activation(recurrent_activation, "recurrent_activation")
    act = _activation(activation, "activation")
    h = _state(initial_h, given.shape[1], hidden, "initial_h")
    outer = np.concatenate([hh[:hidden], hh[2 * hidden :]])  # reset and update
    inner = hh[hidden : 2 * hidden]
    states = []
    for step in _steps(len(given), direction):
        x_r, x_o, x_z = np.split(given[step], 3, axis=1)
        h_r, h_z = np.split(h @ outer.T, 2, axis=1)
        r = gate(x_r + h_r + own[:hidden])
        z = gate(x_z + h_z + own[2 * hidden :])
        o_bias = own[hidden : 2 * hidden]
        h_o = r * (h @ inner.T + o_bias) if after else (r * h) @ inner.T + o_bias
        h = (1 - z) * act(x_o + h_o) + z * h
        states.append(h)
    return _collected(states, h, bool(output_sequence)), h


def _lstm_direction(
    x: Array,
    h: Array,
    c: Array,
    weights: tuple[Array, Array, Array | None, Array | None],
    direction: str,
    activations: tuple[Function, Function, Function],
    clip: Any,
) -> tuple[list[Array], Array, Array]:
    """The states of one direction in the order of processing, and the last state and memory."""
    weight_ih, weight_hh, bias, peephole = weights
    given, hh = _inputs(x, weight_ih, weight_hh, bias, 4)
    hidden = hh.shape[1]
    gate, cell, out = activations
    h = _state(h, given.shape[1], hidden, "initial_h")
    c = _state(c, given.shape[1], hidden, "initial_c")
    peek: Array = np.zeros(3 * hidden, np.float32) if peephole is None else widen(peephole)
    p_i, p_f, p_o = np.split(peek, 3)
    states = []
    for step in _steps(len(given), direction):
        i, f, o, z = np.split(given[step] + h @ hh.T, 4, axis=1)
        c = gate(f + c * p_f) * c + gate(i + c * p_i) * cell(z)
        if clip is not None:
            c = np.clip(c, -np.float32(clip), np.float32(clip))
        h = gate(o + c * p_o) * out(c)
        states.append(h)
    return states, h, c


@define("lstm")
def lstm(
    x: Array,
    initial_h: Array,
    initial_c: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias: Array | None = None,
    peephole: Array | None = None,
    weight_ih_back: Array | None = None,
    weight_hh_back: Array | None = None,
    bias_back: Array | None = None,
    peephole_back: Array | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    activation: str = "tanh",
    clip: Any = None,
) -> tuple[Array, Array, Array]:
    """Gates in the order input, forget, output, cell; peepholes input, forget, output.

    In the direction "reverse" the outputs are in the order of processing, last time step first. A
    bidirectional layer has both halves of a time step side by side.
    """
    activations = (
        _activation(recurrent_activation, "recurrent_activation"),
        _activation(cell_activation, "cell_activation"),
        _activation(activation, "activation"),
    )
    forward = (weight_ih, weight_hh, bias, peephole)
    if direction != "bidirectional":
        states, h, c = _lstm_direction(
            x, initial_h, initial_c, forward, direction, activations, clip
        )
        return _collected(states, h, bool(output_sequence)), h, c
    if weight_ih_back is None or weight_hh_back is None:
        raise ModelError("weight_ih_back and weight_hh_back must be given for two directions")
    back = (weight_ih_back, weight_hh_back, bias_back, peephole_back)
    starts = [np.split(np.asarray(one), 2, axis=1) for one in (initial_h, initial_c)]
    left = _lstm_direction(x, starts[0][0], starts[1][0], forward, "forward", activations, clip)
    right = _lstm_direction(x, starts[0][1], starts[1][1], back, "reverse", activations, clip)
    h = np.concatenate([left[1], right[1]], axis=1)
    c = np.concatenate([left[2], right[2]], axis=1)
    both = [np.concatenate(pair, axis=1) for pair in zip(left[0], right[0][::-1], strict=True)]
    return _collected(both, h, bool(output_sequence)), h, c
