"""Layers, losses, optimizers and schedules beside those of MLX, whose names and semantics they
have: the same parameters and inputs give the same results, gradients and steps."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
import lbrx.nn as nn
import lbrx.optim as optim

mlx = pytest.importorskip("mlx.core", reason="MLX is installed for the peers alone")
import mlx.nn as their_nn  # noqa: E402
import mlx.optimizers as their_optim  # noqa: E402
import mlx.utils as their_trees  # noqa: E402

SEQUENCE = (2, 5, 8)
IMAGES = (2, 9, 8, 4)
# name, arguments, shape of the input, options of the call
LAYERS = [
    ("Linear", (8, 3), {}, SEQUENCE),
    ("Linear", (8, 3), {"bias": False}, SEQUENCE),
    ("LayerNorm", (8,), {}, SEQUENCE),
    ("LayerNorm", (8,), {"affine": False, "eps": 1e-3}, SEQUENCE),
    ("RMSNorm", (8,), {"eps": 1e-3}, SEQUENCE),
    ("InstanceNorm", (4,), {"affine": True}, IMAGES),
    ("GroupNorm", (2, 4), {}, IMAGES),
    ("GroupNorm", (2, 4), {"pytorch_compatible": True}, IMAGES),
    ("BatchNorm", (4,), {}, IMAGES),
    ("Conv1d", (8, 6, 3), {"stride": 2, "padding": 1}, SEQUENCE),
    ("Conv2d", (4, 6, 3), {}, IMAGES),
    ("Conv2d", (4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 0), "groups": 2}, IMAGES),
    ("Conv2d", (4, 6, 2), {"dilation": 2, "bias": False}, IMAGES),
    ("ConvTranspose1d", (8, 3, 4), {"stride": 2, "padding": 1}, SEQUENCE),
    ("ConvTranspose2d", (4, 3, 3), {"stride": 2, "padding": 1}, IMAGES),
    ("ConvTranspose2d", (4, 3, (2, 3)), {"dilation": 2, "stride": (1, 2)}, IMAGES),
    ("MaxPool2d", (2,), {}, IMAGES),
    ("MaxPool2d", ((3, 2),), {"stride": 2, "padding": 1}, IMAGES),
    ("AvgPool2d", (3,), {"stride": (1, 2), "padding": 1}, IMAGES),
    ("MaxPool1d", (2,), {}, SEQUENCE),
    ("AvgPool1d", (3,), {"stride": 1}, SEQUENCE),
    ("RNN", (8, 5), {}, SEQUENCE),
    ("GRU", (8, 5), {}, SEQUENCE),
    ("GRU", (8, 5), {"bias": False}, SEQUENCE),
    ("LSTM", (8, 5), {}, SEQUENCE),
    ("TransformerEncoder", (2, 8, 2), {"mlp_dims": 12}, SEQUENCE),
    ("TransformerEncoder", (1, 8, 2), {"norm_first": False, "checkpoint": True}, SEQUENCE),
    ("SinusoidalPositionalEncoding", (8,), {}, (2, 5)),
    ("SinusoidalPositionalEncoding", (8,), {"cos_first": True, "full_turns": True}, (2, 5)),
    ("RoPE", (8,), {"base": 100.0}, SEQUENCE),
    ("RoPE", (6,), {"traditional": True, "scale": 0.5}, SEQUENCE),
    ("ALiBi", (), {}, (2, 4, 3, 5)),
    ("PReLU", (), {}, SEQUENCE),
    *((name, (), {}, SEQUENCE) for name in ("ReLU", "ReLU6", "SELU", "Sigmoid", "LogSigmoid")),
    *((name, (), {}, SEQUENCE) for name in ("Softplus", "SiLU", "Mish", "Tanh", "HardTanh")),
    *((name, (), {}, SEQUENCE) for name in ("Hardswish", "Softsign", "Softmax", "Softmin")),
    *((name, (), {}, SEQUENCE) for name in ("LogSoftmax", "LeakyReLU", "ELU", "CELU", "GLU")),
    *((name, (), {}, SEQUENCE) for name in ("HardShrink", "Softshrink", "Step", "GELU")),
    ("GELU", ("fast",), {}, SEQUENCE),
    ("GELU", ("tanh",), {}, SEQUENCE),
]
NEAR = {"rtol": 3e-5, "atol": 3e-5}


def _first(value):
    return value[0] if isinstance(value, tuple) else value


@pytest.mark.parametrize(("name", "args", "options", "shape"), LAYERS)
def test_layer(name, args, options, shape, rng, place):
    lbrx.set_default_device(place)
    try:
        own, theirs = getattr(nn, name)(*args, **options), getattr(their_nn, name)(*args, **options)
    finally:
        lbrx.set_default_device(None)
    parameters = dict(their_trees.tree_flatten(theirs.parameters()))
    flat = dict(lbrx.tree_flatten(own.parameters()))
    assert {k: x.shape for k, x in flat.items()} == {k: x.shape for k, x in parameters.items()}
    values = {k: rng.normal(size=x.shape).astype("f4") * 0.5 for k, x in parameters.items()}
    values = {k: np.abs(x) + 0.5 if k == "running_var" else x for k, x in values.items()}
    if values:
        own.load_weights((k, lbrx.tensor(x, device=place)) for k, x in values.items())
        theirs.load_weights([(k, mlx.array(x)) for k, x in values.items()])
    x = rng.normal(size=shape).astype("f4")
    mask = (None,) if name == "TransformerEncoder" else ()

    def of_ours(x):
        return _first(own(x, *mask))

    theirs.eval()  # whose statistics a call in training mode would change
    weights = rng.normal(size=_first(theirs(mlx.array(x), *mask)).shape).astype("f4")
    theirs.train()
    both = nn.value_and_grad(own, lambda x: (of_ours(x) * lbrx.tensor(weights, device=place)).sum())
    if values and any(x.size for x in flat.values()) and own.trainable_parameters():
        _, found = both(lbrx.tensor(x, device=place))
        _, expected = their_nn.value_and_grad(
            theirs, lambda x: (_first(theirs(x, *mask)) * mlx.array(weights)).sum()
        )(mlx.array(x))
        expected = dict(their_trees.tree_flatten(expected))
        for path, g in lbrx.tree_flatten(found):
            near = np.array(expected[path])
            size = max(np.abs(near).max(), 1)
            np.testing.assert_allclose(g.numpy(), near, rtol=1e-4, atol=1e-4 * size, err_msg=path)
    for mode in (True, False):
        own.train(mode), theirs.train(mode)
        made, wanted = of_ours(lbrx.tensor(x, device=place)), _first(theirs(mlx.array(x), *mask))
        np.testing.assert_allclose(made.numpy(), np.array(wanted), **NEAR)
    for path, value in lbrx.tree_flatten(own.parameters()):
        if path.startswith("running"):
            np.testing.assert_allclose(value.numpy(), np.array(theirs[path]), **NEAR)


def test_attention_and_transformer(rng):
    own, theirs = nn.Transformer(8, 2, 1, 1, 12), their_nn.Transformer(8, 2, 1, 1, 12)
    values = {
        k: rng.normal(size=x.shape).astype("f4") * 0.5
        for k, x in their_trees.tree_flatten(theirs.parameters())
    }
    own.load_weights((k, lbrx.tensor(x)) for k, x in values.items())
    theirs.load_weights([(k, mlx.array(x)) for k, x in values.items()])
    source, target = (
        rng.normal(size=(2, 5, 8)).astype("f4"),
        rng.normal(size=(2, 3, 8)).astype("f4"),
    )
    mask = nn.MultiHeadAttention.create_additive_causal_mask(3)
    np.testing.assert_allclose(
        mask.numpy(), np.array(their_nn.MultiHeadAttention.create_additive_causal_mask(3))
    )
    made = own(lbrx.tensor(source), lbrx.tensor(target), None, mask, None)
    wanted = theirs(mlx.array(source), mlx.array(target), None, mlx.array(mask.numpy()), None)
    np.testing.assert_allclose(made.numpy(), np.array(wanted), **NEAR)


LOSSES = {
    "l1_loss": {},
    "mse_loss": {},
    "smooth_l1_loss": {"beta": 0.5},
    "huber_loss": {"delta": 0.7},
    "log_cosh_loss": {},
    "hinge_loss": {},
    "kl_div_loss": {},
    "cosine_similarity_loss": {},
    "binary_cross_entropy": {},
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss(name, reduction, rng):
    x, y = rng.normal(size=(4, 6)).astype("f4"), rng.uniform(size=(4, 6)).astype("f4")
    options = {**LOSSES[name], "reduction": reduction}
    made = getattr(nn.losses, name)(lbrx.tensor(x), lbrx.tensor(y), **options)
    wanted = getattr(their_nn.losses, name)(mlx.array(x), mlx.array(y), **options)
    np.testing.assert_allclose(made.numpy(), np.array(wanted), **NEAR)


def test_losses_with_other_arguments(rng):
    x, y, z = (rng.normal(size=(4, 6)).astype("f4") for _ in range(3))
    ours, theirs = [lbrx.tensor(a) for a in (x, y, z)], [mlx.array(a) for a in (x, y, z)]
    classes = rng.integers(0, 6, 4).astype("i4")
    pairs = [
        (n, *(f(a) for f, a in ((lambda a: a, ours), (lambda a: a, theirs))))
        for n in ("triplet_loss",)
    ]
    for name, own, other in pairs:
        made, wanted = getattr(nn.losses, name)(*own), getattr(their_nn.losses, name)(*other)
        np.testing.assert_allclose(made.numpy(), np.array(wanted), **NEAR)
    for options in ({}, {"label_smoothing": 0.1}, {"reduction": "mean"}):
        made = nn.losses.cross_entropy(ours[0], lbrx.tensor(classes), **options)
        wanted = their_nn.losses.cross_entropy(theirs[0], mlx.array(classes), **options)
        np.testing.assert_allclose(made.numpy(), np.array(wanted), **NEAR)
    made = nn.losses.gaussian_nll_loss(ours[0], ours[1], ours[2].abs(), full=True)
    wanted = their_nn.losses.gaussian_nll_loss(theirs[0], theirs[1], abs(theirs[2]), full=True)
    np.testing.assert_allclose(made.numpy(), np.array(wanted), **NEAR)
    made = nn.losses.margin_ranking_loss(*ours[:2], ours[2].sign(), margin=0.3)
    wanted = their_nn.losses.margin_ranking_loss(*theirs[:2], mlx.sign(theirs[2]), margin=0.3)
    np.testing.assert_allclose(made.numpy(), np.array(wanted), **NEAR)


OPTIMIZERS = [
    ("SGD", {"learning_rate": 0.1}),
    ("SGD", {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    ("SGD", {"learning_rate": 0.1, "momentum": 0.9, "dampening": 0.2}),
    ("RMSprop", {"learning_rate": 0.01}),
    ("Adagrad", {"learning_rate": 0.1}),
    ("AdaDelta", {"learning_rate": 1.0}),
    ("Adam", {"learning_rate": 0.01}),
    ("Adam", {"learning_rate": 0.01, "bias_correction": True}),
    ("AdamW", {"learning_rate": 0.01, "weight_decay": 0.1}),
    ("Adamax", {"learning_rate": 0.01}),
    ("Lion", {"learning_rate": 0.01, "weight_decay": 0.1}),
    ("Adafactor", {}),
    (
        "Adafactor",
        {"learning_rate": 0.01, "relative_step": False, "beta_1": 0.9, "weight_decay": 0.1},
    ),
    ("Adafactor", {"warmup_init": True, "scale_parameter": False}),
    ("Muon", {"learning_rate": 0.05}),
    ("Muon", {"learning_rate": 0.05, "nesterov": False, "weight_decay": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_optimizer(name, options, rng, place):
    values = {
        "a": rng.normal(size=(6, 4)),
        "b": rng.normal(size=5),
        "c": {"d": rng.normal(size=(3, 5))},
    }
    own = lbrx.tree_map(lambda x: lbrx.tensor(x.astype("f4"), device=place), values)
    other = their_trees.tree_map(lambda x: mlx.array(x.astype("f4")), values)
    ours, theirs = getattr(optim, name)(**options), getattr(their_optim, name)(**options)
    for _ in range(5):
        g = lbrx.tree_map(lambda x: rng.normal(size=x.shape).astype("f4"), values)
        own = ours.apply_gradients(lbrx.tree_map(lambda x: lbrx.tensor(x, device=place), g), own)
        other = theirs.apply_gradients(their_trees.tree_map(mlx.array, g), other)
    for path, x in lbrx.tree_flatten(own):
        wanted = np.array(dict(their_trees.tree_flatten(other))[path])
        np.testing.assert_allclose(x.numpy(), wanted, rtol=2e-4, atol=2e-5, err_msg=path)


def test_schedules():
    pairs = [
        (each.exponential_decay(0.1, 0.9), each.step_decay(0.1, 0.5, 3), each.cosine_decay(0.1, 8, 0.01),
         each.linear_schedule(0.0, 0.1, 5),
         each.join_schedules([each.linear_schedule(0.0, 0.1, 4), each.cosine_decay(0.1, 6)], [4]))
        for each in (optim, their_optim)
    ]  # fmt: skip
    for ours, theirs in zip(*pairs, strict=True):
        for step in range(14):
            found = ours(lbrx.tensor(step, device="cpu")).item()
            assert found == pytest.approx(float(theirs(mlx.array(step))), rel=1e-5, abs=1e-8)


def test_clipping(rng):
    g = {"a": rng.normal(size=(3, 4)).astype("f4"), "b": [rng.normal(size=2).astype("f4")]}
    for most in (0.5, 100.0):
        made, norm = optim.clip_grad_norm(lbrx.tree_map(lbrx.tensor, g), most)
        wanted, their_norm = their_optim.clip_grad_norm(their_trees.tree_map(mlx.array, g), most)
        assert norm.item() == pytest.approx(their_norm.item(), rel=1e-5)
        for (_, x), (_, y) in zip(
            lbrx.tree_flatten(made), their_trees.tree_flatten(wanted), strict=True
        ):
            np.testing.assert_allclose(x.numpy(), np.array(y), **NEAR)
