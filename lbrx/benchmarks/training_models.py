"""The models of training_speed.py, in lbrx and in PyTorch, with the same first weights.

Each case is a pair of functions that make a step: a function without arguments that updates the
weights once and returns the loss. The second one is given the weights of the first.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lbrx
from lbrx import nn, optim
from lbrx.train.examples import Batch
from lbrx.train.options import TrainOptions
from lbrx.train.run import Run
from lbrx.trees import tree_flatten

Step = Callable[[], float]
RATE, DECAY = 1e-3, 0.01
RANK, LORA_BATCH, LORA_LENGTH = 8, 4, 128


@dataclass(frozen=True)
class Case:
    """A model that is trained by both."""

    name: str
    lbrx: Callable[[], Step]
    torch: Callable[[], Step]


def lbrx_step(model: nn.Module, loss: Callable[..., lbrx.Tensor], batch: list[np.ndarray]) -> Step:
    """A compiled step of AdamW."""
    optimizer = optim.AdamW(RATE, weight_decay=DECAY, bias_correction=True)
    optimizer.init(model.trainable_parameters())
    gradients = nn.value_and_grad(model, loss)
    state = [model, optimizer.state]

    def update(*batch: lbrx.Tensor) -> lbrx.Tensor:
        value, found = gradients(*batch)
        optimizer.update(model, found)
        return value

    step = lbrx.compile(update, inputs=state, outputs=state)
    tensors = [lbrx.tensor(each, device="metal") for each in batch]

    def run() -> float:
        value = step(*tensors)
        lbrx.eval(value, model, optimizer.state)
        return value.item()

    return run


def torch_step(parameters: Any, loss: Callable[[], Any]) -> Step:
    """A step of AdamW, with PyTorch's fused update."""
    import torch

    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=DECAY, fused=True)

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        optimizer.step()
        return float(value.detach())

    return run


def weights_of(model: nn.Module) -> dict[str, Any]:
    """A model's parameters as PyTorch's."""
    import torch

    return {
        path: torch.nn.Parameter(torch.tensor(x.numpy()))
        for path, x in tree_flatten(model.parameters())
    }


# ---- multi-layer perceptron ----


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = (784, 512, 512, 10)
        self.layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]

    def __call__(self, x: lbrx.Tensor) -> lbrx.Tensor:
        for layer in self.layers[:-1]:
            x = nn.relu(layer(x))
        return self.layers[-1](x)


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((count, 784)).astype("f4"), rng.integers(0, 10, count)


def classes_loss(model: nn.Module) -> Callable[..., lbrx.Tensor]:
    return lambda x, y: nn.losses.cross_entropy(model(x), y, reduction="mean")


def perceptron() -> Perceptron:
    lbrx.random.seed(0)
    return Perceptron()


def perceptron_lbrx() -> Step:
    model = perceptron()
    return lbrx_step(model, classes_loss(model), list(images(256)))


def perceptron_torch() -> Step:
    import torch
    from torch.nn import functional

    own = weights_of(perceptron())
    x, y = map(torch.tensor, images(256))

    def loss() -> Any:
        h = x
        for i in range(3):
            h = functional.linear(h, own[f"layers.{i}.weight"], own[f"layers.{i}.bias"])
            h = h.relu() if i < 2 else h
        return functional.cross_entropy(h, y)

    return torch_step(own.values(), loss)


# ---- convolutional network ----


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 64, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(64 * 49, 10)

    def __call__(self, x: lbrx.Tensor) -> lbrx.Tensor:
        x = x.reshape(-1, 28, 28, 1)
        x = self.pool(nn.relu(self.first(x)))
        x = self.pool(nn.relu(self.second(x)))
        return self.last(x.reshape(x.shape[0], -1))


def convolutional() -> Convolutional:
    lbrx.random.seed(0)
    return Convolutional()


def convolutional_lbrx() -> Step:
    model = convolutional()
    return lbrx_step(model, classes_loss(model), list(images(64)))


