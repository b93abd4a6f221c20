"""Pragmas, attributes and words that Metal does not have and that reach beyond the kernel.

The preprocessor has run: macros are expanded, and the only directives left are line markers and
pragmas. `host_access` checks the compiled code for the same, where no spelling can hide it.
"""

from __future__ import annotations

import re
from typing import NoReturn

from softmetal.compiler import builtins
from softmetal.compiler.syntax import Syntax
from softmetal.compiler.tokens import Refusal, Token, blank

_ASSEMBLY = frozenset({"asm", "__asm", "__asm__"})
# DEVIATION: digraphs (`<%`, `%>`, `<:`, `:>`, `%:`) are refused.
_DIGRAPHS = frozenset({"<%", "%>", "%:", ":>", "<:"})
_ATTRIBUTE_WORDS = frozenset({"__attribute__", "__attribute", "__declspec", "_declspec"})
# They run code when a kernel is loaded, change where the linker puts it, or hide from the checks.
_ATTRIBUTES = frozenset(
    "constructor destructor init_priority cleanup ifunc alias weakref section code_seg allocate "
    "naked target target_version target_clones cpu_dispatch cpu_specific interrupt tls_model "
    "asm_label dllimport dllexport address_space no_sanitize no_sanitize_address "
    "no_sanitize_memory no_sanitize_thread no_address_safety_analysis "
    "disable_sanitizer_instrumentation nodebug no_builtin patchable_function_entry "
    "xray_always_instrument".split()
)
# Other pragmas have no effect, as Apple's compiler ignores those that it does not know.
_PRAGMAS = re.compile(
    r"(unroll|nounroll|once|mark|pack|float_control|message|clang (loop|fp|diagnostic|optimize)"
    r"|GCC (diagnostic|unroll|warning|error)|STDC FP_CONTRACT|METAL)\b"
)
_REFUSED_PRAGMAS = re.compile(
    r"(comment|weak|redefine_extname|include_alias|init_seg|(const|code|data|bss)_seg|section"
    r"|clang (attribute|module|section|system_header|__debug)"
    r"|GCC (visibility|system_header|dependency))\b"
)
_METAL_PRAGMAS = {
    "fpcontract(off)": "#pragma clang fp contract(off)",
    "fpcontract(on)": "#pragma clang fp contract(on)",
    "fpcontract(fast)": "#pragma clang fp contract(fast)",
    "fpmath_mode(safe)": "#pragma clang fp reassociate(off) reciprocal(off) contract(on)",
    "fpmath_mode(relaxed)": "#pragma clang fp reassociate(on) reciprocal(on) contract(fast)",
    "fpmath_mode(fast)": "#pragma clang fp reassociate(on) reciprocal(on) contract(fast)",
}


def enforce(syntax: Syntax) -> None:
    """Raise Refusal at the first token of a construct that reaches beyond the kernel."""
    for index, token in enumerate(syntax.tokens):
        if token.kind == "directive":
            _directive(token)
        elif token.kind == "word" and token.text in _ASSEMBLY:
            _assembly(syntax, index)
        elif token.kind == "word" and token.text in _ATTRIBUTE_WORDS:
            _attribute(syntax, index + 1)
        elif token.kind == "word" and "_" in token.text and builtins.is_refused(token.text):
            raise Refusal(
                token,
                f"'{token.text}' is not supported in Metal: kernels can use Metal's functions, and "
                "builtins that compute values",
            )
        elif token.kind == "op" and token.text in _DIGRAPHS:
            raise Refusal(token, f"the digraph '{token.text}' is not supported by softmetal")
        elif token.text == "[" and syntax.is_attribute(index):
            for attribute in syntax.attributes(index, index + 1):
                _require_harmless(token, attribute.name.rpartition(":")[2])


# DEVIATION: declarations of private functions, `__asm("air.simdgroup_async_copy_2d...")`, are
# refused, as by Apple's compiler since macOS 26; earlier ones accept them.
def _assembly(syntax: Syntax, index: int) -> NoReturn:
    """`void f() __asm("air.g");` declares a private function of Apple's compiler."""
    label = syntax.text(index + 2).strip('"')
    if syntax.text(index - 1) == ")" and label.startswith("air."):
        raise Refusal(
            syntax.tokens[index],
            f"illegal string literal in 'asm': '{label}' is private to Apple's compiler, which "
            "refuses it since macOS 26, and softmetal does not have it: write it in Metal",
        )
    raise Refusal(syntax.tokens[index], "inline assembly is not supported in Metal")


def _directive(token: Token) -> None:
    if token.text.startswith("# "):
        return
    words = " ".join(token.text.replace("#", " ", 1).split())
    kind, _, rest = words.partition(" ")
    if kind != "pragma":
        raise Refusal(token, f"a macro cannot make a directive: '{words[:80]}'")
    if _REFUSED_PRAGMAS.match(rest):
        raise Refusal(token, f"'#pragma {rest[:80]}' is not supported in Metal")


def _attribute(syntax: Syntax, opening: int) -> None:
    """The names in `((a, b(2)))` after __attribute__, or in `(a)` after __declspec."""
    while syntax.text(opening + 1) == "(" and opening + 1 in syntax.partner:
        opening += 1
    if opening in syntax.partner:
        for first, _ in syntax.split_commas(opening + 1, syntax.partner[opening]):
            _require_harmless(syntax.tokens[first], syntax.text(first))


def _require_harmless(token: Token, name: str) -> None:
    if name.strip("_") in _ATTRIBUTES:
        raise Refusal(token, f"attribute '{name}' is not supported in Metal")


def pragma(text: str) -> str:
    """A pragma as clang is given it: blank if it has no effect."""
    words = " ".join(text.replace("#", " ", 1).split()).partition(" ")[2]
    if words.startswith("METAL "):
        return _METAL_PRAGMAS.get(words[6:].replace(" ", ""), blank(text))
    # Clang refuses an unroll count that is a name by now: -E leaves pragmas unexpanded.
    unknown_count = "unroll" in words and re.search(r"\(\s*[A-Za-z_]", words)
    return text if _PRAGMAS.match(words) and not unknown_count else blank(text)


def find_pragma(syntax: Syntax, name: str) -> Token | None:
    """The first `#pragma softmetal NAME` of a source."""
    wanted = ["pragma", "softmetal", name]
    directives = (token for token in syntax.tokens if token.kind == "directive")
    found = (t for t in directives if t.text.replace("#", " ", 1).split()[:3] == wanted)
    return next(found, None)
