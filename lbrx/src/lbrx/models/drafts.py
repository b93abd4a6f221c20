"""Guesses at the next tokens of a text, which one forward pass checks all at once."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2  # tokens that have to occur before
WIDTHS = (1, 4, 8)
"""Tokens of a text in one pass, the first of which is known: few numbers, so that few steps are
recorded."""


class LookUp:
    """Guesses that a text goes on as it did after its last tokens occurred before.

    After a wrong guess the next one is shorter, after a right one longer, so that texts without
    repetitions seldom pay for guesses.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], int] = {}  # where what follows some tokens begins
        self._seen = 0
        self._most = WIDTHS[-1] - 1
        self._pause = 0

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow a text. A text only grows between calls."""
        self._index(tokens)
        if self._pause:
            self._pause -= 1
            return []
        for size in range(LONGEST, SHORTEST - 1, -1):
            begin = self._last.get(tuple(tokens[len(tokens) - size :]))
            if begin is not None:
                return self._following(tokens, begin, min(most, self._most))
        return []

    @staticmethod
    def _following(tokens: Sequence[int], begin: int, most: int) -> list[int]:
        """The tokens from `begin` on, which go on repeating themselves at the end of the text."""
        guess: list[int] = []
        for place in range(begin, begin + most):
            known = place < len(tokens)
            guess.append(tokens[place] if known else guess[place - len(tokens)])
        return guess

    def learn(self, guessed: int, right: int) -> None:
        """Note how many tokens of a guess were right."""
        if right == guessed:
            self._most = WIDTHS[-1] - 1
        elif right == 0:
            self._most = max(self._most // 2, WIDTHS[1] - 1)
            self._pause = 4

    def _index(self, tokens: Sequence[int]) -> None:
        """Note where sequences end that something follows, so not those at the end of the text."""
        for end in range(max(self._seen, SHORTEST), len(tokens)):
            for size in range(SHORTEST, min(LONGEST, end) + 1):
                self._last[tuple(tokens[end - size : end])] = end
        self._seen = len(tokens)


def width_of(tokens: int) -> int:
    """The width of a pass that has so many tokens of a text."""
    return next(width for width in WIDTHS if width >= tokens)
