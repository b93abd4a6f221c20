"""Every merge method as its definition in float64 numpy, independent of lbrx.

A definition takes the models' arrays, the base or None, and the parameters; `own` are those of each
model. Random methods take their masks instead of drawing them.
"""

from __future__ import annotations

import itertools

import numpy as np


def linear(xs, base, own, normalize=True):
    weights = [o["weight"] for o in own]
    return sum(w * x for w, x in zip(weights, xs, strict=True)) / (sum(weights) if normalize else 1)


def _slerp(t, a, b, axis=None):
    """Along an axis, or of whole tensors; lines where the angle is 0."""
    norms = [np.sqrt((x * x).sum(axis, keepdims=True)) for x in (a, b)]
    cosine = np.clip((a * b).sum(axis, keepdims=True) / (norms[0] * norms[1]), -1, 1)
    angle = np.arccos(cosine)
    with np.errstate(all="ignore"):
        arc = (np.sin((1 - t) * angle) * a + np.sin(t * angle) * b) / np.sin(angle)
    return cosine, np.where(np.sin(angle) < 1e-7, (1 - t) * a + t * b, arc)


def slerp(xs, base, own, t):
    cosine, arc = _slerp(t, base, xs[0])
    return (1 - t) * base + t * xs[0] if abs(cosine).max() > 0.9995 else arc


def nuslerp(xs, base, own, nuslerp_flatten=True, nuslerp_row_wise=False):
    first, second = (o["weight"] for o in own)
    t = 0.5 if abs(first + second) < 1e-6 else second / (first + second)
    axis = None if nuslerp_flatten else (0 if nuslerp_row_wise else -1)
    start = 0 if base is None else base
    return start + _slerp(t, xs[0] - start, xs[1] - start, axis)[1]


def multislerp(xs, base, own, normalize_weights=True, eps=1e-8):
    """With every step of the method: tangent vectors, their average, the exponential map."""
    start = 0 if base is None else base
    vectors = np.stack([(x - start).ravel() for x in xs])
    weights = np.array([o["weight"] for o in own])[:, None]
    weights = weights / weights.sum() if normalize_weights else weights
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / (norms + eps)
    mean = (weights * units).sum(0)
    mean = mean / np.linalg.norm(mean)
    tangent = (weights * (units - (units @ mean)[:, None] * mean)).sum(0)
    length = np.linalg.norm(tangent) + eps
    result = (mean * np.cos(length) + tangent * np.sin(length) / length) * (weights * norms).sum()
    return start + result.reshape(xs[0].shape)


def karcher(xs, base, own, max_iter=10, tol=1e-5):
    norms = [np.linalg.norm(x) for x in xs]
    units = [x / n for x, n in zip(xs, norms, strict=True)]
    mean = sum(units) / np.linalg.norm(sum(units))
    for _ in range(max_iter):
        angles = [np.arccos(np.clip((u * mean).sum(), -1, 1)) for u in units]
        ways = [
            a / np.sin(a) * (u - np.cos(a) * mean)
            for u, a in zip(units, angles, strict=True)
            if a >= tol
        ]
        step = sum(ways) / len(xs)
        length = np.linalg.norm(step)
        if length < tol:
            break
        mean = np.cos(length) * mean + np.sin(length) * step / length
        mean = mean / np.linalg.norm(mean)
    return mean * np.mean(norms)


# ---- task vectors ----


def task_vectors(xs, base, own, masks, *, consensus, normalize, rescale, lambda_=1.0):
    """What the methods on task vectors have in common."""
    parts, weights = [], [o["weight"] for o in own]
    for x, o, mask in zip(xs, own, masks, strict=True):
        d = x - base
        kept = d * mask
        norms = np.abs(d).sum(), np.abs(kept).sum()
        scale = norms[0] / norms[1] if rescale and min(norms) >= 1e-7 else 1.0
        parts.append(kept * scale * o["weight"])
    total = sum(parts)
    agree = [
        np.sign(p) == np.where(total >= 0, 1, -1) if consensus else np.full(p.shape, True)
        for p in parts
    ]
    change = sum(p * a for p, a in zip(parts, agree, strict=True))
    divisor = sum(w * a for w, a in zip(weights, agree, strict=True))
    divisor = np.where(np.abs(divisor) < (1e-300 if consensus else 1e-8), 1, divisor)
    return base + lambda_ * (change / divisor if normalize else change)


def _order(x, base):
    """Positions by descending magnitude, the first of equal ones first."""
    return np.argsort(-np.abs(x - base).ravel(), kind="stable")


def _mask(shape, positions):
    mask = np.zeros(int(np.prod(shape)), bool)
    mask[positions] = True
    return mask.reshape(shape)


def largest_mask(x, base, density):
    if density >= 1:
        return np.ones(x.shape, bool)
    count = max(1, int(density * x.size)) if density > 0 else 0
    return _mask(x.shape, _order(x, base)[:count])


