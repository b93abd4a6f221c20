"""Lists of fewer values than the vector has that they initialise: `uint4 v = {a, b, c};`

In Metal the rest is 0. A constructor of C++ would also take `uint4(a, b, c)`, which Metal does not.
"""

from __future__ import annotations

import re

from softmetal.compiler.syntax import Syntax

_VECTOR = re.compile(r"(?:bool|u?(?:char|short|int|long)|half|float|bfloat)([34])")


def calls(syntax: Syntax) -> dict[int, str]:
    """What becomes of the braces of such lists, by the index of their tokens: a call of a function
    that knows how many values there are."""
    found: dict[int, str] = {}
    for index, token in enumerate(syntax.tokens[:-3]):
        vector = _VECTOR.fullmatch(token.text)
        opening = index + 3
        if not vector or syntax.text(index + 2) != "=" or syntax.text(opening) != "{":
            continue
        closing = syntax.partner.get(opening, opening)
        values = len(list(syntax.split_commas(opening + 1, closing)))
        if 2 <= values < int(vector[1]) and syntax.text(closing - 1) != ",":
            found |= {opening: f"::softmetal::listed<{token.text}>(", closing: ")"}
    return found
