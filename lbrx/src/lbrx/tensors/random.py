"""Random tensors (`lbrx.random`).

The numbers depend on the seed and on the calls since, not on the device. A tensor's elements, in
row-major order, do not depend on its shape either.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import DtypeLike
from lbrx.arrays.shape import Sizes, as_shape, broadcast, normalize_axis
from lbrx.errors import DtypeError, ShapeError, TraceError
from lbrx.ops import TABLE
from lbrx.ops.random import INTEGERS, WORDS
from lbrx.tensors import placement as devices
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import arange, tensor
from lbrx.tensors.operands import as_scalar
from lbrx.tensors.tensor_like import TensorLike
from lbrx.tensors.traced_number import traced_function

Given = ParamSpec("Given")

_lock = threading.Lock()
_seed = int.from_bytes(os.urandom(8), "little")
_offset = 0
_was_seeded = False


def _after_fork() -> None:
    """In the child: another thread may have held the lock, and the parent's random seed would
    repeat its numbers."""
    global _lock, _seed, _offset
    _lock = threading.Lock()
    if not _was_seeded:
        _seed, _offset = int.from_bytes(os.urandom(8), "little"), 0


os.register_at_fork(after_in_child=_after_fork)


def __getattr__(name: str) -> Any:
    from lbrx.tensors.foreign_names import RANDOM_NAMES

    hint = f": use lbrx.random.{RANDOM_NAMES[name]}" if name in RANDOM_NAMES else ""
    text = f"module 'lbrx.random' has no attribute {name!r}{hint}"
    raise AttributeError(text, name=name, obj=sys.modules[__name__])


def seed(value: int) -> None:
    """Restart the generator: later numbers depend on this 64-bit integer only.

    Without a call the seed is random for each process.

    >>> lbrx.random.seed(1)
    >>> x = lbrx.random.uniform(3)
    >>> lbrx.random.seed(1)
    >>> (lbrx.random.uniform(3) == x).all().item()
    True
    """
    global _seed, _offset, _was_seeded
    value = operator.index(value)
    with _lock:
        _seed, _offset, _was_seeded = value & (1 << 64) - 1, 0, True


@contextmanager
def repeated(state: tuple[int, int]) -> Iterator[None]:
    """A block that draws the numbers that followed a state, and leaves the generator as it was."""
    global _seed, _offset
    with _lock:
        kept, (_seed, _offset) = (_seed, _offset), state
    try:
        yield
    finally:
        with _lock:
            _seed, _offset = kept


def state() -> tuple[int, int]:
    """The generator's seed and how many counters it has used."""
    with _lock:
        return _seed, _offset


