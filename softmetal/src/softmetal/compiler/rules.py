"""Refuses what Apple's compiler refuses although C++ allows it, so that it fails here as well."""

from __future__ import annotations

import re
from collections.abc import Iterator

from softmetal.compiler.syntax import Declaration, Syntax
from softmetal.compiler.tokens import Refusal, Token
from softmetal.types import Parameter

_WORDS = {
    "double": "'double' is not supported in Metal: use float",
    "goto": "'goto' is not supported in Metal",
    "virtual": "virtual functions are not supported in Metal",
    "dynamic_cast": "'dynamic_cast' is not supported in Metal",
    "typeid": "'typeid' is not supported in Metal",
    "thread_local": "'thread_local' is not supported in Metal",
    "__thread": "'__thread' is not supported in Metal",
    "_Thread_local": "'_Thread_local' is not supported in Metal",
    "new": "'new' is not supported in Metal: kernels have no heap",
    "delete": "'delete' is not supported in Metal: kernels have no heap",
}
SPACES = frozenset({"device", "constant", "thread", "threadgroup", "threadgroup_imageblock"})
_CONSTANT = frozenset({"constant", "const", "constexpr"})
_NOT_VARIABLES = frozenset(
    "using typedef template extern friend static_assert namespace enum struct class union".split()
)
_STATEMENT_STARTS = frozenset({"{", "}", ";"})
BUILTIN_TYPE = re.compile(
    r"(bool|u?(char|short|int|long)|half|float|bfloat)[234]?|unsigned|signed|u?int(8|16|32|64)_t"
    r"|size_t|(half|float)[234]x[234]|packed_\w+"
)
_BY_VALUE = re.compile(r"(bool|u?(char|short|int|long)|half|float|bfloat)[234]?|size_t")
_NOT_POSITIONS = re.compile(
    r"(bool|char|short|int|u?long|uchar|half|float|bfloat)[234]?|u(int|short)4|size_t"
)
_NO_SPACE = "type must have explicit address space qualifier: write device, constant, "
LAST_INDEX = 30


def enforce(syntax: Syntax) -> None:
    """Raise Refusal at the first token that breaks a rule of Metal."""
    _words(syntax)
    class_ends = {d.body for d in syntax.declarations if d.kind == "class"}
    class_ends = {syntax.partner[body] for body in class_ends if body in syntax.partner}
    for declaration in syntax.declarations:
        if declaration.parameters >= 0:
            _parameter_spaces(syntax, declaration)
        elif declaration.kind == "other" and not declaration.classes:
            _global(syntax, declaration, class_ends)
        if declaration.kind == "function":
            _locals(syntax, declaration)


def _words(syntax: Syntax) -> None:
    for index, token in enumerate(syntax.tokens):
        if token.kind == "word" and token.text in _WORDS:
            before = syntax.text(index - 1)
            declares = token.text == "delete" and before == "="
            if not declares and before not in ("operator", ".", "->"):
                raise Refusal(token, _WORDS[token.text])


# DEVIATION: built-in variables and buffers that are declared at program scope are refused: make
# them parameters of the kernel.
def _global(syntax: Syntax, declaration: Declaration, class_ends: set[int]) -> None:
    if declaration.start - 1 in class_ends:  # the name behind a typedef's struct
        return
    plain = syntax.plain(declaration.start, declaration.end)
    texts = [syntax.text(i) for i in plain]
    stop = next((n for n, t in enumerate(texts) if t in ("=", "[", "{", ";")), len(texts))
    head = texts[:stop]
    words = [t for t in head if t.isidentifier() and t not in ("static", "inline", "volatile")]
    if len(words) < 2 or "(" in head or words[0] in _NOT_VARIABLES or _CONSTANT & set(words):
        return
    names = [a.name for a in syntax.attributes(declaration.start, declaration.end)]
    if bound := [name for name in names if name not in ("maybe_unused", "deprecated")]:
        raise Refusal(
            syntax.tokens[plain[stop - 1]],
            f"a program scope variable with attribute '{bound[0]}' is not supported by "
            f"softmetal: make '{head[-1]}' a parameter of the kernel",
        )
    raise Refusal(
        syntax.tokens[plain[stop - 1]],
        f"program scope variable must reside in constant address space: declare '{head[-1]}' "
        "constant, or pass a buffer",
    )


def _parameter_spaces(syntax: Syntax, function: Declaration) -> None:
    opening = function.parameters
    for first, last in syntax.split_commas(opening + 1, syntax.partner[opening]):
        _require_space(syntax, syntax.plain(first, last))


def _require_space(syntax: Syntax, plain: list[int]) -> None:
    """A pointer or reference to a type of Metal, whose address space must be written."""
    texts = [syntax.text(i) for i in plain]
    if SPACES & set(texts) or "(" in texts:
        return
    named = [n for n, t in enumerate(texts) if t not in ("const", "volatile")]
    if len(named) > 1 and BUILTIN_TYPE.fullmatch(texts[named[0]]) and texts[named[1]] in "*&":
        raise missing_space(syntax.tokens[plain[named[1]]])


