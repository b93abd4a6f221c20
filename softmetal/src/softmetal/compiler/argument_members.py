"""The members of an argument buffer: the structure that a kernel's buffer holds, with its ids."""

from __future__ import annotations

import re
from dataclasses import dataclass

from softmetal.compiler import stages
from softmetal.compiler.indices import index_of
from softmetal.compiler.syntax import Declaration, Syntax
from softmetal.compiler.tokens import Refusal, tokenize
from softmetal.errors import ValidationError
from softmetal.types import Program

_QUALIFIERS = re.compile(r"\b(device|constant|const|volatile|struct)\b|[&*]")


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an argument buffer; an array takes an id for each element."""

    name: str
    identifier: int  # [[id(n)]], -1 if it follows the member before it
    is_pointer: bool
    is_array: bool


def members_of(program: Program, function: str, buffer: int) -> tuple[str, list[Member]]:
    """The type that a kernel's buffer points to, and its members; raises ValidationError."""
    parameters = program.functions[function].parameters
    found = [p for p in parameters if p.kind == "buffer" and p.index == buffer]
    if not found:
        raise ValidationError(
            f"kernel '{function}' has no buffer {buffer}: its buffers are "
            f"{sorted(p.index for p in parameters if p.kind == 'buffer')}"
        )
    kind = " ".join(_QUALIFIERS.sub(" ", found[0].type).split())
    source = stages.preprocess(program.source, program.options)
    syntax = Syntax(tokenize(source))
    classes = {d.name: d for d in syntax.declarations if d.kind == "class"}
    owner = classes.get(kind.replace(" ", "").partition("<")[0].rpartition("::")[2])
    if owner is None:
        raise ValidationError(
            f"buffer {buffer} of kernel '{function}' holds {kind}, which is not a structure of the "
            "library: an argument encoder is for structures"
        )
    inside = (d for d in syntax.declarations if d.owner == owner.body and d.parameters < 0)
    return kind, [_member(syntax, source, d) for d in inside if d.kind == "other"]


def _member(syntax: Syntax, source: str, member: Declaration) -> Member:
    plain = [syntax.text(i) for i in syntax.plain(member.start, member.end)]
    identifier = -1
    for attribute in syntax.attributes(member.start, member.end):
        if attribute.name == "id":
            try:
                identifier = index_of(source, attribute.arguments, "id")
            except Refusal as problem:
                raise ValidationError(problem.message) from None
    named = plain.index(member.name)
    is_array = "array" in plain[:named] or "[" in plain[named:]
    return Member(member.name, identifier, bool({"*", "&"} & set(plain)), is_array)
