"""What softmetal refuses, in words a user understands: one table, used before and after clang."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from softmetal.compiler.syntax import Declaration
from softmetal.compiler.tokens import Refusal, Token

_STAGES = {
    "vertex": "vertex functions are",
    "fragment": "fragment functions are",
    "mesh": "mesh functions are",
    "object": "object functions are",
    "visible": "visible functions are",
    "intersection": "intersection functions are",
    "stitchable": "stitchable functions are",
}
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


def refuse_kernel(tokens: Sequence[Token], function: Declaration) -> None:
    """Refuse functions of other stages, and kernel parameters of types we lack."""
    head = tokens[function.start : function.body]
    for token, following in pairwise(head):
        if token.text in _STAGES and (following.kind == "word" or following.text == "]"):
            raise Refusal(
                token, f"{_STAGES[token.text]} not supported by softmetal: it runs kernels"
            )
    if any(token.text == "kernel" for token in head):
        for token, following in pairwise(head):
            construct = construct_of(token.text)
            if construct and (following.text == "<" or following.kind == "word"):
                raise Refusal(token, f"{construct} not supported by softmetal: '{token.text}'")


def construct_of(word: str) -> str:
    """The unsupported construct that an unknown name belongs to, with its verb; empty if none."""
    for pattern, construct in _CONSTRUCTS:
        if re.fullmatch(pattern, word):
            return construct
    return ""
