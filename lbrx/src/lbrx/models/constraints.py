"""Output that obeys a JSON schema, a regular expression or a grammar, with `llguidance`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import LbrxError
from lbrx.extras import install
from lbrx.models.tokenizer import Tokenizer

WHITESPACE = r"[ \n]{0,20}"
"""Between the parts of JSON. Without a limit, small models write spaces to the end."""
NAMES = ("schema", "regex", "grammar")
"""Options of which a text has at most one."""


def rules(name: str, value: Any) -> str:
    """The option `name` in the form of `llguidance`, which is checked when a text begins."""
    library = _library()
    if name == "schema":
        if not isinstance(value, Mapping | bool):
            raise LbrxError(f"schema={value!r:.80}: give a JSON schema as a mapping")
        try:
            whole = json.dumps(value if isinstance(value, bool) else dict(value))
            style = {"whitespace_pattern": WHITESPACE}
            made = library.LLMatcher.grammar_from_json_schema(whole, overrides=style)
        except (TypeError, ValueError, RecursionError) as problem:
            raise _refused(name, str(problem)) from None
        return str(made)
    if not isinstance(value, str) or not value:
        raise LbrxError(f"{name}={value!r:.80}: give a string that is not empty")
    try:
        return str(library.grammar_from(name, value))
    except ValueError as problem:
        raise _refused(name, str(problem)) from None


class Constraint:
    """Which tokens may come next in one text. It fails closed: where the rules cannot be followed
    any more, it raises LbrxError instead of allowing everything."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._mask: NDArray[np.bool_] | None = None

    def prepare(self) -> None:
        """Compute what may come next, so that it is ready when the logits are."""
        if self._mask is None:
            bits = self._matcher.compute_bitmask()
            self._check()
            every = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
            self._mask = every.view(np.bool_)

    def masked(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits, with minus infinity for tokens that may not come next."""
        self.prepare()
        assert self._mask is not None
        allowed = self._mask[: len(logits)]
        if not allowed.any():
            raise LbrxError("no token obeys the rules of the output: give others")
        return np.where(allowed, logits, np.float32(-np.inf))

    def accept(self, token: int) -> bool:
        """Go on after a token. Returns whether the text is complete, so that nothing may follow."""
        self._mask = None
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise LbrxError(f"the rules of the output failed: {self._matcher.get_error():.500}")


class RuledVocabulary:
    """The tokens of a model as constraints need them. It is prepared for the first constraint."""

    def __init__(self, tokenizer: Tokenizer, size: int, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._size = size
        self._ends = ends
        self._lock = Lock()
        self._inner: Any = None

    def constraint(self, rules: str) -> Constraint:
        """A constraint for a new text. Raises LbrxError for rules that cannot be followed."""
        library = _library()
        with self._lock:
            if self._inner is None:
                self._inner = self._prepared(library)
        matcher = library.LLMatcher(self._inner, rules, log_level=0)
        if matcher.is_error():
            kind = "schema" if "json_schema" in rules[:200] else "grammar"
            raise _refused(kind, matcher.get_error())
        return Constraint(matcher)

    def _prepared(self, library: Any) -> Any:
        if not self._ends:
            raise LbrxError("the model has no token that ends a text, which rules need")
        try:
            return library.LLTokenizer(
                self._tokenizer.json(), n_vocab=self._size, eos_token=sorted(self._ends)
            )
        except Exception as problem:
            raise LbrxError(
                f"llguidance cannot use the model's tokenizer: {problem!s:.300}"
            ) from None


def _refused(name: str, problem: str) -> LbrxError:
    return LbrxError(f"{name} cannot be followed: {' '.join(problem.split()):.500}")


def _library() -> Any:
    """The package llguidance, which `import lbrx` does not need."""
    try:
        import llguidance
    except ImportError:
        text = f"output that obeys a schema needs the package llguidance: {install('schemas')}"
        raise LbrxError(text) from None
    return llguidance
