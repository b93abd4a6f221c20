"""What softmetal refuses, in words a user understands: one table, used before and after clang."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from softmetal.compiler.syntax import Declaration, Syntax
from softmetal.compiler.tokens import Refusal, Token

_STAGES = {
    "vertex": "vertex functions are",
    "fragment": "fragment functions are",
    "mesh": "mesh functions are",
    "object": "object functions are",
    "intersection": "intersection functions are",
}
# Attributes of parameters that only functions of other stages have, or textures.
OF_OTHER_STAGES = frozenset({"stage_in", "texture", "sampler", "payload", "imageblock_data"})
_KEYWORDS = frozenset({"vertex", "fragment"})  # the others are attributes only
_TEXTURE_TYPE = re.compile(r"(texture|depth)(1d|2d|3d|cube|_buffer)(_ms)?(_array)?|sampler")
# Pattern of a word -> the construct it belongs to.
_CONSTRUCTS = [
    (r"(texture|depth)(1d|2d|3d|cube|_buffer)?\w*", "textures are"),
    (r"sampler|(mag|min|mip)_filter|compare_func|address", "textures and samplers are"),
    (r"imageblock\w*|threadgroup_imageblock", "imageblocks are"),
    (r"(instance_|primitive_)?acceleration_structure|intersector|intersection_\w+|ray(_data|tracing)?"
     r"|curve_data|triangle_data", "ray tracing is"),
    (r"visible_function_table", "function tables are"),
    (r"tensor\w*|cooperative_tensor|mpp|matmul2d\w*|MetalPerformancePrimitives",
     "the tensor API is"),
    (r"render_\w+|command_buffer|compute_command|patch_control_point|mesh_grid_properties"
     r"|object_data", "commands encoded on the GPU and render stages are"),
]  # fmt: skip


def other_stage(syntax: Syntax, function: Declaration) -> Refusal | None:
    """Why a function of a stage other than compute is left out, None for the others."""
    head = range(function.start, function.parameters)
    attributes = {a.name for a in syntax.attributes(function.start, function.parameters)}
    for index in head:
        stage = syntax.text(index)
        keyword = stage in _KEYWORDS and syntax.tokens[index + 1].kind == "word"
        if stage in _STAGES and (keyword or stage in attributes):
            why = f"{_STAGES[stage]} not supported by softmetal: it runs kernels"
            return Refusal(syntax.tokens[index], why)
    return None


def about_textures(syntax: Syntax, declaration: Declaration) -> Refusal | None:
    """Why a function that takes textures, or a sampler, is left out; None for the others."""
    for token, following in pairwise(syntax.tokens[declaration.start : declaration.body]):
        named = following.kind == "word" or following.text == "<"
        if _TEXTURE_TYPE.fullmatch(token.text) and named:
            return Refusal(token, "textures and samplers are not supported by softmetal")
    return None


def refuse_parameters(tokens: Sequence[Token], kernel: Declaration) -> None:
    """Refuse kernel parameters of types that softmetal lacks."""
    for token, following in pairwise(tokens[kernel.start : kernel.body]):
        construct = construct_of(token.text)
        if construct and (following.text == "<" or following.kind == "word"):
            raise Refusal(token, f"{construct} not supported by softmetal: '{token.text}'")


def construct_of(word: str) -> str:
    """The unsupported construct that an unknown name belongs to, with its verb; empty if none."""
    for pattern, construct in _CONSTRUCTS:
        if re.fullmatch(pattern, word):
            return construct
    return ""
