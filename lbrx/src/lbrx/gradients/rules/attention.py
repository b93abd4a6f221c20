"""Attention and rotary positions.

The backward pass of attention computes the scores again, for some queries at a time: no more than
`SCORES` of them are in memory, and no probabilities are kept from the forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lbrx.ops.overwrite import CACHE_SCHEME
from lbrx.ops.vjp import differentiable
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import arange

SCORES = 1 << 24
"""Scores that are computed at a time."""


@dataclass(frozen=True)
class _Masks:
    """Which keys a query sees, what is added to its scores, and a score beside them."""

    mask: Tensor | None
    lengths: Tensor | None
    sinks: Tensor | None
    causal: bool
    window: int

    def hidden(self, start: int, stop: int, query: Tensor, keys: int) -> Tensor | None:
        """bool of a shape that broadcasts to (..., stop - start, keys): what is not seen."""
        count, device = query.shape[-2], query.device
        if self.lengths is None and not self.causal:
            return None
        key = arange(keys, device=device)
        end = keys if self.lengths is None else self.lengths.clip(0, keys)[..., None, None, None]
        hidden = call("greater_equal", key, end)
        if self.causal:
            own = arange(start, stop, device=device).reshape(-1, 1) + end - count
            hidden = hidden | (key > own)
            if self.window:
                hidden = hidden | (key <= own - self.window)
        return hidden

    def added(self, start: int, stop: int) -> Tensor | None:
        """The rows of the mask for some queries."""
        if self.mask is None or self.mask.ndim < 2 or self.mask.shape[-2] == 1:
            return self.mask
        return self.mask[..., start:stop, :]


def _attention(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    sinks: Tensor | None,
    output: Tensor,
    causal: bool,
    window: int,
    scale: float | None,
    cap: float,
) -> Mapping[str, Tensor | None]:
    count, depth = query.shape[-2:]
    factor = 1 / math.sqrt(max(depth, 1)) if scale is None else scale
    masks = _Masks(mask, lengths, sinks, causal, window)
    if lengths is not None:  # memory beyond the lengths may hold anything
        valid = arange(value.shape[-2], device=value.device).reshape(-1, 1)
        valid = call("less", valid, lengths[..., None, None, None])
        key, value = call("where", valid, key, 0), call("where", valid, value, 0)
    along = (g * output).sum(axis=-1, keepdims=True)
    step = max(SCORES // max(math.prod(query.shape[:-2]) * key.shape[-2], 1), 1)
    of_query, of_mask, of_sinks = [], [], []
    of_key: Tensor | None = None
    of_value: Tensor | None = None
    for start in range(0, count, step):
        stop = min(start + step, count)
        rows = (..., slice(start, stop), slice(None))
        own, more_key, more_value, change, sunk = _rows(
            g[rows], query[rows], key, value, along[rows], masks, (start, stop), query,
            factor, cap,
        )  # fmt: skip
        of_query.append(own)
        of_mask.append(change)
        of_sinks.append(sunk)
        of_key = more_key if of_key is None else of_key + more_key
        of_value = more_value if of_value is None else of_value + more_value
    return {
        "query": _joined(of_query, query),
        "key": of_key,
        "value": of_value,
        "mask": None if mask is None else _of_mask(of_mask, mask),
        "sinks": None if sinks is None else _of_sinks(of_sinks),
    }


def _joined(parts: list[Tensor], like: Tensor) -> Tensor | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else call("concat", *parts, axis=like.ndim - 2)


def _of_sinks(parts: list[Tensor]) -> Tensor | None:
    """The gradients of sinks' scores, summed over batches and queries."""
    if not parts:
        return None
    whole = parts[0] if len(parts) == 1 else call("concat", *parts, axis=parts[0].ndim - 2)
    others = tuple(axis for axis in range(whole.ndim) if axis != whole.ndim - 3)
    return whole.sum(axis=others)


def _of_mask(parts: list[Tensor], mask: Tensor) -> Tensor | None:
    """The gradients of the scores as rows of the mask, which may be one row for all queries."""
    if not parts:
        return None
    if mask.ndim > 1 and mask.shape[-2] != 1:
        return _joined(parts, parts[0])
    total = parts[0].sum(axis=-2, keepdims=True)
    for part in parts[1:]:
        total = total + part.sum(axis=-2, keepdims=True)
    return total


def _rows(
    g: Tensor,
    rows: Tensor,
    key: Tensor,
    value: Tensor,
    along: Tensor,
    masks: _Masks,
    span: tuple[int, int],
    query: Tensor,
    factor: float,
    cap: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of some queries, of keys and values through them, of their scores, and of the
    sink's score for each of them."""
    groups = key.shape[-3]
    keys = key.shape[-2]
    plain = _grouped(rows, groups) @ key.mT * factor
    capped = plain if not cap else (plain / cap).tanh() * cap
    shape = (*rows.shape[:-1], keys)
    scores = capped.reshape(shape)
    if (added := masks.added(*span)) is not None:
        scores = scores + added
    if (hidden := masks.hidden(*span, query, keys)) is not None:
        scores = call("where", hidden, -math.inf, scores)
    # A query that sees no key has no weights: its scores are -inf, and their softmax NaN.
    peak = scores.max(axis=-1, keepdims=True)
    seen = call("where", peak == -math.inf, 0, peak)
    powers = (scores - seen).exp()
    total = powers.sum(axis=-1, keepdims=True)
    sink = None if masks.sinks is None else (masks.sinks.reshape(-1, 1, 1) - seen).exp()
    total = total if sink is None else total + sink
    weights = powers / call("where", total == 0, 1, total)
    grouped_g = _grouped(g, groups)
    of_weights = (grouped_g @ value.mT).reshape(shape)
    change = weights * (of_weights - along)
    of_scores = _grouped(change, groups)
    if cap:
        bent = capped / cap
        of_scores = of_scores * (1 - bent * bent)
    of_scores = of_scores * factor
    of_rows = (of_scores @ key).reshape(rows.shape)
    of_key = of_scores.mT @ _grouped(rows, groups)
    of_value = _grouped(weights, groups).mT @ grouped_g
    of_sink = along if sink is None else -along * sink / total
    return of_rows, of_key, of_value, change, of_sink


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(..., heads, rows, n) as (..., key heads, rows of all its heads, n)."""
    *batch, heads, rows, width = x.shape
    return x.reshape(*batch, groups, heads // max(groups, 1) * rows, width)


def _quantized_attention(
    g: Tensor,
    query: Tensor,
    key_codes: Tensor,
    value_codes: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    sinks: Tensor | None,
    output: Tensor,
    scheme: str,
    causal: bool,
    window: int,
    scale: float | None,
    cap: float,
) -> Mapping[str, Tensor | None]:
    """Keys and values are stored and have no gradient."""
    key, value = (
        call("decode_blocks", codes, scheme=scheme or CACHE_SCHEME, dtype=query.dtype)
        for codes in (key_codes, value_codes)
    )
    found = _attention(
        g, query, key, value, mask, lengths, sinks, output, causal, window, scale, cap
    )
    return {"query": found["query"], "mask": found["mask"], "sinks": found["sinks"]}


def _rope(
    g: Tensor,
    positions: Tensor,
    factors: Tensor | None,
    dims: int | None,
    base: float,
    interleaved: bool,
    scale: float,
) -> Tensor:
    """A rotation by the opposite angles."""
    rule = {"dims": dims, "base": base, "interleaved": interleaved, "scale": -scale}
    return call("rope", g, positions, factors, **rule)


differentiable("attention", _attention)
differentiable("quantized_attention", _quantized_attention)
differentiable("rope", x=_rope)