def missing_space(token: Token) -> Refusal:
    """A pointer or reference, at its `*` or `&`, that does not say where it points."""
    kind = "pointer" if token.text == "*" else "reference"
    return Refusal(token, f"{kind} {_NO_SPACE}threadgroup or thread")


def _locals(syntax: Syntax, function: Declaration) -> None:
    for index in range(function.body + 1, function.end - 1):
        if syntax.text(index - 1) not in _STATEMENT_STARTS:
            continue
        if syntax.text(index) == "static":
            words = {t.text for t in _until(syntax, index, function.end)}
            if not words & (_CONSTANT | {"threadgroup"}):
                raise Refusal(
                    syntax.tokens[index],
                    "static local variable must reside in constant address space",
                )
        elif BUILTIN_TYPE.fullmatch(syntax.text(index)) or syntax.text(index) == "const":
            end = index + len(list(_until(syntax, index, function.end)))
            _require_space(syntax, list(range(index, end)))


def static_locals(syntax: Syntax) -> Iterator[int]:
    """The word `static` of each static variable of a function, which needs a constant value."""
    for function in syntax.declarations:
        if function.kind == "function":
            for index in range(function.body + 1, function.end - 1):
                if syntax.text(index) == "static":
                    words = {token.text for token in _until(syntax, index, function.end)}
                    if not words & {"(", "threadgroup"}:
                        yield index


def _until(syntax: Syntax, start: int, end: int) -> Iterator[Token]:
    """A declaration's tokens up to its initializer."""
    for index in range(start, end):
        if syntax.text(index) in ("=", ";", "{", "["):
            return
        yield syntax.tokens[index]


def recursion_suspects(syntax: Syntax) -> dict[str, Token]:
    """Functions that may call themselves according to their names, with the tokens of the names.

    Overloads and templates look recursive too: the compiled code decides.
    """
    calls: dict[str, set[str]] = {}
    places: dict[str, Token] = {}
    for function in syntax.declarations:
        if function.kind == "function":
            body = range(function.body, function.end)
            called = {syntax.text(i) for i in body if syntax.text(i + 1) in ("(", "<")}
            calls.setdefault(function.name, set()).update(called)
            places.setdefault(function.name, syntax.tokens[function.parameters - 1])
    return {name: token for name, token in places.items() if name in _reached(calls, name)}


def _reached(calls: dict[str, set[str]], name: str) -> set[str]:
    reached: set[str] = set()
    pending = [name]
    while pending:
        fresh = (calls.get(pending.pop(), set()) & calls.keys()) - reached
        reached |= fresh
        pending += fresh
    return reached


# ---- kernels ------------------------------------------------------------------------------------


def check_result(syntax: Syntax, kernel: Declaration) -> None:
    head = [syntax.text(i) for i in syntax.plain(kernel.start, kernel.parameters - 1)]
    if not {"void", "auto", "decltype"} & set(head):
        what = f"invalid return type '{head[-1]}'" if head else "no return type"
        message = f"{what} for kernel function: it must be void"
        raise Refusal(syntax.tokens[kernel.parameters - 1], message)


def check_index(kind: str, index: int, token: Token) -> None:
    """The index of a buffer or of threadgroup memory is one that Metal has."""
    if not 0 <= index <= LAST_INDEX:
        raise Refusal(
            token,
            f"'{kind}' attribute parameter is out of bounds: must be between 0 and {LAST_INDEX}",
        )


def check_parameter(parameter: Parameter, token: Token) -> None:
    """The type of one kernel parameter fits its attribute."""
    words = [w for w in parameter.type.split() if w not in ("const", "volatile")]
    pointer = "*" in words or "&" in words
    if parameter.kind in ("buffer", "threadgroup"):
        check_index(parameter.kind, parameter.index, token)
        if not pointer and len(words) == 1 and _BY_VALUE.fullmatch(words[0]):
            raise Refusal(
                token,
                f"invalid type '{words[0]}' for buffer declaration '{parameter.name}': write "
                f"'constant {words[0]}& {parameter.name}'",
            )
        if pointer and not SPACES & set(words) and BUILTIN_TYPE.fullmatch(words[0]):
            kind = "pointer" if "*" in words else "reference"
            raise Refusal(token, f"{kind} {_NO_SPACE[:-2]} or threadgroup")
        if parameter.kind == "buffer" and pointer and "thread" in words:
            raise Refusal(token, f"buffer '{parameter.name}' must be in device or constant memory")
    elif len(words) == 1 and _NOT_POSITIONS.fullmatch(words[0]):
        raise Refusal(
            token,
            f"invalid type '{words[0]}' for attribute '{parameter.kind}': Metal gives it as uint "
            "or ushort, or as a vector of two or three of them",
        )


def check_places(parameters: list[tuple[Parameter, Token]]) -> None:
    """No two unconditional parameters have the same index."""
    seen: dict[tuple[str, int], str] = {}
    for parameter, token in parameters:
        place = (parameter.kind, parameter.index)
        if parameter.kind in ("buffer", "threadgroup") and not parameter.condition:
            if place in seen:
                raise Refusal(
                    token,
                    f"cannot reserve '{parameter.kind}' resource location at index "
                    f"{parameter.index} for '{parameter.name}': '{seen[place]}' has it",
                )
            seen[place] = parameter.name