def convolutional_torch() -> Step:
    import torch
    from torch.nn import functional

    own = weights_of(convolutional())
    for name in ("first", "second"):  # (outputs, height, width, inputs) in lbrx
        own[f"{name}.weight"] = torch.nn.Parameter(own[f"{name}.weight"].permute(0, 3, 1, 2))
    x, y = map(torch.tensor, images(64))

    def loss() -> Any:
        h = x.reshape(-1, 1, 28, 28)
        for name in ("first", "second"):
            h = functional.conv2d(h, own[f"{name}.weight"], own[f"{name}.bias"], padding=1)
            h = functional.max_pool2d(h.relu(), 2)
        h = h.permute(0, 2, 3, 1).reshape(len(h), -1)
        return functional.cross_entropy(
            functional.linear(h, own["last.weight"], own["last.bias"]), y
        )

    return torch_step(own.values(), loss)


# ---- small transformer ----

WORDS, DIMS, HEADS, LAYERS, LENGTH, ROWS = 1000, 256, 4, 4, 128, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIMS), nn.LayerNorm(DIMS)
        self.qkv = nn.Linear(DIMS, 3 * DIMS, bias=False)
        self.out = nn.Linear(DIMS, DIMS, bias=False)
        self.up, self.down = nn.Linear(DIMS, 4 * DIMS), nn.Linear(4 * DIMS, DIMS)

    def __call__(self, x: lbrx.Tensor) -> lbrx.Tensor:
        parts = self.qkv(self.ln1(x)).reshape(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = lbrx.attention(parts[0], parts[1], parts[2], causal=True)
        x = x + self.out(seen.swapaxes(1, 2).reshape(x.shape))
        return x + self.down(nn.gelu(self.up(self.ln2(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, DIMS)
        self.places = nn.Embedding(LENGTH, DIMS)
        self.blocks = [Block() for _ in range(LAYERS)]
        self.ln = nn.LayerNorm(DIMS)
        self.head = nn.Linear(DIMS, WORDS)

    def __call__(self, tokens: lbrx.Tensor) -> lbrx.Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def transformer() -> Transformer:
    lbrx.random.seed(0)
    return Transformer()


def sentences() -> np.ndarray:
    return np.random.default_rng(0).integers(0, WORDS, (ROWS, LENGTH + 1)).astype("i4")


def transformer_lbrx() -> Step:
    model = transformer()

    def loss(tokens: lbrx.Tensor) -> lbrx.Tensor:
        return nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], reduction="mean")

    return lbrx_step(model, loss, [sentences()])


def transformer_torch() -> Step:
    import torch
    from torch.nn import functional

    own = weights_of(transformer())
    tokens = torch.tensor(sentences()).long()

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(x, (DIMS,), own[f"{name}.weight"], own[f"{name}.bias"])

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, own[f"{name}.weight"], own.get(f"{name}.bias"))

    def loss() -> Any:
        x = own["words.weight"][tokens[:, :-1]] + own["places.weight"]
        for i in range(LAYERS):
            at = f"blocks.{i}"
            parts = linear(norm(x, f"{at}.ln1"), f"{at}.qkv")
            parts = parts.reshape(ROWS, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + linear(seen.transpose(1, 2).reshape(x.shape), f"{at}.out")
            x = x + linear(functional.gelu(linear(norm(x, f"{at}.ln2"), f"{at}.up")), f"{at}.down")
        return functional.cross_entropy(
            linear(norm(x, "ln"), "head").flatten(0, 1), tokens[:, 1:].flatten()
        )

    return torch_step(own.values(), loss)


# ---- LoRA of a language model ----


def lora_tokens(vocabulary: int) -> np.ndarray:
    shape = (LORA_BATCH, LORA_LENGTH + 1)
    return np.random.default_rng(0).integers(0, vocabulary, shape).astype("i4")


def lora_run(model: Path) -> Run:
    """A run with the adapter's values as they are at first."""
    data = model.with_suffix(".jsonl")
    data.write_text(json.dumps({"text": "It was a bright cold day in April."}) + "\n")
    options = TrainOptions(
        steps=1000, rank=RANK, length=LORA_LENGTH, batch=LORA_BATCH, rate=RATE, clip=0,
        schedule="constant",
    )  # fmt: skip
    return Run(str(model), data, model.with_suffix(".out"), options, device="metal")


def lora_lbrx(model: Path) -> Step:
    run = lora_run(model)
    tokens = lora_tokens(run.network.config.vocabulary)
    batch = run._placed(Batch(tokens, np.ones((LORA_BATCH, LORA_LENGTH), np.float32)))

    def step() -> float:
        value, found = run._gradients(*batch)
        run._update(found, 1 / (LORA_BATCH * LORA_LENGTH))
        lbrx.eval(run.adapter, run.optimizer.state)
        return value.item() / (LORA_BATCH * LORA_LENGTH)

    return step


def lora_torch(model: Path) -> Step:
    """A llama with RMS norms, RoPE, grouped heads and a gated MLP, with float32 weights."""
    import torch
    from torch.nn import functional

    run = lora_run(model)
    config, scale = run.network.config, run.options.scale
    pairs = zip(run.adapter._maps, run.adapter.factors, strict=True)
    own = {
        each.name: [torch.nn.Parameter(torch.tensor(x.numpy())) for x in (made.a, made.b)]
        for each, made in pairs
    }
    stored = lbrx.open_model(str(model)).canonical()
    fixed = {name: torch.tensor(stored[name].numpy()) for name in stored}
    del run, stored
    tokens = torch.tensor(lora_tokens(config.vocabulary)).long()
    half = config.head_size // 2
    steps = config.rope.base ** -(torch.arange(half) / half)
    angles = torch.arange(LORA_LENGTH)[:, None] * steps
    cosines, sines = angles.cos(), angles.sin()

    def linear(x: Any, name: str) -> Any:
        a, b = own[name]
        return (
            functional.linear(x, fixed[f"{name}.weight"])
            + functional.linear(functional.linear(x, a), b) * scale
        )

    def norm(x: Any, name: str) -> Any:
        return functional.rms_norm(x, (config.hidden,), fixed[f"{name}.weight"], config.norm_eps)

    def heads(x: Any) -> Any:
        return x.reshape(LORA_BATCH, LORA_LENGTH, -1, config.head_size).transpose(1, 2)

    def turned(x: Any) -> Any:
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cosines - b * sines, b * cosines + a * sines), -1)

    def layer(x: Any, at: str) -> Any:
        h = norm(x, f"{at}.input_layernorm")
        q, k, v = (heads(linear(h, f"{at}.self_attn.{n}_proj")) for n in "qkv")
        seen = functional.scaled_dot_product_attention(
            turned(q), turned(k), v, is_causal=True, enable_gqa=True
        )
        x = x + linear(seen.transpose(1, 2).reshape(*h.shape[:2], -1), f"{at}.self_attn.o_proj")
        h = norm(x, f"{at}.post_attention_layernorm")
        inner = functional.silu(linear(h, f"{at}.mlp.gate_proj")) * linear(h, f"{at}.mlp.up_proj")
        return x + linear(inner, f"{at}.mlp.down_proj")

    def loss() -> Any:
        x = fixed["model.embed_tokens.weight"][tokens[:, :-1]]
        for i in range(config.layers):
            x = layer(x, f"model.layers.{i}")
        head = fixed.get("lm_head.weight", fixed["model.embed_tokens.weight"])
        logits = functional.linear(norm(x, "model.norm"), head)
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    assert math.isclose(config.hidden, config.heads * config.head_size)
    return torch_step([x for pair in own.values() for x in pair], loss)


def cases(folder: Path) -> list[Case]:
    """All cases, with the models of those that need one in a folder."""
    f32, q8_0 = folder / "f32.gguf", folder / "q8_0.gguf"
    return [
        Case("mlp", perceptron_lbrx, perceptron_torch),
        Case("conv", convolutional_lbrx, convolutional_torch),
        Case("transformer", transformer_lbrx, transformer_torch),
        Case("lora-f32", lambda: lora_lbrx(f32), lambda: lora_torch(f32)),
        Case("lora-q8_0", lambda: lora_lbrx(q8_0), lambda: lora_torch(q8_0)),
    ]
