"""Optimizers beside their formulas in float64 numpy, schedules, groups, and states in files."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lbrx
import lbrx.optim as optim
from lbrx.errors import FormatError

STEPS = 6


def _sgd(p, gs, rate=0.1, momentum=0.9, decay=0.1):
    v = np.zeros_like(p)
    for g in gs:
        v = momentum * v + g + decay * p
        p = p - rate * (g + decay * p + momentum * v)
    return p


def _rmsprop(p, gs, rate=0.1, alpha=0.9, eps=1e-8):
    v = np.zeros_like(p)
    for g in gs:
        v = alpha * v + (1 - alpha) * g * g
        p = p - rate * g / (np.sqrt(v) + eps)
    return p


def _adam(p, gs, rate=0.1, betas=(0.9, 0.999), eps=1e-8, decay=0.0, correct=True):
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gs, 1):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        one, two = (1 - betas[0] ** t, 1 - betas[1] ** t) if correct else (1, 1)
        p = p * (1 - rate * decay) - rate * (m / one) / (np.sqrt(v / two) + eps)
    return p


def _lion(p, gs, rate=0.1, decay=0.1):
    m = np.zeros_like(p)
    for g in gs:
        p = p * (1 - rate * decay) - rate * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g
    return p


def _adafactor(p, gs):
    row, column = np.zeros(p.shape[:-1]), np.zeros(p.shape[-1:])
    for t, g in enumerate(gs, 1):
        beta = 1 - t**-0.8
        squares = g * g + 1e-30
        row, column = (
            beta * row + (1 - beta) * squares.mean(1),
            beta * column + (1 - beta) * squares.mean(0),
        )
        change = g / np.sqrt(np.outer(row, column) / row.mean())
        change = change / max(1, np.sqrt((change**2).mean()))
        rate = min(1e-2, 1 / math.sqrt(t)) * max(1e-3, np.sqrt((p**2).mean()))
        p = p - rate * change
    return p


def _muon(p, gs, rate=0.05, momentum=0.95):
    v = np.zeros_like(p)
    for g in gs:
        v = momentum * v + (1 - momentum) * g
        x = (1 - momentum) * g + momentum * v
        x = x.T / (np.linalg.norm(x) + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        p = p - rate * math.sqrt(max(1, p.shape[0] / p.shape[1])) * x.T
    return p


CASES = {
    "sgd": (lambda: optim.SGD(0.1, momentum=0.9, weight_decay=0.1, nesterov=True), _sgd),
    "rmsprop": (lambda: optim.RMSprop(0.1, alpha=0.9), _rmsprop),
    "adam": (lambda: optim.Adam(0.1, bias_correction=True), _adam),
    "adam as MLX": (lambda: optim.Adam(0.1), lambda p, gs: _adam(p, gs, correct=False)),
    "adamw": (
        lambda: optim.AdamW(0.1, weight_decay=0.2, bias_correction=True),
        lambda p, gs: _adam(p, gs, decay=0.2),
    ),
    "lion": (lambda: optim.Lion(0.1, weight_decay=0.1), _lion),
    "adafactor": (optim.Adafactor, _adafactor),
    "muon": (lambda: optim.Muon(0.05, weight_decay=0.0), _muon),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_beside_the_formula(name, place, rng):
    make, formula = CASES[name]
    start, gradients = rng.normal(size=(6, 4)), rng.normal(size=(STEPS, 6, 4))
    dtype = lbrx.float64 if place == "cpu" else lbrx.float32
    optimizer, tree = make(), [{"w": lbrx.tensor(start, dtype, place)}, None]
    for g in gradients:
        tree = optimizer.apply_gradients([{"w": lbrx.tensor(g, dtype, place)}, None], tree)
    near = {"rtol": 1e-9, "atol": 1e-10} if place == "cpu" else {"rtol": 2e-4, "atol": 1e-4}
    np.testing.assert_allclose(tree[0]["w"].numpy(), formula(start, gradients), **near)
    assert optimizer.step.item() == STEPS


@pytest.mark.parametrize("name", CASES)
def test_a_state_is_saved_bit_for_bit(name, tmp_path, rng):
    make, _ = CASES[name]
    start = rng.normal(size=(6, 4)).astype("f4")
    gradients = [{"w": lbrx.tensor(g.astype("f4"))} for g in rng.normal(size=(STEPS, 6, 4))]
    whole, tree = make(), {"w": lbrx.tensor(start)}
    for i, g in enumerate(gradients):
        tree = whole.apply_gradients(g, tree)
        if i == 2:
            whole.save_state(tmp_path / "state.safetensors")
            half = tree
    resumed = make()
    resumed.load_state(tmp_path / "state.safetensors")
    for g in gradients[3:]:
        half = resumed.apply_gradients(g, half)
    np.testing.assert_array_equal(half["w"].numpy(), tree["w"].numpy())
    lbrx.save(tmp_path / "other.safetensors", {"x": lbrx.ones(2)})
    with pytest.raises(FormatError, match="not the state of an optimizer"):
        resumed.load_state(tmp_path / "other.safetensors")


def test_groups(tmp_path):
    tree = {"weight": lbrx.ones((2, 2)), "bias": lbrx.ones(2)}
    g = lbrx.tree_map(lambda x: x * 1, tree)

    def make():
        return optim.MultiOptimizer(
            [optim.SGD(0.5, momentum=0.5), optim.SGD(0.25)], [lambda path, x: x.ndim > 1]
        )

    first = make()
    made = first.apply_gradients(g, tree)
    assert made["weight"].numpy().tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert made["bias"].tolist() == [0.75, 0.75]
    first.save_state(tmp_path / "state.safetensors")
    second = make()
    second.load_state(tmp_path / "state.safetensors")
    expected, found = first.apply_gradients(g, made), second.apply_gradients(g, made)
    assert found["weight"].tolist() == expected["weight"].tolist()
    with pytest.raises(ValueError, match="one filter less"):
        optim.MultiOptimizer([optim.SGD(0.5)], [lambda path, x: True])


def test_schedules_are_functions_of_the_step():
    def rates(schedule, count):
        return [schedule(lbrx.tensor(i, device="cpu")).item() for i in range(count)]

    line = optim.linear_schedule(0.0, 1.0, 4)
    assert rates(line, 6) == [0, 0.25, 0.5, 0.75, 1, 1]
    cosine = rates(optim.cosine_decay(1.0, 4, 0.5), 6)
    assert cosine == pytest.approx(
        [0.5 + 0.25 * (1 + math.cos(math.pi * min(i, 4) / 4)) for i in range(6)]
    )
    assert rates(optim.exponential_decay(1.0, 0.5), 4) == pytest.approx([1, 0.5, 0.25, 0.125])
    assert rates(optim.step_decay(1.0, 0.5, 2), 5) == pytest.approx([1, 1, 0.5, 0.5, 0.25])
    joined = optim.join_schedules([line, optim.cosine_decay(1.0, 4)], [4])
    assert rates(joined, 6)[3:5] == [0.75, 1]
    with pytest.raises(ValueError, match="one boundary less"):
        optim.join_schedules([line], [3])
    optimizer = optim.SGD(line)
    tree = {"w": lbrx.zeros(1)}
    for _ in range(3):
        tree = optimizer.apply_gradients({"w": lbrx.ones(1)}, tree)
    assert tree["w"].item() == pytest.approx(-0.75)
    assert optimizer.learning_rate.item() == pytest.approx(0.5)
    optimizer.learning_rate = 2.0
    tree = optimizer.apply_gradients({"w": lbrx.ones(1)}, tree)
    assert tree["w"].item() == pytest.approx(-2.75)


def test_clipping_and_accumulation():
    tree = {"a": lbrx.tensor([3.0, 0.0]), "b": [lbrx.tensor([4.0])], "c": None}
    made, norm = optim.clip_grad_norm(tree, 1.0)
    assert norm.item() == 5
    assert made["a"].tolist() == pytest.approx([0.6, 0], rel=1e-5)
    assert made["c"] is None
    same, _ = optim.clip_grad_norm(tree, 10.0)
    assert same["b"][0].tolist() == [4]
    total = optim.Accumulator()
    for i in range(4):
        total.add(lbrx.tree_map(lambda x, i=i: None if x is None else x * i, tree))
    assert total.count == 4
    assert total.mean()["a"].tolist() == [4.5, 0]
    with pytest.raises(ValueError, match="no gradients were added"):
        total.mean()


def test_gradients_without_a_parameter():
    with pytest.raises(KeyError, match="no such parameter"):
        optim.SGD(0.1).apply_gradients({"w": lbrx.ones(1)}, {"v": lbrx.ones(1)})