def _draw(
    name: str, shape: Sizes, device: str | None, per_counter: int = WORDS, **attributes: Any
) -> Tensor:
    global _offset
    if (function := traced_function()) is not None:
        raise TraceError(
            f"{function} draws random numbers, which every replay would repeat: "
            "draw them outside and pass them to the compiled function"
        )
    sizes = as_shape(shape)
    with _lock:
        attributes |= {"shape": sizes, "seed": _seed, "offset": _offset}
        _offset += -(-math.prod(sizes) // per_counter)
    target = devices.get(device or devices.default_device())
    (array,) = target.run(TABLE[name], [], attributes)
    return Tensor(array)


def _tensors(shape: Sizes, device: str | None, **given: TensorLike) -> list[Tensor]:
    """Parameters of a distribution as tensors that broadcast to the shape; none if all of them are
    numbers."""
    if all(as_scalar(value) is not None for value in given.values()):
        return []
    sizes, tensors = as_shape(shape), []
    place = device or next((x.device for x in given.values() if isinstance(x, Tensor)), None)
    for name, value in given.items():
        one = value if isinstance(value, Tensor) else tensor(value, device=place)
        if broadcast(sizes, one.shape) != sizes:
            raise ShapeError(f"{name} has shape {one.shape}: give one that broadcasts to {sizes}")
        tensors.append(one.astype(dt.float32))
    return tensors


def _shape_first(draw: Callable[Given, Tensor]) -> Callable[Given, Tensor]:
    """Refuse the calls of other libraries, whose shape comes last: after a number, parameters have
    names."""

    @functools.wraps(draw)
    def checked(*arguments: Given.args, **named: Given.kwargs) -> Tensor:
        shape: Any = arguments[0] if arguments else ()
        if np.ndim(shape) == 0 and (len(arguments) > 1 or isinstance(shape, float)):
            others = {"shape", "dtype", "device"}
            names = [each for each in inspect.signature(draw).parameters if each not in others]
            raise TypeError(
                f"the shape comes first, as in {draw.__name__}((3,), {', '.join(names)}), and "
                f"{shape!r:.80} is given: write the shape as a tuple, or parameters with their "
                "names"
            )
        return draw(*arguments, **named)

    return checked


def _check_floating(dtype: DtypeLike) -> None:
    if not dt.parse(dtype).is_float:
        raise DtypeError(f"random numbers are floating, not {dtype}: cast the result")


@_shape_first
def uniform(
    shape: Sizes,
    low: TensorLike = 0,
    high: TensorLike = 1,
    dtype: DtypeLike = dt.float32,
    device: str | None = None,
) -> Tensor:
    """A tensor of numbers uniformly distributed in [low, high).

    The limits are numbers, or tensors that broadcast to the shape. dtype must be floating,
    otherwise DtypeError is raised. Rounding can give `high` itself.

    >>> lbrx.random.uniform((2, 3), -1, 1).shape
    (2, 3)
    """
    limits = _tensors(shape, device, low=low, high=high)
    if not limits:
        return _draw("random_uniform", shape, device, dtype=dtype, low=low, high=high)
    _check_floating(dtype)
    least, most = limits
    return (uniform(shape, device=device or least.device) * (most - least) + least).astype(dtype)


@_shape_first
def normal(
    shape: Sizes,
    mean: TensorLike = 0,
    std: TensorLike = 1,
    dtype: DtypeLike = dt.float32,
    device: str | None = None,
) -> Tensor:
    """A tensor of normally distributed numbers with the given mean and standard deviation.

    Both are numbers, or tensors that broadcast to the shape. dtype must be floating, otherwise
    DtypeError is raised; a negative number as `std` raises ValueError.
    """
    moments = _tensors(shape, device, mean=mean, std=std)
    number = as_scalar(std)
    if number is not None and number < 0:
        raise ValueError(f"std={std} is negative: give 0 or more")
    if not moments:
        return _draw("random_normal", shape, device, dtype=dtype, mean=mean, std=std)
    _check_floating(dtype)
    middle, scale = moments
    return (normal(shape, device=device or middle.device) * scale + middle).astype(dtype)


@_shape_first
def bernoulli(shape: Sizes, p: TensorLike = 0.5, device: str | None = None) -> Tensor:
    """A bool tensor whose elements are True with probability p, a number from 0 to 1.

    Another number raises ValueError. p can also be a tensor that broadcasts to the shape; what is
    outside 0 to 1 in it counts as 0 or 1.

    >>> lbrx.random.bernoulli((2, 3), lbrx.tensor([0, 1, 1])).tolist()
    [[False, True, True], [False, True, True]]
    """
    chances = _tensors(shape, device, p=p)
    if chances:
        return uniform(shape, device=device or chances[0].device) < chances[0]
    number = as_scalar(p)
    if number is None or not 0 <= number <= 1:
        raise ValueError(f"p={p} is not a probability: give a number from 0 to 1")
    return _draw("random_bernoulli", shape, device, p=p)


def randint(
    low: int,
    high: int,
    shape: Sizes = (),
    dtype: DtypeLike = dt.int64,
    device: str | None = None,
) -> Tensor:
    """Integers from [low, high), all equally likely.

    Raises ValueError if there are none, and DtypeError if the type cannot hold them.
    """
    limits = {"low": _integer("low", low), "high": _integer("high", high)}
    return _draw("random_integers", shape, device, INTEGERS, dtype=dtype, **limits)


def _integer(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name}={value!r:.80} is not an integer: give randint(low, high, shape)"
        ) from None


