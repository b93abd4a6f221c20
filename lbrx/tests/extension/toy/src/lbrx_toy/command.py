"""lbrx toy: the sums of neighbours in a list."""

from __future__ import annotations

import argparse

from lbrx.extension.errors import LbrxError

SUMMARY = "add up the neighbours in a list of numbers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("numbers", help="numbers with commas")


def run(options: argparse.Namespace) -> int:
    """Print the sums and return the exit status."""
    from lbrx.extension.tensors import asarray
    from lbrx_toy import neighbours

    try:
        numbers = [float(part) for part in options.numbers.split(",")]
    except ValueError:
        raise LbrxError(f"{options.numbers} is not a list of numbers: give 1,2,3") from None
    print(*neighbours(asarray(numbers)).tolist(), sep=",")
    return 0
