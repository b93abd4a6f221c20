"""Torch functions through coremltools' converter: what softcoreml computes is torch's."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seeds import generator

pytest.importorskip("torch", reason="the peer: make test-peers")
pytest.importorskip("coremltools", reason="the converter: pip install coremltools")
sys.path.insert(0, str(Path(__file__).parents[1]))
import coremltools as ct
import torch
from mil_run import close

import softcoreml

F, nn = torch.nn.functional, torch.nn
Array = np.ndarray
Case = tuple[str, Callable[..., Any], tuple[Array, ...]]
_RNG = generator(77)


def real(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


def whole(high: int, *shape: int) -> Array:
    return _RNG.integers(0, high, shape).astype(np.int32)


def positive(*shape: int) -> Array:
    return np.abs(real(*shape)) + np.float32(0.1)


X, Y, IMAGE = real(2, 3, 4), real(2, 3, 4), real(2, 4, 7, 9)
ONE: dict[str, Callable[[Any], Any]] = {
    name: getattr(torch, name)
    for name in "abs atan ceil cos erf exp exp2 floor neg sigmoid sign sin sinh square tan tanh".split()
}
ONE |= {
    name: getattr(F, name)
    for name in "elu gelu hardsigmoid hardswish hardtanh leaky_relu mish relu relu6 selu silu softplus softsign".split()
}
ONE |= {
    "amax": lambda x: x.amax((0, 2)),
    "argmax": lambda x: x.argmax(1).float(),
    "argmin": lambda x: x.argmin(-1, keepdim=True).float(),
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "cumsum": lambda x: x.cumsum(1),
    "diagonal mask": lambda x: x.tril(1) + x.triu(-1),
    "expand": lambda x: x[:, :1].expand(2, 5, 4),
    "flatten": lambda x: x.flatten(1),
    "flip": lambda x: x.flip((0, 2)),
    "floor divide": lambda x: torch.floor_divide(x, 0.3),
    "frobenius": lambda x: torch.linalg.norm(x, dim=(1, 2)),
    "layer norm": lambda x: F.layer_norm(x, (3, 4)),
    "log softmax": lambda x: F.log_softmax(x, dim=1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "max of axis": lambda x: x.max(dim=1)[0],
    "mean": lambda x: x.mean((0, 1)),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "norm": lambda x: x.norm(dim=-1),
    "one hot": lambda x: F.one_hot(x.argmax(-1), 4).float(),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.3),
    "pad reflect": lambda x: F.pad(x, (1, 2), mode="reflect"),
    "pad replicate": lambda x: F.pad(x, (3, 2), mode="replicate"),
    "permute": lambda x: x.permute(2, 0, 1).contiguous(),
    "pow": lambda x: x.abs().pow(1.7),
    "remainder": lambda x: torch.remainder(x, 0.4),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "roll": lambda x: x.roll(1, 1),
    "select": lambda x: x[:, -1, ::2],
    "softmax": lambda x: x.softmax(1),
    "sort": lambda x: x.sort(dim=1, descending=True)[0],
    "split": lambda x: x.split([1, 2], 1)[1],
    "stack": lambda x: torch.stack([x, x + 1], dim=1),
    "std": lambda x: x.std(dim=2),
    "steps": lambda x: x[:, 1:, 1::2],
    "topk": lambda x: x.topk(2, dim=1)[0],
    "transpose": lambda x: x.transpose(1, 2),
    "unbind": lambda x: x.unbind(1)[2],
    "unsqueeze": lambda x: x.unsqueeze(1).unsqueeze(-1),
    "var": lambda x: x.var(dim=(1, 2), unbiased=False),
    "where": lambda x: torch.where(x > 0.1, x, -x),
    "zeros like": lambda x: torch.zeros_like(x) + torch.ones_like(x),
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y[:, :1],
    "sub": lambda x, y: x - y[:1],
    "mul": lambda x, y: x * y[..., :1],
    "div": lambda x, y: x / (y.abs() + 1),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "less": lambda x, y: (x < y).float(),
    "logic": lambda x, y: torch.logical_and(x > 0, torch.logical_not(x > y)).float(),
    "exclusive": lambda x, y: torch.logical_xor(x > 0, torch.logical_or(x > y, y > 1)).float(),
    "bmm": lambda x, y: torch.bmm(x, y.transpose(1, 2)),
    "matmul": lambda x, y: torch.matmul(x, y[0].t()),
    "einsum": lambda x, y: torch.einsum("bij,bkj->bki", x, y),
    "concat": lambda x, y: torch.cat([x, y], dim=-1),
    "attention": lambda x, y: F.scaled_dot_product_attention(x, y, y + 1),
    "cosine": lambda x, y: F.cosine_similarity(x, y, dim=-1),
    "atan2": torch.atan2,
}
ON_IMAGE: dict[str, Callable[[Any], Any]] = {
    "adaptive average pool": lambda x: F.adaptive_avg_pool2d(x, 1),
    "average pool": lambda x: F.avg_pool2d(x, 3, 2, padding=1),
    "average pool, padding not counted": lambda x: F.avg_pool2d(
        x, 3, 2, 1, count_include_pad=False
    ),
    "average pool, ceil": lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True),
    "max pool": lambda x: F.max_pool2d(x, (3, 2), (2, 1), padding=(1, 0)),
    "max pool, ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "bilinear": lambda x: F.interpolate(x, (14, 5), mode="bilinear", align_corners=False),
    "bilinear, aligned": lambda x: F.interpolate(
        x, scale_factor=2, mode="bilinear", align_corners=True
    ),
    "nearest": lambda x: F.interpolate(x, scale_factor=3, mode="nearest"),
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :6, :8], 2),
    "group norm": lambda x: F.group_norm(x, 2),
    "instance norm": F.instance_norm,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "glu": lambda x: F.glu(x, dim=1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "unfold": lambda x: F.unfold(x, 3, stride=2),
}
_WEIGHTS = {
    one: torch.from_numpy(real(*one))
    for one in ((6, 4, 3, 3), (4, 1, 3, 3), (4, 3, 3, 3), (6, 2, 3, 2))
}
CONVOLVED: dict[str, Callable[[Any], Any]] = {
    "conv": lambda x: F.conv2d(x, _WEIGHTS[6, 4, 3, 3], stride=2, padding=1),
    "conv, same": lambda x: F.conv2d(x, _WEIGHTS[6, 4, 3, 3], padding="same", dilation=2),
    "conv, depthwise": lambda x: F.conv2d(x, _WEIGHTS[4, 1, 3, 3], groups=4),
    "conv, groups": lambda x: F.conv2d(x, _WEIGHTS[6, 2, 3, 2], groups=2, dilation=(1, 2)),
    "transposed": lambda x: F.conv_transpose2d(x, _WEIGHTS[4, 3, 3, 3], stride=2, padding=1),
    "transposed, output padding": lambda x: F.conv_transpose2d(
        x, _WEIGHTS[4, 3, 3, 3], stride=2, padding=1, output_padding=1
    ),
    "transposed, groups": lambda x: F.conv_transpose2d(
        x, _WEIGHTS[4, 3, 3, 3], groups=2, stride=(1, 3), dilation=(2, 1)
    ),
}
OTHER: list[Case] = [
    ("log", torch.log, (positive(3, 4),)),
    ("sqrt", torch.sqrt, (positive(3, 4),)),
    ("rsqrt", torch.rsqrt, (positive(3, 4),)),
    ("asin", torch.asin, (np.clip(real(3, 4) / 4, -0.9, 0.9),)),
    ("gather", lambda x, i: torch.gather(x, 1, i.long()), (X, whole(3, 2, 2, 4))),
    ("index select", lambda x, i: torch.index_select(x, 2, i.long()), (X, whole(4, 5))),
    ("embedding", lambda i: F.embedding(i.long(), torch.from_numpy(X[0])), (whole(3, 2, 5),)),
    (
        "scatter add",
        lambda x, i, y: x.scatter_add(1, i.long(), y),
        (X, whole(3, 2, 2, 4), real(2, 2, 4)),
    ),
    (
        "integers",
        lambda i, j: ((i * 3 - j) // 4 + i % 3).float(),
        (whole(99, 3, 4), whole(9, 3, 4)),
    ),
    (
        "masked attention",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        (real(1, 2, 3, 4), real(1, 2, 5, 4), real(1, 2, 5, 6), real(1, 1, 3, 5)),
    ),
    (
        "grid sample",
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=False),
        (IMAGE, real(2, 3, 5, 2)),
    ),
    (
        "conv of one axis",
        lambda x: F.conv1d(x, torch.from_numpy(X).transpose(1, 2)[:, :3], padding=2, stride=2),
        (real(1, 3, 11),),
    ),
    ("pool of one axis", lambda x: F.max_pool1d(x, 3, 2), (real(1, 3, 11),)),
    ("pool of three axes", lambda x: F.avg_pool3d(x, 2), (real(1, 2, 4, 5, 6),)),
]
Group = tuple[dict[str, Callable[..., Any]], tuple[Array, ...]]
GROUPS: dict[str, Group] = {
    "one tensor": (ONE, (X,)),
    "two tensors": (TWO, (X, Y)),
    "an image": (ON_IMAGE, (IMAGE,)),
    "convolutions": (CONVOLVED, (IMAGE,)),
} | {name: ({name: function}, inputs) for name, function, inputs in OTHER}


class Functions(nn.Module):
    """All functions of a group, so that one conversion serves them all."""

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = tuple(functions.values())

    def forward(self, *inputs: Any) -> Any:
        return tuple(one(*inputs) for one in self.functions)


def converted(module: nn.Module, inputs: tuple[Array, ...], count: int, half: bool) -> Any:
    tensors = tuple(torch.from_numpy(one) for one in inputs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return ct.convert(
            torch.jit.trace(module.eval(), tensors),
            inputs=[
                ct.TensorType(f"x{i}", one.shape, dtype=one.dtype) for i, one in enumerate(inputs)
            ],
            outputs=[ct.TensorType(f"y{i}") for i in range(count)],
            minimum_deployment_target=ct.target.iOS18 if half else ct.target.iOS16,
            compute_precision=ct.precision.FLOAT16 if half else ct.precision.FLOAT32,
            skip_model_load=True,
        )


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("group", GROUPS)
def test_like_torch(group: str, half: bool, tmp_path: Path) -> None:
    """In float32 for iOS 16, and for iOS 18 with float16 values held in float32."""
    functions, inputs = GROUPS[group]
    module = Functions(functions)
    model = converted(module, inputs, len(functions), half)
    model.save(str(tmp_path / "functions.mlpackage"))
    loaded = softcoreml.load(tmp_path / "functions.mlpackage", precision="float32")
    with torch.no_grad():
        expected = module(*(torch.from_numpy(one) for one in inputs))
    found = loaded.predict({f"x{i}": one for i, one in enumerate(inputs)})
    wrong = {}
    for place, (name, one) in enumerate(zip(functions, expected, strict=True)):
        try:
            close(found[f"y{place}"], one, 3e-3 if half else 2e-5)
        except AssertionError as error:
            wrong[name] = str(error)
    assert not wrong
