"""200 steps of training beside PyTorch: in float64 the same losses, on Metal as near to them as
PyTorch's own float32."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
import lbrx.nn as nn
import lbrx.optim as optim

torch = pytest.importorskip("torch", reason="PyTorch is installed for the peers alone")
functional = torch.nn.functional

STEPS, RATE = 200, 3e-3
torch.set_num_threads(1)  # threads of small products wait for each other on a busy machine


class Convolutional(nn.Module):
    """Images of 8 by 8 to classes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 8, 3, stride=2)
        self.last = nn.Linear(8, 4)

    def __call__(self, x):
        x = nn.MaxPool2d(2)(nn.relu(self.first(x)))
        return self.last(nn.gelu(self.second(x)).reshape(x.shape[0], -1))


def convolutional(x, p):
    first, second = (p[f"{name}.weight"].permute(0, 3, 1, 2) for name in ("first", "second"))
    x = functional.conv2d(x.permute(0, 3, 1, 2), first, p["first.bias"], padding=1)
    x = functional.max_pool2d(x.relu(), 2)
    x = functional.gelu(functional.conv2d(x, second, p["second.bias"], stride=2))
    x = x.permute(0, 2, 3, 1).flatten(1)
    return x @ p["last.weight"].T + p["last.bias"]


class Recurrent(nn.Module):
    """Sequences to classes."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 7)
        self.last = nn.Linear(7, 4)

    def __call__(self, x):
        states, _ = self.lstm(x)
        return self.last(states[:, -1])


def recurrent(x, p):
    hidden = cell = torch.zeros(len(x), 7, dtype=x.dtype)
    for i in range(x.shape[1]):
        gates = x[:, i] @ p["lstm.Wx"].T + hidden @ p["lstm.Wh"].T + p["lstm.bias"]
        entering, kept, new, shown = gates.chunk(4, -1)
        cell = kept.sigmoid() * cell + entering.sigmoid() * new.tanh()
        hidden = shown.sigmoid() * cell.tanh()
    return hidden @ p["last.weight"].T + p["last.bias"]


class Transformer(nn.Module):
    """Sequences to classes, by one layer of attention and a gated MLP."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm1, self.norm2 = nn.RMSNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24, bias=False), nn.Linear(8, 8)
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.last = nn.Linear(8, 4)

    def __call__(self, x):
        x = self.first(x)
        rows, count, _ = x.shape
        parts = self.qkv(self.norm1(x)).reshape(rows, count, 3, 2, 4).permute(2, 0, 3, 1, 4)
        seen = lbrx.attention(parts[0], parts[1], parts[2], causal=True)
        x = x + self.out(seen.swapaxes(1, 2).reshape(rows, count, 8))
        y = self.norm2(x)
        x = x + self.down(nn.silu(self.gate(y)) * self.up(y))
        return self.last(x.mean(axis=1))


def transformer(x, p):
    def linear(x, name):
        return functional.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))

    x = linear(x, "first")
    rows, count, _ = x.shape
    normal = functional.rms_norm(x, (8,), p["norm1.weight"], 1e-5)
    parts = linear(normal, "qkv").reshape(rows, count, 3, 2, 4).permute(2, 0, 3, 1, 4)
    seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
    x = x + linear(seen.transpose(1, 2).reshape(rows, count, 8), "out")
    y = functional.layer_norm(x, (8,), p["norm2.weight"], p["norm2.bias"])
    x = x + linear(functional.silu(linear(y, "gate")) * linear(y, "up"), "down")
    return linear(x.mean(1), "last")


CASES = {
    "convolutional": (Convolutional, convolutional, (32, 8, 8, 1)),
    "recurrent": (Recurrent, recurrent, (32, 6, 3)),
    "transformer": (Transformer, transformer, (32, 9, 3)),
}


def first_weights(make):
    lbrx.random.seed(0)
    return {k: v.numpy() for k, v in lbrx.tree_flatten(make().parameters())}


def our_losses(make, weights, x, y, device, dtype):
    lbrx.set_default_device(device)
    try:
        net = make()
    finally:
        lbrx.set_default_device(None)
    own = {k: lbrx.tensor(v.astype(dtype), device=device) for k, v in weights.items()}
    net.update(lbrx.tree_unflatten(own))
    inputs, classes = lbrx.tensor(x.astype(dtype), device=device), lbrx.tensor(y, device=device)
    optimizer = optim.AdamW(RATE, weight_decay=0.1, bias_correction=True)
    optimizer.init(net.trainable_parameters())
    both = nn.value_and_grad(net, lambda x, y: nn.losses.cross_entropy(net(x), y, reduction="mean"))

    def step(x, y):
        value, gradients = both(x, y)
        optimizer.update(net, gradients)
        return value

    if device == "metal":
        state = [net, optimizer.state]
        step = lbrx.compile(step, inputs=state, outputs=state)
    return np.array([step(inputs, classes).item() for _ in range(STEPS)])


def torch_losses(forward, weights, x, y, dtype):
    own = {k: torch.tensor(v.astype(dtype)).clone().requires_grad_() for k, v in weights.items()}
    optimizer = torch.optim.AdamW(own.values(), lr=RATE, weight_decay=0.1)
    inputs, classes = torch.tensor(x.astype(dtype)), torch.tensor(y)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(forward(inputs, own), classes)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return np.array(found)


@pytest.mark.parametrize("name", CASES)
def test_losses_of_200_steps(name, rng):
    make, forward, shape = CASES[name]
    x, y = rng.normal(size=shape), rng.integers(0, 4, shape[0])
    weights = first_weights(make)
    wanted = torch_losses(forward, weights, x, y, "f8")
    assert wanted[-1] < 0.8 * wanted[0]
    found = our_losses(make, weights, x, y, "cpu", "f8")
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    narrow = np.abs(torch_losses(forward, weights, x, y, "f4") / wanted - 1).max()
    ours = np.abs(our_losses(make, weights, x, y, "metal", "f4") / wanted - 1).max()
    assert ours < 2 * narrow
