"""What softcoreml raises."""

from __future__ import annotations


class SoftCoreMLError(Exception):
    """The base of every error of this package."""


class ModelError(SoftCoreMLError):
    """A package, a model file or a program that cannot be used; names what is wrong and where."""


class UnreadableModel(ModelError):
    """A file of a model that is not there, or that the system does not let us read."""


class UnsupportedOperation(ModelError):
    """A program needs operations that softcoreml does not have; names them all."""


class InputError(SoftCoreMLError):
    """An input of a prediction that does not fit the model's description."""


def shown(path: object) -> str:
    """A path for a message: one line of at most 300 characters."""
    return f"{str(path)!r:.301}".strip("'\"")
