"""What tinygrad computes with METAL=1, against numpy. Run by `python -m softmetal run`, one part a call."""

import sys

import numpy as np
from tinygrad import Device, Tensor, TinyJit, dtypes, nn

SEED = int(sys.argv[2])
rng = np.random.default_rng(SEED)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def close(tensor, expected, tolerance=1e-4):
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=tolerance, atol=tolerance)


def part_matmul():
    for m, k, n in [(1, 1, 1), (17, 33, 65), (64, 64, 64), (128, 96, 32)]:
        a, b = normal(m, k), normal(k, n)
        close(Tensor(a) @ Tensor(b), a @ b, 1e-3)
    a, b = (normal(64, 64).astype(np.float16) for _ in range(2))
    close((Tensor(a) @ Tensor(b)).float(), a.astype("f8") @ b, 0.1)


def part_conv2d():
    x, w = normal(2, 3, 11, 9), normal(4, 3, 3, 3)
    expected = np.zeros((2, 4, 9, 7))
    for i in range(3):
        for j in range(3):
            expected += np.einsum("bchw,oc->bohw", x[:, :, i : i + 9, j : j + 7], w[:, :, i, j])
    close(Tensor(x).conv2d(Tensor(w)), expected, 1e-3)


def part_reductions():
    x = normal(13, 1000)
    e = np.exp(x - x.max(-1, keepdims=True))
    close(Tensor(x).softmax(-1), e / e.sum(-1, keepdims=True))
    for axis in (None, 0, 1):
        close(Tensor(x).sum(axis), x.sum(axis), 1e-3)
        close(Tensor(x).max(axis), x.max(axis))
        close(Tensor(x).mean(axis), x.mean(axis))
        np.testing.assert_array_equal(Tensor(x).argmax(axis).numpy(), x.argmax(axis))
    close(Tensor(x).std(1), x.std(1, ddof=1))


def part_unary():
    x = normal(1000) * 3
    for name in ("exp", "sin", "tanh", "sqrt", "log", "sigmoid", "relu"):
        positive = np.abs(x) + 0.1 if name in ("sqrt", "log") else x
        reference = {"sigmoid": lambda v: 1 / (1 + np.exp(-v)), "relu": lambda v: np.maximum(v, 0)}
        expected = reference.get(name, getattr(np, name, None))(positive.astype("f8"))
        close(getattr(Tensor(positive), name)(), expected)


def part_gather():
    table, index = normal(50, 7), rng.integers(0, 50, (5, 3))
    close(Tensor(table)[Tensor(index)], table[index])
    close(Tensor(table)[3:40:5, ::2], table[3:40:5, ::2])
    close(Tensor(table).permute(1, 0).contiguous(), table.T)


def part_casts():
    names = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
             "float16", "float32"]  # fmt: skip
    values = np.array([0, 1, 2, 3, 7, 100])
    for source in names:
        for target in names:
            given = values.astype(source)
            result = Tensor(given).cast(getattr(dtypes, target)).numpy()
            np.testing.assert_array_equal(result, given.astype(target), f"{source} to {target}")
    brain = Tensor(values.astype("f4")).cast(dtypes.bfloat16).cast(dtypes.float32)
    np.testing.assert_array_equal(brain.numpy(), values)


def part_jit():
    w1, w2 = Tensor(normal(8, 16)).realize(), Tensor(normal(16, 4)).realize()

    @TinyJit
    def network(x):
        return ((x @ w1).relu() @ w2).softmax().realize()

    for _ in range(6):  # from the third call on, an indirect command buffer
        x = normal(5, 8)
        h = np.maximum(x @ w1.numpy(), 0) @ w2.numpy()
        e = np.exp(h - h.max(-1, keepdims=True))
        close(network(Tensor(x).realize()), e / e.sum(-1, keepdims=True))


def part_training():
    Tensor.manual_seed(SEED)
    x = normal(128, 2)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
    layers = [nn.Linear(2, 16), nn.Linear(16, 2)]
    optimizer = nn.optim.Adam([p for layer in layers for p in (layer.weight, layer.bias)], lr=0.05)
    losses = []
    with Tensor.train():
        for _ in range(40):
            optimizer.zero_grad()
            out = layers[1](layers[0](Tensor(x)).relu())
            loss = out.sparse_categorical_crossentropy(Tensor(y))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], losses


assert Device.DEFAULT == "METAL", Device.DEFAULT
globals()[f"part_{sys.argv[1]}"]()
print("ok")
