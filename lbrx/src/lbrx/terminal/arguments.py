"""The parsers of commands. What they refuse is raised, with the parser whose usage explains it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from lbrx.errors import printable

JSON = "--json"
MODEL = (
    "a file, a folder, the packaged model smollm2, or organization/name[@revision][:file] on "
    "Hugging Face's hub"
)
WRONG_USAGE = 2  # argparse's exit status


class UsageError(Exception):
    """Arguments that a command does not take."""

    def __init__(self, parser: Parser, problem: str) -> None:
        super().__init__(problem)
        self.parser = parser
        self.problem = problem

    def asks_for_json(self, given: Sequence[str]) -> bool:
        """Whether the command prints JSON and the arguments ask for it, perhaps abbreviated."""
        if JSON not in self.parser._option_string_actions:
            return False
        return any(len(word) > len("--") and JSON.startswith(word) for word in given)


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError`."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(self, message)

    def exit_with(self, message: str) -> NoReturn:
        """End the program with the usage and a message, as argparse does."""
        super().error(printable(message, kept=""))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as problem:
            near = nearest(value, map(str, action.choices or ()))
            if near is None:
                raise
            told = f"{value!r}, did you mean {near!r}?"
            message = problem.message.replace(repr(value), told, 1)
            raise argparse.ArgumentError(action, message) from None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Otherwise only the outermost parser refuses them, with its own usage.
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [name for name in self._option_string_actions if name.startswith("--")]
            given = (word.partition("=")[0] for word in unknown if word.startswith("--"))
            near = next(filter(None, (nearest(word, options) for word in given)), None)
            hint = f" (did you mean {near}?)" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant: one that begins so, or is similar."""
    import difflib  # few runs need it

    words = list(known)
    begun = [each for each in words if each.startswith(word)]
    near = begun or difflib.get_close_matches(word, words, n=1)
    return near[0] if near else None