def permutation(x: int | TensorLike, axis: int = 0, device: str | None = None) -> Tensor:
    """The integers below x in random order, or the slices of a tensor or list along an axis.

    Every order is equally likely: the slices are sorted by random numbers of 63 bits.
    """
    if np.ndim(x):
        values = x if isinstance(x, Tensor) else tensor(x, device=device)
        size = values.shape[normalize_axis(axis, values.ndim)]
        return call("take", values, permutation(size, device=values.device), axis=axis)
    size = operator.index(x)  # type: ignore[arg-type]
    if size < 0:
        raise ShapeError(f"a permutation of {size} elements: give 0 or more")
    return call("argsort", randint(0, 2**63 - 1, size, device=device))


_SMALLEST = 2.0**-25  # half of what a random number from [0, 1) is a multiple of


def categorical(logits: TensorLike, axis: int = -1, shape: Sizes | None = None) -> Tensor:
    """Indices along an axis, each as likely as the softmax of its logit, as int64.

    The result has the shape of the logits without the axis, or `shape`, which those must broadcast
    to: more leading axes are more samples. A probability below 2**-25 counts as 0.
    """
    logits = logits if isinstance(logits, Tensor) else tensor(logits)
    if not logits.dtype.is_float:
        raise DtypeError(f"logits are {logits.dtype}: cast them to a floating type")
    place = normalize_axis(axis, logits.ndim)
    rest = [i for i in range(logits.ndim) if i != place]
    last = logits.astype(dt.float32).permute(*rest, place)
    sizes = last.shape[:-1] if shape is None else as_shape(shape)
    if broadcast(sizes, last.shape[:-1]) != sizes:
        raise ShapeError(f"samples of shape {sizes} for logits of {last.shape[:-1]}: give more")
    # The largest logit with Gumbel noise is a sample of the softmax.
    drawn = uniform((*sizes, last.shape[-1]), device=logits.device)
    exponential = call("maximum", -call("log", 1 - drawn), _SMALLEST)
    return call("argmax", last - call("log", exponential), axis=-1)


def _source(x: int | TensorLike) -> Tensor:
    """What `choice` draws from."""
    if np.ndim(x):
        return x if isinstance(x, Tensor) else tensor(x)
    return arange(operator.index(x))  # type: ignore[arg-type]


def choice(
    x: int | TensorLike, shape: Sizes = (), replace: bool = True, p: TensorLike | None = None
) -> Tensor:
    """Slices of a tensor or list along its first axis, or integers below x, at random.

    With `p` they have these probabilities, which need not add up to 1; one that is negative or not
    finite, or none above 0, raises ValueError. Without replacement none is drawn twice, and p
    cannot be given.
    """
    source = _source(x)
    count, sizes = len(source), as_shape(shape)
    wanted = math.prod(sizes)
    if not count and wanted:
        raise ShapeError(f"{wanted} of no elements cannot be drawn: give some")
    if replace and p is None:
        places = randint(0, max(count, 1), sizes, device=source.device)
    elif replace:
        weights = p if isinstance(p, Tensor) else tensor(p, dt.float32, source.device)
        if weights.shape != (count,):
            raise ShapeError(f"p has shape {weights.shape}: give one for each, {(count,)}")
        values = weights.numpy()
        if not (np.isfinite(values).all() and (values >= 0).all() and (values > 0).any()):
            raise ValueError("p has no probabilities: give finite numbers from 0 on, not all 0")
        places = categorical(call("log", weights), shape=sizes)
    elif p is not None:
        raise ValueError("p without replacement is not supported: give one of the two")
    elif wanted > count:
        raise ShapeError(f"{wanted} of {count} elements without replacement: give replace=True")
    else:
        places = permutation(count, device=source.device)[:wanted].reshape(sizes)
    return call("take", source, places, axis=0)
