"""Einstein's summation convention: any contraction of tensors, as products of pairs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Layout
from lbrx.errors import ShapeError
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.functions.arguments import as_tensors
from lbrx.tensors.tensor_like import TensorLike

Labels = tuple[str, ...]
"""One name for each axis: a letter, or "...0" and so on for the axes of an ellipsis, last first."""


@dataclass(frozen=True)
class _Term:
    """A tensor and the names of its axes, each once."""

    tensor: Tensor
    labels: Labels


def einsum(subscripts: str, /, *operands: TensorLike) -> Tensor:
    """Sums of products of elements, by naming axes with letters: "ij,jk->ik" is a matrix product.

    A letter that is not after "->" is summed over. A letter twice in one operand takes the
    diagonal. "..." stands for all other axes, which broadcast. Without "->", the result has the
    letters that occur once, in alphabetical order, after the axes of "...". Axes of size 1
    broadcast. Several operands are multiplied in pairs, those with the smallest result first.
    The result has the promoted dtype of the operands.

    >>> queries, keys = lbrx.ones((1, 2, 3, 8)), lbrx.ones((1, 2, 5, 8))
    >>> lbrx.einsum("bhqd,bhkd->bhqk", queries, keys).shape
    (1, 2, 3, 5)
    """
    tensors = as_tensors(*operands)
    inputs, output = _parsed(subscripts, [each.ndim for each in tensors])
    dtype = reduce(dt.promote, [each.dtype for each in tensors])
    sizes = _sizes(subscripts, inputs, tensors)
    terms = [
        _prepared(each.astype(dtype), labels, sizes)
        for each, labels in zip(tensors, inputs, strict=True)
    ]
    terms = [_summed(terms, i, output, dtype) for i in range(len(terms))]
    while len(terms) > 1:
        first, second = min(
            itertools.combinations(range(len(terms)), 2),
            key=lambda pair: _result_size(terms, pair, output, sizes),
        )
        rest = [term for i, term in enumerate(terms) if i not in (first, second)]
        kept = {*output, *(label for term in rest for label in term.labels)}
        terms = [*rest, _product(terms[first], terms[second], kept, sizes)]
    return _ordered(terms[0], output)


# ---- subscripts ----


def _parsed(subscripts: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of every operand and of the result."""
    if not isinstance(subscripts, str):
        raise TypeError(f"the subscripts are {subscripts!r}: give a string such as 'ij,jk->ik'")
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise ShapeError(f"einsum {subscripts!r} names {len(parts)} operands: {len(ranks)} given")
    inputs = [_labels(part, subscripts, rank) for part, rank in zip(parts, ranks, strict=True)]
    longest = max(map(_ellipsis, inputs), key=len)
    every = [label for labels in inputs for label in labels]
    if not arrow:
        once = [
            label for label in sorted(set(every)) if label[0] != "." and every.count(label) == 1
        ]
        return inputs, (*longest, *once)
    output = _labels(right, subscripts, None, longest)
    if unknown := [label for label in output if label not in every]:
        raise ShapeError(f"einsum {subscripts!r}: {unknown[0]!r} of the result is in no operand")
    if len(set(output)) != len(output):
        raise ShapeError(f"einsum {subscripts!r}: the result names an axis twice: name each once")
    return inputs, output


def _ellipsis(labels: Labels) -> Labels:
    return tuple(label for label in labels if label[0] == ".")


def _labels(text: str, subscripts: str, rank: int | None, dots: Labels = ()) -> Labels:
    """The labels of an operand with so many axes, or of the result with these for "..."."""
    before, ellipsis, after = text.partition("...")
    letters = before + after
    if letters and not (letters.isascii() and letters.isalpha()):
        raise ShapeError(f"einsum {subscripts!r}: {text!r} are not letters and at most one '...'")
    if rank is not None:
        extra = rank - len(letters)
        if extra < 0 or (extra and not ellipsis):
            raise ShapeError(
                f"einsum {subscripts!r}: {text!r} does not name the {rank} axes of its operand: "
                "give a letter for each, or '...' for the rest"
            )
        dots = tuple(f"...{i}" for i in reversed(range(extra)))
    return (*before, *(dots if ellipsis else ()), *after)


