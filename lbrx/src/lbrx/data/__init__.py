"""Streams of examples for training: shuffled, batched, bucketed by length, resumed exactly."""

from __future__ import annotations

from lbrx.data.stream import (
    Batches,
    Place,
    Stream,
    arrays,
    collated,
    examples,
    images,
    jsonl,
    padded,
    parquet,
)

__all__ = [
    "Batches",
    "Place",
    "Stream",
    "arrays",
    "collated",
    "examples",
    "images",
    "jsonl",
    "padded",
    "parquet",
]
