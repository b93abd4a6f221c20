"""Small torch networks of common kinds, at sizes that a seed draws, with their inputs.

Their parameters are numbers of float16, so that a conversion to float16 weights loses nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
F = nn.functional


@dataclass(frozen=True)
class Network:
    """A module, the inputs of its calls in order, and the names and shapes of its states."""

    module: nn.Module
    calls: tuple[dict[str, Array], ...]
    states: dict[str, tuple[int, ...]] = field(default_factory=dict)


class Draw:
    """Random sizes and values of one network."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def size(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def real(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float16).astype(np.float32)

    def whole(self, high: int, *shape: int) -> Array:
        return self.rng.integers(0, high, shape).astype(np.int32)


class Perceptron(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.gelu(layer(x))
        return torch.softmax(self.layers[-1](x), dim=-1)


class Residual(nn.Module):
    """A stem, a block with a stride, a depthwise convolution, and a mean over the image."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.first = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(2 * channels)
        self.depthwise = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels)
        self.skip = nn.Conv2d(channels, 2 * channels, 1, stride=2)
        self.head = nn.Linear(2 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.hardswish(self.norm(self.first(x)))
        x = F.relu6(self.depthwise(y) + self.skip(x))
        return self.head(x.mean(dim=(2, 3)))


class Segmenter(nn.Module):
    """A U-Net of two levels: a pooled path, a transposed and a bilinear way up, and skips."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.bottom = nn.Conv2d(2 * channels, 2 * channels, 3, padding=2, dilation=2)
        self.norm = nn.GroupNorm(2, 2 * channels)
        self.up = nn.ConvTranspose2d(2 * channels, 2 * channels, 2, stride=2)
        self.joined = nn.Conv2d(4 * channels, channels, 3, padding=1)
        self.last = nn.Conv2d(2 * channels, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.first(x))
        two = F.leaky_relu(self.second(F.max_pool2d(one, 2)), 0.1)
        deep = F.silu(self.norm(self.bottom(F.avg_pool2d(two, 2))))
        joined = F.elu(self.joined(torch.cat([self.up(deep), two], dim=1)))
        wide = F.interpolate(joined, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.sigmoid(self.last(torch.cat([wide, one], dim=1)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (one.unflatten(-1, (self.heads, self.size)).transpose(1, 2) for one in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.before(x), mask)
        return x + self.down(F.gelu(self.up(self.after(x))))


class VisionTransformer(nn.Module):
    def __init__(self, width: int, heads: int, image: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.mark = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width))
        self.block, self.norm = Block(width, heads), nn.LayerNorm(width)
        self.head = nn.Linear(width, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.mark.expand(1, -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.block(x))[:, 0])


class Encoder(nn.Module):
    """A BERT-like encoder with a mask of padding, and a pooled first token."""

    def __init__(self, vocabulary: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width))
        self.norm, self.block = nn.LayerNorm(width), Block(width, heads)
        self.pool = nn.Linear(width, width)

    def forward(self, ids: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.words(ids) + self.places)
        mask = (1.0 - present[:, None, None, :]) * -10000.0
        x = self.block(x, mask)
        return x, torch.tanh(self.pool(x[:, 0]))


class Llama(nn.Module):
    """One block with grouped heads, rotary positions, and a cache of keys and values as states."""

    def __init__(self, width: int, heads: int, groups: int, context: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm = nn.Parameter(1 + torch.randn(width) / 8)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.register_buffer("keys", torch.zeros(1, groups, context, self.size))
        self.register_buffer("values", torch.zeros(1, groups, context, self.size))

    def _normed(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm

    def _heads(self, x: Tensor, count: int) -> Tensor:
        return x.view(1, 1, count, self.size).transpose(1, 2)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-right, left], dim=-1) * sin

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, place: Tensor, mask: Tensor) -> Tensor:
        normed = self._normed(x)
        q = self._turned(self._heads(self.q(normed), self.heads), cos, sin)
        k = self._turned(self._heads(self.k(normed), self.groups), cos, sin)
        v = self._heads(self.v(normed), self.groups)
        self.keys.mul_(1 - place).add_(k * place)
        self.values.mul_(1 - place).add_(v * place)
        times = self.heads // self.groups
        keys = self.keys.repeat_interleave(times, dim=1)
        values = self.values.repeat_interleave(times, dim=1)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        normed = self._normed(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Tagger(nn.Module):
    """Two bidirectional LSTM layers and a linear one."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0])


class Gated(nn.Module):
    """A GRU, which coremltools converts to a loop."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


class Listener(nn.Module):
    """The shape of Whisper's encoder: two 1-D convolutions, positions, a block and a norm."""

    def __init__(self, bands: int, width: int, heads: int, frames: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.places = nn.Parameter(torch.randn(frames // 2, width))
        self.block, self.norm = Block(width, heads), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(x)))).transpose(1, 2)
        return self.norm(self.block(x + self.places))


def _perceptron(draw: Draw) -> Network:
    sizes = [4 * draw.size(2, 4), 4 * draw.size(5, 9), 4 * draw.size(10, 12), draw.size(3, 6)]
    return Network(Perceptron(sizes), ({"x": draw.real(draw.size(1, 3), sizes[0])},))


def _residual(draw: Draw) -> Network:
    module = Residual(draw.size(4, 8), draw.size(3, 9))
    for norm in (module.stem[1], module.norm):
        norm.running_mean.copy_(torch.from_numpy(draw.real(norm.num_features)))
        norm.running_var.copy_(torch.from_numpy(np.abs(draw.real(norm.num_features)) + 0.5))
    return Network(module, ({"x": draw.real(1, 3, draw.size(9, 16), draw.size(9, 16))},))


def _segmenter(draw: Draw) -> Network:
    image = draw.real(1, 1, 4 * draw.size(2, 5), 4 * draw.size(2, 5))
    return Network(Segmenter(2 * draw.size(2, 3)), ({"x": image},))


def _vision_transformer(draw: Draw) -> Network:
    heads, patch = draw.size(1, 3), draw.size(3, 5)
    image = patch * draw.size(2, 4)
    module = VisionTransformer(4 * heads * draw.size(1, 2), heads, image, patch)
    return Network(module, ({"x": draw.real(1, 3, image, image)},))


def _encoder(draw: Draw) -> Network:
    heads, length, words = draw.size(1, 3), draw.size(5, 11), draw.size(20, 50)
    present = np.ones((2, length), np.float32)
    present[1, draw.size(1, length - 1) :] = 0
    module = Encoder(words, 4 * heads * draw.size(1, 2), heads, length)
    return Network(module, ({"ids": draw.whole(words, 2, length), "present": present},))


def _llama(draw: Draw) -> Network:
    groups, size, context = draw.size(1, 2), 2 * draw.size(2, 4), draw.size(4, 7)
    heads = groups * draw.size(1, 3)
    module = Llama(heads * size, heads, groups, context)
    calls = []
    for step in range(3):
        angles = step / 100 ** (np.arange(size // 2) * 2 / size)
        angles = np.concatenate([angles, angles])[None, None, None]
        place = np.zeros((1, 1, context, 1), np.float32)
        place[:, :, step] = 1
        mask = np.where(np.arange(context) <= step, 0, -1e4).astype(np.float32)
        calls.append(
            {
                "x": draw.real(1, 1, heads * size),
                "cos": np.cos(angles).astype(np.float32),
                "sin": np.sin(angles).astype(np.float32),
                "place": place,
                "mask": mask.reshape(1, 1, 1, context),
            }
        )
    cache = (1, groups, context, size)
    return Network(module, tuple(calls), {"keys": cache, "values": cache})


def _tagger(draw: Draw) -> Network:
    width = draw.size(3, 8)
    x = draw.real(draw.size(1, 2), draw.size(3, 9), width)
    return Network(Tagger(width, draw.size(3, 8)), ({"x": x},))


def _gated(draw: Draw) -> Network:
    width = draw.size(3, 8)
    x = draw.real(draw.size(3, 9), draw.size(1, 2), width)
    return Network(Gated(width, draw.size(3, 8)), ({"x": x},))


def _listener(draw: Draw) -> Network:
    heads, bands, frames = draw.size(1, 3), draw.size(4, 10), 2 * draw.size(5, 12)
    module = Listener(bands, 4 * heads * draw.size(1, 2), heads, frames)
    return Network(module, ({"x": draw.real(1, bands, frames)},))


_MAKERS: dict[str, Callable[[Draw], Network]] = {
    "perceptron": _perceptron,
    "residual": _residual,
    "segmenter": _segmenter,
    "vision_transformer": _vision_transformer,
    "encoder": _encoder,
    "llama": _llama,
    "tagger": _tagger,
    "gated": _gated,
    "listener": _listener,
}
NAMES = tuple(_MAKERS)


def make(name: str, seed: int) -> Network:
    """A network of one kind; the same seed gives the same sizes, parameters and inputs."""
    torch.manual_seed(seed)
    network = _MAKERS[name](Draw(seed))
    network.module.half().float().eval()
    return network


def outputs(network: Network) -> list[list[Array]]:
    """What torch computes for each call in turn, from states of zeros."""
    for name in network.states:
        getattr(network.module, name).zero_()
    results = []
    with torch.no_grad():
        for call in network.calls:
            found = network.module(*(torch.from_numpy(one) for one in call.values()))
            found = found if isinstance(found, tuple) else (found,)
            results.append([one.numpy().copy() for one in found])
    return results