def middle_mask(x, base, density, gamma):
    if density >= 1:
        return np.ones(x.shape, bool)
    count, top = int(density * x.size), int(gamma * x.size)
    bottom = max(0, x.size - count - top)
    ascending = _order(x, base)[::-1]
    return _mask(x.shape, ascending[bottom : bottom + count])


def task_arithmetic(xs, base, own, normalize=False, rescale=False, lambda_=1.0):
    masks = [1] * len(xs)
    return task_vectors(
        xs, base, own, masks, consensus=False, normalize=normalize, rescale=False, lambda_=lambda_
    )


def ties(xs, base, own, normalize=True, rescale=False, lambda_=1.0):
    masks = [largest_mask(x, base, o.get("density", 1)) for x, o in zip(xs, own, strict=True)]
    return task_vectors(
        xs, base, own, masks, consensus=True, normalize=normalize, rescale=rescale, lambda_=lambda_
    )


def breadcrumbs(xs, base, own, normalize=False, rescale=False, lambda_=1.0, consensus=False):
    masks = [
        middle_mask(x, base, o.get("density", 1), o.get("gamma", 0.01))
        for x, o in zip(xs, own, strict=True)
    ]
    return task_vectors(
        xs,
        base,
        own,
        masks,
        consensus=consensus,
        normalize=normalize,
        rescale=rescale,
        lambda_=lambda_,
    )


def breadcrumbs_ties(xs, base, own, **given):
    return breadcrumbs(xs, base, own, consensus=True, **given)


def sce(xs, base, own, select_topk=1.0):
    ds = np.stack([x - base for x in xs])
    if select_topk < 1:
        variance = ds.var(axis=0)
        count = int(np.count_nonzero(variance) * select_topk)
        order = np.argsort(-variance.ravel(), kind="stable")[:count]
        ds = ds * _mask(base.shape, order)
    squares = (ds**2).reshape(len(xs), -1).mean(1)
    total = squares.sum()
    weights = squares / total if total >= 1e-6 else np.full(len(xs), 1 / len(xs))
    weights = weights.reshape(-1, *[1] * base.ndim)
    agree = np.sign(ds) == np.where(ds.sum(0) >= 0, 1, -1)
    return base + (ds * weights * agree).sum(0) / np.maximum((weights * agree).sum(0), 1e-6)


def model_stock(xs, base, own, filter_wise=False):
    ds = [x - base for x in xs]
    axis = -1 if filter_wise and base.ndim > 1 else None
    cosines = []
    for a, b in itertools.combinations(ds, 2):
        norms = [np.sqrt((d * d).sum(axis, keepdims=True)) for d in (a, b)]
        cosine = (a * b).sum(axis, keepdims=True) / np.maximum(norms[0] * norms[1], 1e-6)
        cosines.append(np.clip(cosine, -1, 1))
    c, count = sum(cosines) / len(cosines), len(xs)
    below = 1 + (count - 1) * c
    t = np.where(np.abs(below) < 1e-6, 0, count * c / np.where(below == 0, 1, below))
    return t * sum(xs) / count + (1 - t) * base


def nearswap(xs, base, own, t):
    share = np.clip(t / np.maximum(np.abs(base - xs[0]), 1e-6), 0, 1)
    return share * xs[0] + (1 - share) * base


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def arcee_fusion(xs, base, own):
    p, q = _softmax(xs[0]) + 1e-8, _softmax(base) + 1e-8
    importance = np.abs(xs[0] - base) * (p * np.log(p / q)).sum(-1, keepdims=True)
    order = np.sort(importance.ravel())
    low, middle, high = (order[int(s * (order.size - 1))] for s in (0.25, 0.5, 0.75))
    return base + (xs[0] - base) * (importance >= middle + 1.5 * (high - low))


def ram(xs, base, own, epsilon=1e-5):
    ds = np.stack([x - base for x in xs])
    active = np.abs(ds) > epsilon
    return base + (ds * active).sum(0) / np.maximum(active.sum(0), 1)


def ramplus_tl(xs, base, own, epsilon=1e-5, r=0.1, alpha=0.2):
    ds = np.stack([x - base for x in xs])
    active = np.abs(ds) > epsilon
    number = active.sum(0)
    change = np.zeros(base.shape)
    for d, on in zip(ds, active, strict=True):
        shared, alone = (on & (number > 1)).sum(), (on & (number == 1)).sum()
        factor = 1 + r * np.clip(shared / max(alone, epsilon), 0, alpha)
        change += on * np.where(number == 1, d * factor, d / np.maximum(number, 1))
    return base + change


def passthrough(xs, base, own):
    scale = own[0].get("scale")
    return xs[0] if scale is None else xs[0] * scale
