"""Splits a token list into declarations: as much of C++ as finding kernels and their callees takes.

It refuses nothing: it skips what it does not understand, and clang reports errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from softmetal.compiler.tokens import Refusal, Token, match_brackets

_STEPS_PER_TOKEN, _SPARE_STEPS = 32, 1_000_000
_CLASS_KEYS = frozenset({"class", "struct", "union"})
_ACCESS = frozenset({"public", "private", "protected"})
# Words whose parentheses are not a parameter list.
_NOT_NAMES = frozenset({"decltype", "alignas", "__attribute__", "sizeof", "alignof", "noexcept"})
_TYPE_WORDS = frozenset(
    "void bool char short int long unsigned signed float half bfloat uchar ushort uint ulong const "
    "volatile device constant thread threadgroup auto typename size_t".split()
)
_QUALIFIERS = frozenset("const volatile typename device constant thread threadgroup".split())


@dataclass(frozen=True, slots=True)
class Declaration:
    """Tokens [start, end) of one declaration; a body, if any, is tokens [body, end)."""

    kind: str  # "function", "class" or "other"
    scope: tuple[str, ...]  # enclosing namespaces and classes
    name: str
    start: int
    body: int
    end: int
    parameters: int = -1  # index of the "(" of a function
    classes: tuple[str, ...] = ()  # the classes among `scope`
    owner: int = -1  # index of the "{" of the innermost class: specialisations share their name


@dataclass(frozen=True, slots=True)
class Attribute:
    """`name(arguments)` of a [[...]] list."""

    name: str
    arguments: tuple[Token, ...]


class Syntax:
    """The declarations of one token list."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        # Each `<` may be looked at to the end of the text: the sum is bounded.
        self._steps = _STEPS_PER_TOKEN * len(tokens) + _SPARE_STEPS
        self.partner = match_brackets(tokens)
        self.opener = {close: opening for opening, close in self.partner.items()}
        self.declarations = list(self._walk())

    # ---- small readers -----------------------------------------------------------------------

    def text(self, index: int) -> str:
        """The token's text, empty outside the list."""
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def is_attribute(self, index: int) -> bool:
        """Whether `[[` starts here. C++ reserves two brackets in a row for attributes."""
        return self.text(index) == "[" and self.text(index + 1) == "[" and index in self.partner

    def skip_angles(self, index: int) -> int:
        """The index after the template list opened at `index`; the next if it never closes."""
        depth, at = 0, index
        while at < len(self.tokens):
            self._steps -= 1
            if self._steps < 0:
                raise Refusal(self.tokens[index], "too many '<' that nothing closes")
            text = self.tokens[at].text
            if text in "([{" and at in self.partner:
                at = self.partner[at]
            elif text == "<" and (at == index or self.tokens[at - 1].kind == "word"):
                depth += 1
            elif text == ">":
                depth -= 1
                if depth == 0:
                    return at + 1
            elif text in ";{":
                break
            at += 1
        return index + 1

    def split_commas(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The comma-separated pieces of tokens [start, end), brackets and templates kept whole."""
        at = piece = start
        while at < end:
            text = self.tokens[at].text
            if text in "([{" and at in self.partner:
                at = self.partner[at] + 1
            elif text == "<" and self.tokens[at - 1].kind == "word":
                at = min(self.skip_angles(at), end)
            else:
                if text == ",":
                    yield piece, at
                    piece = at + 1
                at += 1
        if piece < end:
            yield piece, end

    def attributes(self, start: int, end: int) -> list[Attribute]:
        """All attributes written in tokens [start, end), outside parentheses."""
        found: list[Attribute] = []
        at = start
        while at < end:
            if self.is_attribute(at):
                found += self._attribute_list(at + 2, self.partner[at] - 1)
                at = self.partner[at]
            elif self.text(at) == "(" and at in self.partner:
                at = self.partner[at]
            at += 1
        return found

    def _attribute_list(self, start: int, end: int) -> Iterator[Attribute]:
        for first, last in self.split_commas(start, end):
            opening = next((i for i in range(first, last) if self.text(i) == "("), last)
            name = "".join(self.text(i) for i in range(first, opening))
            yield Attribute(name, tuple(self.tokens[opening + 1 : last - 1]))

    def plain(self, start: int, end: int) -> list[int]:
        """Indices of tokens [start, end) less attributes and directives."""
        kept: list[int] = []
        at = start
        while at < end:
            if self.is_attribute(at):
                at = self.partner[at]
            elif self.tokens[at].kind != "directive":
                kept.append(at)
            at += 1
        return kept

    # ---- the walk ------------------------------------------------------------------------------

    def _walk(self) -> Iterator[Declaration]:
        scopes: list[tuple[str, str, int]] = []  # (kind, name, "{") of each brace we went into
        at = start = 0
        while at < len(self.tokens):
            token = self.tokens[at]
            path = tuple(name for _, name, _ in scopes if name)
            classes = tuple(name for kind, name, _ in scopes if kind == "class")
            owner = next((at for kind, _, at in reversed(scopes) if kind == "class"), -1)
            if token.kind == "directive":
                if at == start:
                    start += 1
            elif token.text in "([" and at in self.partner:
                at = self.partner[at]
            elif token.text == ";":
                if at > start:
                    yield self._simple(path, classes, owner, start, at + 1)
                start = at + 1
            elif token.text == "}":
                if scopes:
                    scopes.pop()
                start = at + 1
            elif token.text == ":" and at == start + 1 and self.text(start) in _ACCESS:
                start = at + 1
            elif token.text == "{":
                kind, name, parameters = self._classify(start, at)
                end = self.partner.get(at, len(self.tokens) - 1) + 1
                if kind == "initializer":
                    at = end - 1
                elif kind == "namespace":
                    scopes.append((kind, name, at))
                    start = at + 1
                else:
                    yield Declaration(kind, path, name, start, at, end, parameters, classes, owner)
                    if kind == "class":
                        scopes.append((kind, name, at))
                        start = at + 1
                    else:
                        at, start = end - 1, end
            at += 1

    def _simple(
        self, path: tuple[str, ...], classes: tuple[str, ...], owner: int, start: int, end: int
    ) -> Declaration:
        parameters = self._parameter_list(start, end)
        stop = next(
            (i for i in self.plain(start, end) if self.text(i) in ("=", "[", ";", "{")), end
        )
        words = [i for i in self.plain(start, stop) if self.tokens[i].kind == "word"]
        if self.text(start) == "using" and self.text(start + 2) == "=":
            name = self.text(start + 1)
        elif parameters > 0:
            name = self._function_name(parameters)
        else:
            name = self.text(words[-1]) if words else ""
        return Declaration("other", path, name, start, end, end, parameters, classes, owner)

    def _classify(self, start: int, brace: int) -> tuple[str, str, int]:
        """What the `{` at `brace` opens, given its head: (kind, name, parameter list)."""
        head = self.plain(start, brace)
        texts = [self.text(i) for i in head]
        top = self._top_level(start, brace)
        if not texts or any(t == "=" and top[i - 1 : i] != ["operator"] for i, t in enumerate(top)):
            return "initializer", "", -1
        if texts[0] == "extern" and len(texts) == 2:
            return "namespace", "", -1
        if "namespace" in texts[:2]:
            return (
                "namespace",
                "::".join(t for t in texts if t not in ("inline", "namespace", "::")),
                -1,
            )
        parameters = self._parameter_list(start, brace)
        if parameters < 0:
            if "enum" in top:
                return "initializer", "", -1
            key = next((i for i, t in enumerate(top) if t in _CLASS_KEYS), -1)
            if key >= 0:
                names = [t for t in top[key + 1 :] if t.isidentifier() and t != "alignas"]
                return "class", names[0] if names else "", -1
            return "initializer", "", -1
        trailer = [self.text(i) for i in self.plain(self.partner[parameters] + 1, brace)]
        if ":" in trailer and (texts[-1].isidentifier() or texts[-1] == ">"):
            return "initializer", "", -1  # a member's braces in a constructor's list
        return "function", self._function_name(parameters), parameters

    def _function_name(self, parameters: int) -> str:
        before = self.text(parameters - 1)
        return before if before.isidentifier() else "operator"

    def _top_level(self, start: int, end: int) -> list[str]:
        """Texts of the head outside brackets and template lists."""
        texts: list[str] = []
        at = start
        while at < end:
            token = self.tokens[at]
            if token.text in "([{" and at in self.partner:
                at = self.partner[at]
            elif token.text == "<" and at > start and self.tokens[at - 1].kind == "word":
                at = self.skip_angles(at) - 1
            elif token.kind != "directive":
                texts.append(token.text)
            at += 1
        return texts

    def _parameter_list(self, start: int, end: int) -> int:
        """The index of the "(" that opens a function's parameters, -1 if there is none."""
        at = start
        while at < end:
            token = self.tokens[at]
            if token.text == "=":
                return -1
            if token.text == "<" and at > start and self.tokens[at - 1].kind == "word":
                at = self.skip_angles(at)
                continue
            if token.text == "[" and at in self.partner:
                at = self.partner[at]
            elif token.text == "operator":
                return self._operator_parameters(at, end)
            elif token.text == "(" and at in self.partner:
                before = self.tokens[at - 1] if at > start else None
                named = before is not None and (before.kind == "word" or before.text == ">")
                if named and before is not None and before.text not in _NOT_NAMES:
                    return at
                at = self.partner[at]
            at += 1
        return -1

    def _operator_parameters(self, at: int, end: int) -> int:
        at += 1
        if self.text(at) == "(":  # operator()
            at += 2
        while at < end and self.text(at) != "(":
            at += 1
        return at if at < end and at in self.partner else -1

    # ---- what an overload is, once address spaces are gone --------------------------------------

    def signature(self, declaration: Declaration, erased: frozenset[str]) -> tuple[str, ...]:
        """Equal for two definitions that are the same in C++ without the `erased` words."""
        start, renamed = self._template_names(declaration)
        template = tuple(self._normal(declaration.start, start, erased, renamed))
        if declaration.kind == "class":
            head = tuple(self._normal(start, declaration.body, erased, renamed))
            return ("class", str(declaration.owner), *declaration.scope, *template, *head)
        opening = declaration.parameters
        closing = self.partner[opening]
        types: list[str] = []
        for first, last in self.split_commas(opening + 1, closing):
            types += [",", *self._parameter_type(first, last, erased, renamed)]
        # Return types of templates take part in overloading; a constructor's list does not.
        before = tuple(self._normal(start, opening, erased, renamed))
        trailer = tuple(self._normal(closing + 1, declaration.body, erased, renamed))
        if ":" in trailer or declaration.name in declaration.classes[-1:]:
            trailer = ()  # of a constructor
        place = (str(declaration.owner), *declaration.scope)
        return ("function", *place, *template, *before, *types, ")", *trailer)

    def parameter_types(
        self, function: Declaration, values: Sequence[list[str]] = ()
    ) -> list[list[str]]:
        """The types of a function's parameters, with `values` for those of its template."""
        start, _ = self._template_names(function)
        names = self._template_parameters(function.start, start)
        given = dict(zip(names, values, strict=False))
        return [
            [word for text in texts for word in given.get(text, [text])]
            for texts in self.types_between(function.parameters)
        ]

    def deduced(self, template: Declaration, opening: int) -> list[str] | None:
        """The arguments of a template for the parameters in the parentheses at `opening`; None if
        it does not have these, or if they do not say all arguments."""
        start, _ = self._template_names(template)
        names = self._template_parameters(template.start, start)
        seen = set[str]()

        def pattern(text: str) -> str:
            if text not in names:
                return re.escape(text)
            known = text in seen
            seen.add(text)
            return f"(?P={text})" if known else f"(?P<{text}>.+?)"

        types = self.parameter_types(template)
        shape = " , ".join(" ".join(map(pattern, texts)) for texts in types)
        written = " , ".join(map(" ".join, self.types_between(opening)))
        found = re.fullmatch(shape, written)
        return [found[name] for name in names] if found and seen == set(names) else None

    def types_between(self, opening: int) -> list[list[str]]:
        """The types of the parameters in the parentheses that open at `opening`."""
        pieces = self.split_commas(opening + 1, self.partner[opening])
        return [self._parameter_type(first, last, frozenset(), {}) for first, last in pieces]

    def takes(self, template: Declaration, count: int) -> bool:
        """Whether a template can be given `count` arguments and deduce none."""
        start, _ = self._template_names(template)
        pieces = list(self.split_commas(template.start + 2, start - 1))
        texts = [{self.text(i) for i in range(first, last)} for first, last in pieces]
        least = sum(not piece & {"=", "..."} for piece in texts)
        return least <= count and (count <= len(texts) or any("..." in piece for piece in texts))

    def _template_parameters(self, start: int, end: int) -> list[str]:
        names = []
        for first, last in self.split_commas(start + 2, end - 1):
            stop = next((i for i in range(first, last) if self.text(i) == "="), last)
            names.append(self.text(stop - 1))
        return names

    def body(self, function: Declaration, erased: frozenset[str]) -> tuple[str, ...]:
        """Equal for two bodies that do the same without the `erased` words. The names of
        parameters do not matter."""
        _, renamed = self._template_names(function)
        opening = function.parameters
        for first, last in self.split_commas(opening + 1, self.partner[opening]):
            stop = next((i for i in range(first, last) if self.text(i) == "="), last)
            if (named := self.parameter_name(first, stop)) >= 0:
                renamed[self.text(named)] = f"${len(renamed)}"
        return tuple(self._normal(function.body, function.end, erased, renamed))

    def _template_names(self, declaration: Declaration) -> tuple[int, dict[str, str]]:
        """Where the template header ends, and stand-ins for its parameters' names."""
        at, names = declaration.start, dict[str, str]()
        while self.text(at) == "template" and self.text(at + 1) == "<":
            end = self.skip_angles(at + 1)
            for first, last in self.split_commas(at + 2, end - 1):
                stop = next((i for i in range(first, last) if self.text(i) == "="), last)
                if stop - first > 1 and self.tokens[stop - 1].kind == "word":
                    names[self.text(stop - 1)] = f"${len(names)}"
            at = end
        return at, names

    def _normal(
        self, start: int, end: int, erased: frozenset[str], renamed: dict[str, str]
    ) -> Iterator[str]:
        seen_const = False
        for index in self.plain(start, end):
            text = self.text(index)
            text = "const" if text == "constant" else text
            if (
                text in erased
                or text in ("inline", "METAL_FUNC")
                or (text == "const" and seen_const)
            ):
                continue
            seen_const = text == "const"
            yield renamed.get(text, text)

    def _parameter_type(
        self, first: int, last: int, erased: frozenset[str], renamed: dict[str, str]
    ) -> list[str]:
        stop = next((i for i in range(first, last) if self.text(i) == "="), last)
        named = self.parameter_name(first, stop)
        texts = [
            text
            for index in self.plain(first, stop)
            if index != named
            for text in self._normal(index, index + 1, erased, renamed)
        ]
        # `const T*` and `T const*` and `constant const T*` are one type.
        leading = [t for t in texts if t == "const"][:1] if "const" in texts[:2] else []
        return leading + [
            t for i, t in enumerate(texts) if not (t == "const" and i < 3 and leading)
        ]

    def parameter_name(self, first: int, last: int) -> int:
        """The index of a parameter's name, -1 if it has none."""
        plain = self.plain(first, last)
        stop = next((n for n, i in enumerate(plain) if n and self.text(i) == "["), len(plain))
        if stop < 2:
            return -1
        index, before = plain[stop - 1], self.text(plain[stop - 2])
        if self.tokens[index].kind != "word" or self.text(index) in _TYPE_WORDS or before == "::":
            return -1
        if all(self.text(i) in _QUALIFIERS for i in plain[: stop - 1]):
            return -1
        return index