def _sizes(subscripts: str, inputs: Sequence[Labels], tensors: Sequence[Tensor]) -> dict[str, int]:
    """The size of every axis; those of size 1 follow the others."""
    sizes: dict[str, int] = {}
    for labels, tensor in zip(inputs, tensors, strict=True):
        for label, size in zip(labels, tensor.shape, strict=True):
            known = sizes.setdefault(label, size)
            if known == 1:
                sizes[label] = size
            elif size not in (1, known):
                raise ShapeError(
                    f"einsum {subscripts!r}: axis {label!r} has sizes {known} and {size}: "
                    "they must be equal, or 1"
                )
    return sizes


# ---- terms ----


def _prepared(tensor: Tensor, labels: Labels, sizes: Mapping[str, int]) -> _Term:
    """Axes of size 1 expanded, and those of one name as their diagonal: a view."""
    layout = tensor.expand(*(sizes[label] for label in labels)).array.layout
    names = tuple(dict.fromkeys(labels))
    strides = [
        sum(step for other, step in zip(labels, layout.strides, strict=True) if other == label)
        for label in names
    ]
    shape = tuple(sizes[label] for label in names)
    return _Term(tensor.view(Layout(shape, tuple(strides), layout.offset)), names)


def _summed(terms: Sequence[_Term], place: int, output: Labels, dtype: Dtype) -> _Term:
    """A term summed over the axes that only it has and the result has not."""
    others = {label for i, term in enumerate(terms) if i != place for label in term.labels}
    term = terms[place]
    gone = [i for i, x in enumerate(term.labels) if x not in others and x not in output]
    if not gone:
        return term
    total = call("sum", term.tensor, axis=tuple(gone)).astype(dtype)
    return _Term(total, tuple(x for i, x in enumerate(term.labels) if i not in gone))


def _result_size(
    terms: Sequence[_Term], pair: tuple[int, int], output: Labels, sizes: Mapping[str, int]
) -> int:
    """The number of elements of a pair's product."""
    others = {x for i, term in enumerate(terms) if i not in pair for x in term.labels}
    both = {x for i in pair for x in terms[i].labels}
    return math.prod(sizes[x] for x in both if x in others or x in output)


def _product(a: _Term, b: _Term, kept: set[str], sizes: Mapping[str, int]) -> _Term:
    """Two terms multiplied, and summed over what both have and nothing later needs."""
    shared = [x for x in a.labels if x in b.labels]
    batch = [x for x in shared if x in kept]
    inner = [x for x in shared if x not in kept]
    rows = [x for x in a.labels if x not in shared]
    columns = [x for x in b.labels if x not in shared]
    labels = (*batch, *rows, *columns)
    if not inner:
        return _Term(_aligned(a, labels) * _aligned(b, labels), labels)

    def matrix(term: _Term, first: list[str], second: list[str]) -> Tensor:
        ordered = _ordered(term, (*batch, *first, *second))
        counts = (math.prod(sizes[x] for x in part) for part in (first, second))
        return ordered.reshape(*(sizes[x] for x in batch), *counts)

    product = call("matmul", matrix(a, rows, inner), matrix(b, inner, columns))
    return _Term(product.reshape(*(sizes[x] for x in labels)), labels)


def _ordered(term: _Term, labels: Labels) -> Tensor:
    """The term's axes in that order."""
    return term.tensor.permute(*(term.labels.index(label) for label in labels))


def _aligned(term: _Term, labels: Labels) -> Tensor:
    """The term with axes of size 1 for the labels that it does not have."""
    present = [label for label in labels if label in term.labels]
    ordered = _ordered(term, tuple(present))
    sizes = dict(zip(present, ordered.shape, strict=True))
    return ordered.reshape(*(sizes.get(label, 1) for label in labels))
