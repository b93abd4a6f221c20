"""The rules of lbrx's own operations: importing this package fills the table's column `vjp`."""

from lbrx.gradients.rules import (
    attention,
    convolution,
    elementwise,
    moving,
    normalizing,
    products,
    reducing,
    without,
)

__all__ = [
    "attention",
    "convolution",
    "elementwise",
    "moving",
    "normalizing",
    "products",
    "reducing",
    "without",
]
