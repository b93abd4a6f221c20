"""The strict check: refuses what Apple's compiler refuses, although softmetal could run it.

`rules` and `versions` read tokens; `check` runs clang over the source with real address spaces,
spelled by `spelling`. Code generation does not depend on it.
"""

from __future__ import annotations

from softmetal.compiler import directives
from softmetal.compiler.frontend import Pass
from softmetal.compiler.strict import rules, versions
from softmetal.compiler.strict.check import address_spaces, joined
from softmetal.compiler.tokens import Refusal
from softmetal.types import CompileOptions

__all__ = ["address_spaces", "enforce", "is_exempt", "joined"]


def is_exempt(parsed: Pass, options: CompileOptions) -> bool:
    """Whether a source asks for softmetal's extensions; raises Refusal where there are none."""
    token = directives.find_pragma(parsed.syntax, "extensions")
    if token is not None and not options.extensions:
        raise Refusal(token, "softmetal's extensions are not available on Apple devices")
    return token is not None


def enforce(parsed: Pass, options: CompileOptions) -> None:
    """Raise Refusal at the first token that breaks a rule of this version of the language."""
    rules.enforce(parsed)
    for parameters in parsed.parameters.values():
        for parameter, token in parameters:
            rules.check_parameter(parameter, token)
    versions.enforce(parsed, options.language_version)
