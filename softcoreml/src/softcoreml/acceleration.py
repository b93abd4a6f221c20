"""Faster kernels for hot operations, put here by other packages. NumPy remains the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Kernel = Callable[..., Any]
_KERNELS: dict[str, list[Kernel]] = {}


def accelerate(name: str, kernel: Kernel) -> Callable[[], None]:
    """Try `kernel` before the NumPy definition of the operation `name`.

    A kernel takes the same keyword arguments as the definition and returns the same values, or
    `NotImplemented` for arguments that it does not handle. The newest kernel is tried first.

    Returns:
        A function that removes the kernel again.

    Example:
        remove = softcoreml.accelerate("linear", my_linear)
    """
    _KERNELS.setdefault(name, []).insert(0, kernel)

    def remove() -> None:
        _KERNELS[name].remove(kernel)

    return remove


def run(name: str, definition: Kernel, arguments: dict[str, Any]) -> Any:
    """The result of the first kernel that takes the arguments, else of the definition."""
    for kernel in _KERNELS.get(name, ()):
        result = kernel(**arguments)
        if result is not NotImplemented:
            return result
    return definition(**arguments)
