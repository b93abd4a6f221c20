"""The strict check of lbrx's kernels, for each version of the language that its devices may use."""

from __future__ import annotations

from softmetal.compiler import frontend, stages, strict
from softmetal.types import CompileOptions, Program

# From macOS 14, the oldest that lbrx supports, to macOS 26: every chip of the profiles runs these.
VERSIONS = (310, 320, 400)


def findings(source: str) -> str:
    """What the strict check says of a source; raises Refusal. Tests of kernels compile it."""
    assert "__METAL_VERSION__" not in source  # it is the same text in each version
    options = CompileOptions()
    rewritten = frontend.rewrite(stages.preprocess(source, options))
    for version in VERSIONS:
        strict.enforce(rewritten.parsed, CompileOptions(language_version=version))
    program = Program(rewritten.text, options, rewritten.functions, rewritten.constants, source)
    return strict.address_spaces(program, rewritten.parsed)
