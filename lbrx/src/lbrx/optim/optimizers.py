"""The optimizers. Names, defaults and formulas are MLX's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lbrx.optim.optimizer import Optimizer, Rate
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.functions.creating import zeros_like

State = dict[str, Tensor]
Step = tuple[Tensor, State]


class SGD(Optimizer):
    """p - rate * g, with momentum, weight decay (added to g), dampening and Nesterov's step."""

    def __init__(
        self,
        learning_rate: Rate,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(learning_rate)
        if nesterov and (momentum <= 0 or dampening):
            raise ValueError("nesterov=True needs a momentum above 0 and no dampening")
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.dampening = dampening
        self.nesterov = nesterov

    def init_single(self, parameter: Tensor) -> State:
        return {"v": zeros_like(parameter)} if self.momentum > 0 else {}

    def apply_single(self, gradient: Tensor, parameter: Tensor, state: State) -> Step:
        if self.weight_decay:
            gradient = gradient + parameter * self.weight_decay
        rate = self._rate_of(gradient)
        if self.momentum <= 0:
            return parameter - rate * gradient, state
        velocity = state["v"] * self.momentum + gradient * (1 - self.dampening)
        change = gradient + velocity * self.momentum if self.nesterov else velocity
        return parameter - rate * change, {"v": velocity}


class RMSprop(Optimizer):
    """p - rate * g / (sqrt(v) + eps), where v follows g**2 by alpha."""

    def __init__(self, learning_rate: Rate, alpha: float = 0.99, eps: float = 1e-8) -> None:
        super().__init__(learning_rate)
        self.alpha = alpha
        self.eps = eps

    def init_single(self, parameter: Tensor) -> State:
        return {"v": zeros_like(parameter)}

    def apply_single(self, gradient: Tensor, parameter: Tensor, state: State) -> Step:
        v = state["v"] * self.alpha + gradient.square() * (1 - self.alpha)
        change = self._rate_of(gradient) * gradient / (v.sqrt() + self.eps)
        return parameter - change, {"v": v}


class Adagrad(Optimizer):
    """p - rate * g / (sqrt(v) + eps), where v is the sum of g**2."""

    def __init__(self, learning_rate: Rate, eps: float = 1e-8) -> None:
        super().__init__(learning_rate)
        self.eps = eps

    def init_single(self, parameter: Tensor) -> State:
        return {"v": zeros_like(parameter)}

    def apply_single(self, gradient: Tensor, parameter: Tensor, state: State) -> Step:
        v = state["v"] + gradient.square()
        change = self._rate_of(gradient) * gradient / (v.sqrt() + self.eps)
        return parameter - change, {"v": v}


class AdaDelta(Optimizer):
    """Steps in the ratio of the sizes of earlier steps and of gradients."""

    def __init__(self, learning_rate: Rate, rho: float = 0.9, eps: float = 1e-6) -> None:
        super().__init__(learning_rate)
        self.rho = rho
        self.eps = eps

    def init_single(self, parameter: Tensor) -> State:
        return {"v": zeros_like(parameter), "u": zeros_like(parameter)}

    def apply_single(self, gradient: Tensor, parameter: Tensor, state: State) -> Step:
        v = state["v"] * self.rho + gradient.square() * (1 - self.rho)
        change = (state["u"] + self.eps).sqrt() / (v + self.eps).sqrt() * gradient
        u = state["u"] * self.rho + change.square() * (1 - self.rho)
        return parameter - self._rate_of(gradient) * change, {"v": v, "u": u}


class Adam(Optimizer):
    """p - rate * m / (sqrt(v) + eps), where m follows g and v follows g**2 by betas.

    bias_correction=True divides both by what their beginning with zeros took away, as in the paper;
    MLX's default is False.
    """

    def __init__(
        self,
        learning_rate: Rate,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        bias_correction: bool = False,
    ) -> None:
        super().__init__(learning_rate)
        self.betas = tuple(betas)
        self.eps = eps
        self.bias_correction = bias_correction

    def init_single(self, parameter: Tensor) -> State:
        return {"m": zeros_like(parameter), "v": zeros_like(parameter)}

    def apply_single(self, gradient: Tensor, parameter: Tensor, state: State) -> Step:
        first, second = self.betas
        m = state["m"] * first + gradient * (1 - first)
        v = state["v"] * second + gradient.square() * (1 - second)
        rate, size = self._rate_of(gradient), v.sqrt()
        if self.bias_correction:
            rate, size = self._corrected(rate, size)
        return parameter - rate * m / (size + self.eps), {"m": m, "v": v}

    def _corrected(self, rate: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """The rate and the root of v for moments that began with zeros."""
        first, second = self.betas
        old = self._state["learning_rate"]
        step = self.step.astype(old.dtype)
        # -expm1(n log b) is 1 - b**n without a loss of digits, as float32 would have for b near 1.
        gone = [-(step * math.log(beta)).expm1() for beta in (first, second)]
        of_m, of_v = (x.to_device(rate.device).astype(rate.dtype) for x in gone)
        return rate / of_m, size / of_v.sqrt()


class AdamW(Adam):
    """`Adam` whose parameters shrink by rate * weight_decay in each step."""

    def __init__(
        self,
        learning_rate: Rate,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        bias_correction: bool = False,
    ) -> None:
        super().__init__(learning_rate, betas, eps, bias_correction)
        self.weight_decay = weight_decay

    def apply_single(self, gradient: Tensor, parameter: Tensor, state: State) -> Step:
        kept = parameter * (1 - self._rate_of(gradient) * self.weight_decay)
        return super().apply_single(gradient, kept, state)


class Adamax(Adam):
    """`Adam` with the largest |g|, which decays, instead of the root of v."""

    def apply_single(self, gradient: Tensor, parameter: Tensor, state: State) -> Step:
        first, second = self.betas
        m = state["m"] * first + gradient * (1 - first)
        v = call("maximum", state["v"] * second, gradient.abs())
        return parameter - self._rate_of(gradient) * m / (v + self.eps), {"m": m, "v": v}


class Lion(Optimizer):
    """Steps of one size in the direction of the sign of a momentum."""

    def __init__(
        self,
        learning_rate: Rate,
        betas: Sequence[float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(learning_rate)
        self.betas = tuple(betas)
        self.weight_decay = weight_decay

    def init_single(self, parameter: Tensor) -> State:
        return {"m": zeros_like(parameter)}

    def apply_single(self, gradient: Tensor, parameter: Tensor, state: State) -> Step:
        first, second = self.betas
        rate = self._rate_of(gradient)
        towards = state["m"] * first + gradient * (1 - first)
        m = state["m"] * second + gradient * (1 - second)
        if self.weight_decay:
            parameter = parameter * (1 - rate * self.weight_decay)
        return parameter - rate * towards.sign(), {"m": m}


class Adafactor(Optimizer):
    """Adam with second moments of matrices as a product of rows and columns.

    Without a learning rate, relative_step=True gives min(0.01, 1 / sqrt(step)) (with warmup_init,
    1e-6 * step at first), times the size of the parameter with scale_parameter=True.
    """

    def __init__(
        self,
        learning_rate: Rate | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta_1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        super().__init__(0.0 if learning_rate is None else learning_rate)
        if learning_rate is None and not relative_step:
            raise ValueError("relative_step=False needs a learning_rate")
        self.eps = eps
        self.clip_threshold = clip_threshold
        self.decay_rate = decay_rate
        self.beta_1 = beta_1
        self.weight_decay = weight_decay
        self.scale_parameter = scale_parameter
        self.relative_step = relative_step
        self.warmup_init = warmup_init

    def init_single(self, parameter: Tensor) -> State:
        state = {} if self.beta_1 is None else {"exp_avg": zeros_like(parameter)}
        if parameter.ndim < 2:
            return {**state, "exp_avg_sq": zeros_like(parameter)}
        rows = zeros_like(parameter[..., 0])
        return {**state, "exp_avg_sq_row": rows, "exp_avg_sq_col": zeros_like(parameter[..., 0, :])}

    def apply_single(self, gradient: Tensor, parameter: Tensor, state: State) -> Step:
        step = self.step.to_device(gradient.device).astype(gradient.dtype)
        kept = 1 - step**self.decay_rate
        rate = self._own_rate(step, _root_mean_square(parameter), gradient)
        squares = gradient.square() + self.eps[0]
        made: State = {}
        if parameter.ndim < 2:
            sums = state["exp_avg_sq"] * kept + squares * (1 - kept)
            made["exp_avg_sq"] = sums
            change = sums.rsqrt() * gradient
        else:
            rows = state["exp_avg_sq_row"] * kept + squares.mean(axis=-1) * (1 - kept)
            columns = state["exp_avg_sq_col"] * kept + squares.mean(axis=-2) * (1 - kept)
            made |= {"exp_avg_sq_row": rows, "exp_avg_sq_col": columns}
            of_rows = (rows / rows.mean(axis=-1, keepdims=True)).rsqrt()
            change = of_rows[..., None] * columns.rsqrt()[..., None, :] * gradient
        size = _root_mean_square(change) / self.clip_threshold
        change = rate * change / call("maximum", size, 1)
        if self.beta_1 is not None:
            change = state["exp_avg"] * self.beta_1 + change * (1 - self.beta_1)
            made["exp_avg"] = change
        if self.weight_decay:
            parameter = parameter - parameter * (rate * self.weight_decay)
        return parameter - change, made

    def _own_rate(self, step: Tensor, size: Tensor, gradient: Tensor) -> Tensor:
        rate = self._rate_of(gradient)
        if self.relative_step:
            most: Any = step * 1e-6 if self.warmup_init else 1e-2
            rate = call("minimum", step.rsqrt(), most)
        return rate * call("maximum", size, self.eps[1]) if self.scale_parameter else rate


def _root_mean_square(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


class Muon(Optimizer):
    """A momentum whose matrices are made orthogonal by Newton-Schulz iterations.

    Parameters with fewer than two axes take the momentum itself: give these, embeddings and the
    output to another optimizer (`MultiOptimizer`).
    """

    def __init__(
        self,
        learning_rate: Rate,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        nesterov: bool = True,
        ns_steps: int = 5,
    ) -> None:
        super().__init__(learning_rate)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.nesterov = nesterov
        self.ns_steps = ns_steps

    def init_single(self, parameter: Tensor) -> State:
        return {"v": zeros_like(parameter)}

    def apply_single(self, gradient: Tensor, parameter: Tensor, state: State) -> Step:
        if self.weight_decay:
            gradient = gradient + parameter * self.weight_decay
        own = self.momentum
        v = state["v"] * own + gradient * (1 - own)
        change = gradient * (1 - own) + v * own if self.nesterov else v
        rate = self._rate_of(gradient)
        if change.ndim >= 2:
            matrix = change.reshape(change.shape[0], -1)
            rate = rate * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            change = _orthogonal(matrix, self.ns_steps).reshape(change.shape)
        return parameter - rate * change, {"v": v}


def _orthogonal(x: Tensor, steps: int) -> Tensor:
    """A matrix with singular values near 1, by the quintic iteration of Muon's authors."""
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        squares = x @ x.T
        x = x * 3.4445 + (squares * -4.7750 + squares @ squares * 2.0315) @ x
    return x.T if tall else x
