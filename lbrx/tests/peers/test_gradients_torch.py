"""Gradients beside PyTorch in float64: random expressions, and the steps of a small network."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
import lbrx.nn as nn
import lbrx.optim as optim

torch = pytest.importorskip("torch", reason="PyTorch is installed for the peers alone")

UNARY = ("tanh", "sigmoid", "exp", "sin", "cos", "square", "relu", "abs")
BINARY = ("add", "multiply", "subtract", "maximum", "minimum")


def expression(x, y, seed, other):
    """A random expression of two matrices, by the functions of lbrx or of PyTorch."""
    rng = np.random.default_rng(seed)
    values = [x, y]
    for _ in range(8):
        a, b = (values[i] for i in rng.integers(0, len(values), 2))
        match rng.integers(5):
            case 0 | 1:
                made = getattr(other, UNARY[rng.integers(len(UNARY))])(a * 0.5)
            case 2:
                made = getattr(other, BINARY[rng.integers(len(BINARY))])(a, b)
            case 3:
                made = a @ b.T @ x * 0.1
            case 4:
                made = a - a.mean(1)[:, None] + b[:, ::2].sum(1)[:, None]
        values.append(made / (1 + (made * made).mean()))
    return sum(((i + 1) * value).sum() for i, value in enumerate(values[2:]))


class Torch:
    """PyTorch's functions under the names of lbrx."""

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.mark.parametrize("block", range(10))
def test_random_expressions(block):
    for seed in range(30 * block, 30 * block + 30):
        rng = np.random.default_rng([seed, 1])
        x, y = rng.normal(size=(2, 4, 6))
        ours = [lbrx.tensor(a, device="cpu") for a in (x, y)]
        theirs = [torch.tensor(a, requires_grad=True) for a in (x, y)]
        found = lbrx.grad(lambda x, y, seed=seed: expression(x, y, seed, lbrx), (0, 1))(*ours)
        value = expression(*theirs, seed, Torch())
        value.backward()
        for g, each in zip(found, theirs, strict=True):
            wanted = np.zeros(each.shape) if each.grad is None else each.grad.numpy()
            np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-9, atol=1e-10, err_msg=str(seed))


def test_steps_of_a_network_have_the_same_losses(rng):
    x, y = rng.normal(size=(64, 8)), rng.integers(0, 3, 64)
    lbrx.set_default_device("cpu")
    try:
        net = nn.Sequential(nn.Linear(8, 16), nn.gelu, nn.LayerNorm(16), nn.Linear(16, 3))
    finally:
        lbrx.set_default_device(None)
    net.set_dtype("float64")
    other = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3)
    ).double()
    own = dict(lbrx.tree_flatten(net.parameters()))
    other.load_state_dict(
        {k.removeprefix("layers."): torch.tensor(np.array(v.numpy())) for k, v in own.items()}
    )
    ours = optim.AdamW(1e-2, weight_decay=0.1, bias_correction=True)
    theirs = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1)
    inputs, classes = lbrx.tensor(x, device="cpu"), lbrx.tensor(y, device="cpu")
    step = nn.value_and_grad(
        net, lambda: nn.losses.cross_entropy(net(inputs), classes, reduction="mean")
    )
    for i in range(200):
        value, gradients = step()
        ours.update(net, gradients)
        theirs.zero_grad()
        loss = torch.nn.functional.cross_entropy(other(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        theirs.step()
        assert value.item() == pytest.approx(loss.item(), rel=1e-9), i
