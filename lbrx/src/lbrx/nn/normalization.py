"""Norms over features, which are the last axis."""

from __future__ import annotations

import math

from lbrx.errors import ShapeError
from lbrx.gradients.functions import stop_gradient
from lbrx.nn.module import Module
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import ones, zeros


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) over the features, times a weight, plus a bias."""

    def __init__(
        self, dims: int, eps: float = 1e-5, affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__()
        if affine:
            self.weight = ones((dims,))
            if bias:
                self.bias = zeros((dims,))
        self._eps = eps
        self._dims = dims

    def _extra_repr(self) -> str:
        return f"{self._dims}, eps={self._eps}, affine={hasattr(self, 'weight')}"

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = getattr(self, "weight", None), getattr(self, "bias", None)
        return x.layer_norm(weight, bias, eps=self._eps)


class RMSNorm(Module):
    """x / sqrt(mean(x**2) + eps) over the features, times a weight."""

    def __init__(self, dims: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = ones((dims,))
        self._eps = eps

    def _extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self._eps}"

    def __call__(self, x: Tensor) -> Tensor:
        return x.rms_norm(self.weight, eps=self._eps)


class _Affine(Module):
    """A norm with an optional weight and bias for each feature."""

    def __init__(self, dims: int, eps: float, affine: bool) -> None:
        super().__init__()
        self._dims = dims
        self._eps = eps
        if affine:
            self.weight = ones((dims,))
            self.bias = zeros((dims,))

    def _extra_repr(self) -> str:
        return f"{self._dims}, eps={self._eps}, affine={hasattr(self, 'weight')}"

    def _normal(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """x without its mean over axes, divided by its deviation."""
        centred = x - x.mean(axis=axes, keepdims=True)
        variance = centred.square().mean(axis=axes, keepdims=True)
        return centred * (variance + self._eps).rsqrt()

    def _scaled(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias if hasattr(self, "weight") else x


class InstanceNorm(_Affine):
    """Each channel of each example (batch, ..., channels) with mean 0 and deviation 1."""

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = False) -> None:
        super().__init__(dims, eps, affine)

    def __call__(self, x: Tensor) -> Tensor:
        return self._scaled(self._normal(x, tuple(range(1, x.ndim - 1))))


class GroupNorm(_Affine):
    """Groups of channels of each example with mean 0 and deviation 1.

    With pytorch_compatible=True consecutive channels are a group, as in torch; otherwise channels
    i, i + num_groups, i + 2 * num_groups ... are, as in MLX.
    """

    def __init__(
        self,
        num_groups: int,
        dims: int,
        eps: float = 1e-5,
        affine: bool = True,
        pytorch_compatible: bool = False,
    ) -> None:
        super().__init__(dims, eps, affine)
        if dims % num_groups:
            raise ValueError(f"{dims} channels do not divide into {num_groups} groups")
        self._groups = num_groups
        self._consecutive = pytorch_compatible

    def __call__(self, x: Tensor) -> Tensor:
        batch, *space, dims = x.shape
        sizes = (self._groups, dims // self._groups)
        order = sizes if self._consecutive else (sizes[1], sizes[0])
        parts = x.reshape(batch, math.prod(space), *order)
        axes = (1, 3) if self._consecutive else (1, 2)
        return self._scaled(self._normal(parts, axes).reshape(x.shape))


class BatchNorm(_Affine):
    """Each feature with mean 0 and deviation 1 over all other axes.

    While training they are those of the batch, and running_mean and running_var follow them by
    `momentum`; otherwise these are used. They are never trained.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, affine)
        self._momentum = momentum
        if track_running_stats:
            self.running_mean = zeros((num_features,))
            self.running_var = ones((num_features,))
            self._after_unfreeze()

    def _after_unfreeze(self) -> None:
        self._frozen = self._frozen | {"running_mean", "running_var"}

    def __call__(self, x: Tensor) -> Tensor:
        axes = tuple(range(x.ndim - 1))
        tracks = hasattr(self, "running_mean")
        if tracks and not self.training:
            return self._scaled((x - self.running_mean) * (self.running_var + self._eps).rsqrt())
        if math.prod(x.shape[:-1]) == 1:
            raise ShapeError("batch norm of one value for each feature: train with larger batches")
        if tracks:
            self._follow(stop_gradient(x), axes)
        return self._scaled(self._normal(x, axes))

    def _follow(self, x: Tensor, axes: tuple[int, ...]) -> None:
        """Move the running statistics towards those of a batch, with its unbiased variance."""
        own = self._momentum
        variance = x.var(axis=axes, correction=1)
        self.running_mean = self.running_mean * (1 - own) + x.mean(axis=axes) * own
        self.running_var = self.running_var * (1 - own) + variance * own
