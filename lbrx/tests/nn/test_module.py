"""`lbrx.nn`: modules as trees, freezing, files, text; layers and losses against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lbrx
import lbrx.nn as nn
import lbrx.optim as optim
from lbrx.errors import FormatError, ShapeError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 6), nn.relu)]
        self.norm = nn.BatchNorm(6)
        self.heads = {"a": nn.Linear(6, 2, bias=False)}
        self.scale = lbrx.ones(2)
        self._hidden = lbrx.ones(3)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.heads["a"](self.norm(x)) * self.scale


PATHS = {
    *("blocks.0.weight", "blocks.0.bias", "blocks.1.layers.0.weight", "blocks.1.layers.0.bias"),
    *("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"),
    *("heads.a.weight", "scale"),
}


def paths(tree):
    return {path for path, _ in lbrx.tree_flatten(tree)}


def test_parameters_are_a_tree():
    net = Net()
    assert paths(net.parameters()) == PATHS
    assert paths(net.trainable_parameters()) == {p for p in PATHS if "running" not in p}
    assert set(net.children()) == {"blocks", "norm", "heads"}
    assert [name for name, _ in net.named_modules()] == [
        *("", "blocks.0", "blocks.1", "blocks.1.layers.0", "norm", "heads.a")
    ]
    assert paths(net.leaf_modules()) == paths(net.parameters()) - {"scale"}
    lbrx.eval(net)


def test_freezing():
    net = Net().freeze()
    assert paths(net.trainable_parameters()) == set()
    net.blocks[0].unfreeze(keys="bias")
    assert paths(net.trainable_parameters()) == {"blocks.0.bias"}
    net.unfreeze()
    assert "norm.running_mean" not in paths(net.trainable_parameters())
    net.freeze(keys=["weight"])
    assert paths(net.trainable_parameters()) == {
        *("blocks.0.bias", "blocks.1.layers.0.bias", "norm.bias", "scale")
    }
    with pytest.raises(KeyError, match="has no parameter nothing"):
        net.freeze(keys=["nothing"], strict=True)


def test_update_replaces_a_part_and_refuses_other_names():
    net = Net()
    net.update({"blocks": [{"bias": lbrx.zeros(6)}], "heads": {"a": {"weight": lbrx.ones((2, 6))}}})
    assert net.blocks[0].bias.tolist() == [0] * 6
    assert net.heads["a"].weight.sum().item() == 12
    with pytest.raises(KeyError, match=r"Net\.blocks\.0\.wight"):
        net.update({"blocks": [{"wight": lbrx.zeros(6)}]})
    net.update({"other": lbrx.ones(1)}, strict=False)
    assert not hasattr(net, "other")


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_weights_are_saved_and_loaded(ending, tmp_path):
    first, second = Net(), Net()
    file = tmp_path / f"net.{ending}"
    first.save_weights(file)
    second.load_weights(file)
    for (path, x), (_, y) in zip(
        lbrx.tree_flatten(first.parameters()), lbrx.tree_flatten(second.parameters()), strict=True
    ):
        np.testing.assert_array_equal(x.numpy(), y.numpy(), err_msg=path)
    with pytest.raises(FormatError, match=r"lack blocks\.0\.bias.*have other besides"):
        second.load_weights([("other", lbrx.ones(1))])
    with pytest.raises(ShapeError, match=r"scale has shape \(3,\) instead of \(2,\)"):
        second.load_weights([("scale", lbrx.ones(3))], strict=False)


def test_apply_dtype_modes_and_text():
    net = Net().set_dtype("float16")
    assert {x.dtype for _, x in lbrx.tree_flatten(net.parameters())} == {lbrx.float16}
    assert net.train(False).training is False
    assert net.blocks[1].layers[0].training is False
    assert net.eval().training is False
    text = repr(net)
    assert "(blocks.1): Sequential(" in text
    assert "(layers.0): Linear(input_dims=6, output_dims=6, bias=True)" in text
    net.update_modules({"blocks": [nn.Identity()]})
    assert isinstance(net.blocks[0], nn.Identity)
    visited = []
    net.apply_to_modules(lambda path, module: visited.append(path))
    assert "norm" in visited
    with pytest.raises(NotImplementedError, match="Bare has no __call__"):
        type("Bare", (nn.Module,), {})()(1)


def test_a_gradient_leaves_a_module_as_it_was(rng):
    net = Net()
    before = dict(lbrx.tree_flatten(net.trainable_parameters()))
    x = lbrx.tensor(rng.normal(size=(5, 4)).astype("f4"))
    value, found = nn.value_and_grad(net, lambda x: (net(x) ** 2).mean())(x)
    assert paths(found) == set(before)
    for path, own in lbrx.tree_flatten(net.trainable_parameters()):
        assert own is before[path]
    assert {type(x) for _, x in lbrx.tree_flatten(net.parameters())} == {lbrx.Tensor}
    assert value.item() > 0
    with pytest.raises(ValueError, match="an error within"):
        nn.value_and_grad(net, lambda: _raise())()
    assert {type(x) for _, x in lbrx.tree_flatten(net.parameters())} == {lbrx.Tensor}


def _raise():
    raise ValueError("an error within")


def test_training_learns_and_a_compiled_step_has_the_same_bits(rng):
    x = rng.normal(size=(96, 4)).astype("f4")
    y = (x.sum(-1) > 0).astype("i4")

    def trained(compiled):
        lbrx.random.seed(1)
        net = Net()
        optimizer = optim.AdamW(learning_rate=0.02)
        both = nn.value_and_grad(
            net, lambda x, y: nn.losses.cross_entropy(net(x), y, reduction="mean")
        )

        def step(x, y):
            value, gradients = both(x, y)
            gradients, _ = optim.clip_grad_norm(gradients, 1.0)
            optimizer.update(net, gradients)
            return value

        if compiled:
            state = [net.state, optimizer.state]
            step = lbrx.compile(step, inputs=state, outputs=state)
        batch = lbrx.tensor(x, device="metal"), lbrx.tensor(y, device="metal")
        values = [step(*batch).item() for _ in range(31)]
        return values, net, optimizer

    lbrx.set_default_device("metal")
    try:
        with lbrx.deterministic():
            plain, net, _ = trained(False)
            replayed, again, optimizer = trained(True)
    finally:
        lbrx.set_default_device(None)
    assert plain == replayed
    assert plain[-1] < 0.2 * plain[0]
    assert optimizer.step.item() == 31
    for (path, a), (_, b) in zip(
        lbrx.tree_flatten(net.parameters()), lbrx.tree_flatten(again.parameters()), strict=True
    ):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=path)


# ---- layers, beside numpy ----


def _conv2d(x, w, stride, padding):
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height = (padded.shape[1] - w.shape[1]) // stride + 1
    width = (padded.shape[2] - w.shape[2]) // stride + 1
    made = np.zeros((len(x), height, width, len(w)))
    for i, j in np.ndindex(height, width):
        part = padded[:, i * stride :, j * stride :][:, : w.shape[1], : w.shape[2]]
        made[:, i, j] = np.einsum("nhwc,ohwc->no", part, w)
    return made


def test_convolutions_have_channels_last(place, rng):
    x, w = rng.normal(size=(2, 6, 5, 3)), rng.normal(size=(4, 3, 2, 3))
    layer = nn.Conv2d(3, 4, (3, 2), stride=2, padding=1)
    layer.load_weights(
        [("weight", lbrx.tensor(w, lbrx.float32, place)), ("bias", lbrx.ones(4, device=place))]
    )
    layer.update({k: x.to_device(place) for k, x in layer.parameters().items()})
    made = layer(lbrx.tensor(x, lbrx.float32, place))
    np.testing.assert_allclose(made.numpy(), _conv2d(x, w, 2, 1) + 1, rtol=1e-4, atol=1e-4)
    # A transposed convolution is the gradient of a convolution with regard to its images.
    g = rng.normal(size=made.shape)
    transposed = nn.ConvTranspose2d(
        4, 3, (3, 2), stride=2, padding=1, output_padding=(1, 1), bias=False
    )
    transposed.weight = lbrx.tensor(w.transpose(3, 1, 2, 0), lbrx.float32, place)
    expected = lbrx.grad(lambda x: (layer(x) * lbrx.tensor(g, lbrx.float32, place)).sum())(
        lbrx.tensor(x, lbrx.float32, place)
    )
    found = transposed(lbrx.tensor(g, lbrx.float32, place))
    np.testing.assert_allclose(found.numpy()[:, :6, :5], expected.numpy(), rtol=1e-3, atol=1e-4)


def test_lstm_beside_its_formula(place, rng):
    layer = nn.LSTM(3, 4)
    values = {k: rng.normal(size=x.shape) for k, x in layer.parameters().items()}
    layer.load_weights((k, lbrx.tensor(x, lbrx.float32)) for k, x in values.items())
    layer.update({k: x.to_device(place) for k, x in layer.parameters().items()})
    x = rng.normal(size=(2, 5, 3))
    hidden, cells = layer(lbrx.tensor(x, lbrx.float32, place))
    h = c = np.zeros((2, 4))

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    for i in range(5):
        gates = x[:, i] @ values["Wx"].T + h @ values["Wh"].T + values["bias"]
        a, f, g, o = np.split(gates, 4, -1)
        c = sigmoid(f) * c + sigmoid(a) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(hidden.numpy()[:, i], h, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(cells.numpy()[:, i], c, rtol=1e-4, atol=1e-5)


def test_dropout_keeps_the_mean_and_stops_in_eval_mode(place):
    lbrx.random.seed(5)
    x = lbrx.ones((4, 50, 50, 8), device=place)
    for layer, shape in ((nn.Dropout(0.25), x.shape), (nn.Dropout2d(0.25), (4, 1, 1, 8))):
        made = layer(x).numpy()
        assert set(np.unique(made)) == {0, np.float32(1 / 0.75)}
        assert abs((made == 0).mean() - 0.25) < (0.01 if shape == x.shape else 0.25)
        if shape != x.shape:
            assert (made == made[:, :1, :1]).all()
        assert layer.eval()(x) is x


def test_a_linear_map_may_be_quantized(place, rng):
    layer = nn.Linear(64, 5)
    quantized = nn.QuantizedLinear.from_linear(layer, "q8_0")
    x = lbrx.tensor(rng.normal(size=(3, 64)).astype("f4"))
    np.testing.assert_allclose(quantized(x).numpy(), layer(x).numpy(), atol=0.05)
    assert quantized.trainable_parameters() == {}
    found = lbrx.grad(lambda x: quantized(x).sum())(x)
    np.testing.assert_allclose(
        found.numpy(), np.tile(layer.weight.numpy().sum(0), (3, 1)), atol=0.05
    )


def test_cross_entropy_beside_numpy(place, rng):
    logits, classes = rng.normal(size=(3, 5, 7)), rng.integers(0, 7, (3, 5))
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(logs, classes[..., None], -1)[..., 0]
    own, targets = lbrx.tensor(logits, lbrx.float32, place), lbrx.tensor(classes, device=place)
    made = nn.losses.cross_entropy(own, targets)
    np.testing.assert_allclose(made.numpy(), -picked, rtol=1e-5, atol=1e-5)
    smooth = nn.losses.cross_entropy(own, targets, label_smoothing=0.2, reduction="mean")
    expected = (-0.8 * picked - 0.2 * logs.mean(-1)).mean()
    assert smooth.item() == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ShapeError, match=r"targets of shape \(3,\): give \(3, 5\)"):
        nn.losses.cross_entropy(own, targets[:, 0])
    with pytest.raises(ValueError, match="reduction='all'"):
        nn.losses.cross_entropy(own, targets, reduction="all")


def test_initializers():
    lbrx.random.seed(2)
    x = lbrx.zeros((64, 32))
    assert nn.init.constant(2)(x).numpy().tolist() == np.full((64, 32), 2.0).tolist()
    assert abs(nn.init.normal(1, 0.5)(x).mean().item() - 1) < 0.05
    assert nn.init.uniform(-2, 3)(x).min().item() >= -2
    assert nn.init.he_normal()(x, "fan_out").std().item() == pytest.approx(1 / 8, rel=0.1)
    assert nn.init.he_uniform()(x).abs().max().item() <= math.sqrt(3 / 32)
    assert nn.init.glorot_normal()(x).std().item() == pytest.approx(math.sqrt(2 / 96), rel=0.1)
    assert nn.init.glorot_uniform()(x).abs().max().item() <= math.sqrt(6 / 96)
    zeros = (nn.init.sparse(0.25)(x) == 0).numpy().sum(0)
    assert set(zeros.tolist()) == {16}
    q = nn.init.orthogonal()(x).numpy()
    np.testing.assert_allclose(q.T @ q, np.eye(32), atol=1e-5)
    with pytest.raises(ShapeError, match="square"):
        nn.init.identity()(x)
