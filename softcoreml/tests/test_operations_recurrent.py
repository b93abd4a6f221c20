"""Recurrent layers against single steps in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from mil_run import call, close
from seeds import generator

STEPS, BATCH, INPUTS, HIDDEN = 5, 2, 3, 4
ACTIVATIONS = {
    "tanh": math.tanh,
    "scaled_tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "hard_sigmoid": lambda x: min(1.0, max(0.0, 0.2 * x + 0.5)),
    "sigmoid_hard": lambda x: min(1.0, max(0.0, 0.2 * x + 0.5)),
    "relu": lambda x: max(0.0, x),
    "linear": lambda x: x,
}
Array = np.ndarray


def act(name: str, x: Array) -> Array:
    return np.vectorize(ACTIVATIONS[name], otypes=[np.float64])(x)


def weights(gates: int, key: int, dtype: type) -> dict[str, Array]:
    rng = generator(key)
    shapes = {
        "x": (STEPS, BATCH, INPUTS),
        "initial_h": (BATCH, HIDDEN),
        "weight_ih": (gates * HIDDEN, INPUTS),
        "weight_hh": (gates * HIDDEN, HIDDEN),
        "bias": (gates * HIDDEN,),
    }
    return {name: rng.uniform(-1, 1, shape).astype(dtype) for name, shape in shapes.items()}


def wide(inputs: dict[str, Array]) -> dict[str, Array]:
    return {name: one.astype(np.float64) for name, one in inputs.items()}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("names", [("sigmoid", "tanh", "tanh"), ("hard_sigmoid", "relu", "linear")])
@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("clip", [None, 0.4])
def test_lstm(
    dtype: type,
    direction: str,
    sequence: bool,
    names: tuple[str, str, str],
    peephole: bool,
    clip: float | None,
) -> None:
    inputs = weights(4, 20, dtype)
    inputs["initial_c"] = generator(21).uniform(-1, 1, (BATCH, HIDDEN)).astype(dtype)
    peeks = generator(22).uniform(-1, 1, 3 * HIDDEN).astype(dtype)
    extra: dict[str, Any] = {"peephole": peeks} if peephole else {}
    extra |= {} if clip is None else {"clip": np.float32(clip)}
    given = wide(inputs)
    p_i, p_f, p_o = np.split(peeks.astype(np.float64) * peephole, 3)
    h, c, states = given["initial_h"], given["initial_c"], []
    for x in given["x"] if direction == "forward" else given["x"][::-1]:
        z = x @ given["weight_ih"].T + h @ given["weight_hh"].T + given["bias"]
        i, f, o, g = (z[:, one * HIDDEN : (one + 1) * HIDDEN] for one in range(4))
        c = act(names[0], f + p_f * c) * c + act(names[0], i + p_i * c) * act(names[1], g)
        c = c if clip is None else np.clip(c, -clip, clip)
        h = act(names[0], o + p_o * c) * act(names[2], c)
        states.append(h)
    found = call(
        "lstm",
        direction=direction,
        output_sequence=sequence,
        recurrent_activation=names[0],
        cell_activation=names[1],
        activation=names[2],
        **inputs,
        **extra,
    )
    close(found[0], np.stack(states) if sequence else h[None])
    close(found[1], h)
    close(found[2], c)


def test_both_directions_of_an_lstm_are_two_of_one() -> None:
    left, right = weights(4, 23, np.float32), weights(4, 24, np.float32)
    h, c = generator(25).uniform(-1, 1, (2, BATCH, 2 * HIDDEN)).astype(np.float32)
    back = {f"{name}_back": right[name] for name in ("weight_ih", "weight_hh", "bias")}
    how = {"output_sequence": True}
    left |= {"initial_h": h, "initial_c": c}
    found = call("lstm", **left, **back, direction="bidirectional", **how)
    left |= {"initial_h": h[:, :HIDDEN], "initial_c": c[:, :HIDDEN]}
    right |= {"initial_h": h[:, HIDDEN:], "initial_c": c[:, HIDDEN:], "x": left["x"]}
    one = call("lstm", **left, **how)
    two = call("lstm", **right, direction="reverse", **how)
    close(found[0], np.concatenate([one[0], two[0][::-1]], axis=2), 0)
    close(found[1], np.concatenate([one[1], two[1]], axis=1), 0)
    close(found[2], np.concatenate([one[2], two[2]], axis=1), 0)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("names", [("sigmoid", "tanh"), ("sigmoid_hard", "relu")])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_gru(
    direction: str, sequence: bool, names: tuple[str, str], after: bool, biased: bool
) -> None:
    """Gates lie in the order reset, output, update."""
    inputs = weights(3, 26, np.float32)
    first = generator(27).uniform(-1, 1, 3 * HIDDEN).astype(np.float32)
    given = wide(inputs)
    b_r, b_o, b_z = np.split(given["bias"] * biased, 3)
    x_r, x_o, x_z = np.split(first.astype(np.float64) * after, 3)
    w_r, w_o, w_z = np.split(given["weight_ih"], 3)
    u_r, u_o, u_z = np.split(given["weight_hh"], 3)
    h, states = given["initial_h"], []
    for x in given["x"] if direction == "forward" else given["x"][::-1]:
        r = act(names[0], x @ w_r.T + h @ u_r.T + b_r + x_r)
        z = act(names[0], x @ w_z.T + h @ u_z.T + b_z + x_z)
        inner = r * (h @ u_o.T + b_o) if after else (r * h) @ u_o.T + b_o
        h = (1 - z) * act(names[1], x @ w_o.T + x_o + inner) + z * h
        states.append(h)
    if not biased:
        del inputs["bias"]
    extra = {"reset_after": True, "input_bias": first} if after else {}
    how = {"recurrent_activation": names[0], "activation": names[1]}
    found = call("gru", direction=direction, output_sequence=sequence, **how, **inputs, **extra)
    close(found[0], np.stack(states) if sequence else h[None])
    close(found[1], h)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_rnn(name: str) -> None:
    inputs = weights(1, 28, np.float16)
    given = wide(inputs)
    h = given["initial_h"]
    for x in given["x"]:
        h = act(name, x @ given["weight_ih"].T + h @ given["weight_hh"].T + given["bias"])
    found = call("rnn", activation=name, **inputs)
    close(found[0], h[None])
    close(found[1], h)


def test_a_sequence_of_no_steps_keeps_its_state() -> None:
    inputs = weights(1, 29, np.float32)
    inputs["x"] = inputs["x"][:0]
    found = call("rnn", output_sequence=True, **inputs)
    assert found[0].shape == (0, BATCH, HIDDEN)
    close(found[1], inputs["initial_h"], 0)
