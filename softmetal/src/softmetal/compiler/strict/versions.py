"""What each version of the Metal Shading Language lacks."""

from __future__ import annotations

import re

from softmetal.compiler.frontend import Pass
from softmetal.compiler.syntax import Syntax
from softmetal.compiler.tokens import Refusal, Token

OLDEST, NEWEST = 200, 400
# The first version that has an attribute.
_ATTRIBUTES = {"max_total_threads_per_threadgroup": 210, "host_name": 220}
# The first version that has a name of the library or the language.
_NAMES = [
    (r"(simd|quad)_(sum|product|min|max|and|or|xor|prefix_\w+)", 210),
    (r"(simd|quad)_(all|any|ballot|is_first|vote|active_threads_mask|broadcast_first)", 210),
    (r"(simd|quad)_shuffle_rotate_(up|down)", 210),
    (r"u?long[234]?|packed_u?long[234]|u?int64_t", 220),
    (r"simdgroup_(matrix|float8x8|half8x8|load|store|multiply|multiply_accumulate)", 230),
    (r"make_(filled|diagonal)_simdgroup_matrix", 230),
    (r"(simd|quad)_shuffle_and_fill_(up|down)", 240),
    (r"atomic_ulong|atomic_(min|max)_explicit", 240),
    (r"atomic_float", 300),
    (r"bfloat[234]?|packed_bfloat[234]|simdgroup_bfloat8x8|nextafter", 310),
    (r"os_log(_default)?|atomic_thread_fence|thread_scope_\w+", 320),
    (r"memory_order_(acquire|release|acq_rel|seq_cst)", 320),
]  # fmt: skip
_LAMBDAS = 320


def name(version: int) -> str:
    """A version as Apple's compiler names it: macos-metal2.4, metal3.1."""
    prefix = "macos-metal" if version < 300 else "metal"
    return f"{prefix}{version // 100}.{version // 10 % 10}"


def enforce(parsed: Pass, version: int) -> None:
    """Raise Refusal at the first token that needs a later version of the language."""
    if version >= _LAMBDAS:
        return
    syntax = parsed.syntax
    own = {declaration.name for declaration in syntax.declarations}
    missing = [(re.compile(pattern), since) for pattern, since in _NAMES if since > version]
    for index, token in enumerate(syntax.tokens):
        if token.text == "[" and not syntax.is_attribute(index - 1):
            _attributes_or_lambda(syntax, index, version)
        if token.kind != "word" or token.text in own:
            continue
        if token.text in ("long",) and version < 220 and syntax.text(index - 1) == "unsigned":
            continue
        for pattern, since in missing:
            if pattern.fullmatch(token.text) and syntax.text(index - 1) not in (".", "->"):
                raise _too_old(token, f"'{token.text}'", since)


def _attributes_or_lambda(syntax: Syntax, index: int, version: int) -> None:
    if syntax.is_attribute(index):
        for attribute in syntax.attributes(index, index + 1):
            since = _ATTRIBUTES.get(attribute.name, 0)
            if since > version:
                token = syntax.tokens[index + 2]
                raise _too_old(token, f"'{attribute.name}' attribute", since)
    elif _is_lambda(syntax, index):
        raise _too_old(syntax.tokens[index], "a lambda expression", _LAMBDAS)


def _is_lambda(syntax: Syntax, index: int) -> bool:
    """`[&](int i) {`: no operand stands before the bracket, and a list or a body follows."""
    before = syntax.tokens[index - 1] if index else None
    if before is None or before.kind in ("word", "number", "string"):
        return before is not None and before.text == "return"
    after = syntax.text(syntax.partner.get(index, index) + 1)
    return before.text not in ("]", ")") and after in ("(", "{")


def _too_old(token: Token, what: str, since: int) -> Refusal:
    return Refusal(token, f"{what} requires Metal language standard {name(since)} or higher")
