"""Rules of Metal that only the strict check enforces, read off the tokens of a source.

`compiler/rules.py` has those that are always enforced. The messages are Apple's where those are
known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from softmetal.compiler.arithmetic import evaluate
from softmetal.compiler.frontend import Pass
from softmetal.compiler.rules import BUILTIN_TYPE, SPACES, missing_space
from softmetal.compiler.strict.spelling import after_template
from softmetal.compiler.syntax import Declaration, Syntax
from softmetal.compiler.tokens import Refusal, Token
from softmetal.types import MAX_THREADS, Parameter

_NOT_DECLARED = frozenset(
    "using typedef template friend static_assert namespace enum struct class union return".split()
)
_SCALAR_BUILTINS = frozenset(
    "thread_index_in_threadgroup thread_index_in_simdgroup simdgroup_index_in_threadgroup "
    "simdgroups_per_threadgroup dispatch_simdgroups_per_threadgroup thread_index_in_quadgroup "
    "quadgroup_index_in_threadgroup quadgroups_per_threadgroup threads_per_simdgroup "
    "dispatch_quadgroups_per_threadgroup thread_execution_width".split()
)
_POSITIONS = frozenset(
    "thread_position_in_grid thread_position_in_threadgroup threadgroup_position_in_grid "
    "threads_per_grid threads_per_threadgroup threadgroups_per_grid "
    "dispatch_threads_per_threadgroup".split()
)
_POSITION = re.compile(r"u(?:int|short)([23]?)")
_VECTOR = re.compile(r"(?:bool|u?(?:char|short|int|long)|half|float|bfloat)[234]")
# Types and keywords of Metal that C++ would take for the name of a variable.
_RESERVED = frozenset({"half", "bfloat", "vertex", "fragment", "kernel"})
_VECTOR_ATTRIBUTES = frozenset({"ext_vector_type", "__ext_vector_type__", "vector_size"})
_DECLARATORS = frozenset({"=", ";", ",", "[", "(", "{", ")"})


def enforce(parsed: Pass) -> None:
    """Raise Refusal at the first token that breaks a rule."""
    syntax = parsed.syntax
    _tokens(syntax)
    _variadic(syntax)
    _program_scope(syntax)
    _Pointers(syntax).check()
    for kernels in parsed.kernels.values():
        for kernel in kernels:
            _kernel(syntax, kernel)
    _calls_of_kernels(parsed)
    for parameters in parsed.parameters.values():
        _positions(parameters)


# ---- words --------------------------------------------------------------------------------------


def _tokens(syntax: Syntax) -> None:
    allowed = _template_headers(syntax) | _parameter_lists(syntax)
    for index, token in enumerate(syntax.tokens):
        following = syntax.text(index + 1)
        if token.text == "long" and following in ("long", "double"):
            raise Refusal(token, f"'long {following}' is not supported in Metal")
        if token.text == "register" and token.kind == "word":
            raise Refusal(token, "Metal does not support the 'register' storage class specifier")
        if token.text in _VECTOR_ATTRIBUTES:
            _vector(syntax, index)
        is_named = token.text in _RESERVED and following in ("=", ";", ",", "[", ")")
        if is_named and BUILTIN_TYPE.fullmatch(syntax.text(index - 1)):
            raise Refusal(token, f"'{token.text}' cannot be a name: Metal has it as a keyword")
        if token.text == "(" and index not in allowed and _is_function_pointer(syntax, index):
            raise Refusal(syntax.tokens[index + 1], "pointers to functions are not allowed")


def _variadic(syntax: Syntax) -> None:
    """`f(int n, ...)`; in an expression `(g(a), ...)` folds a parameter pack."""
    for declaration in syntax.declarations:
        end = syntax.partner.get(declaration.parameters, 0)
        before, *dots = (syntax.text(end - n) for n in (4, 3, 2, 1))
        if before in (",", "(") and dots == [".", ".", "."]:
            raise Refusal(syntax.tokens[end - 3], "variadic functions are not supported in Metal")


def _vector(syntax: Syntax, index: int) -> None:
    closing = syntax.partner.get(index + 1, index + 1)
    size = evaluate(syntax.text(i) for i in range(index + 2, closing))
    if syntax.text(index) == "vector_size" or size not in (2, 3, 4):
        raise Refusal(
            syntax.tokens[index], "vectors of other than 2, 3 or 4 elements are not supported in "
            "Metal: use an array"
        )  # fmt: skip


def _template_headers(syntax: Syntax) -> set[int]:
    """Tokens between the angles of `template <...>`, and those of explicit instantiations."""
    found: set[int] = set()
    for index, token in enumerate(syntax.tokens):
        if token.text == "template" and syntax.text(index + 1) == "<":
            found.update(range(index, syntax.skip_angles(index + 1)))
    return found


def _parameter_lists(syntax: Syntax) -> set[int]:
    """Tokens of the parameters of functions, which may be functions: PyTorch's kernels do that."""
    found: set[int] = set()
    for declaration in syntax.declarations:
        if declaration.parameters in syntax.partner:
            opening = declaration.parameters
            found.update(range(opening + 1, syntax.partner[opening]))
    return found


def _is_function_pointer(syntax: Syntax, index: int) -> bool:
    """`T (*name)(...)` that declares a variable or member."""
    if syntax.text(index + 1) != "*":
        return False
    named = syntax.text(index + 2).isidentifier()
    closing = index + 2 + named
    before = syntax.tokens[index - 1] if index else None
    if syntax.text(closing) != ")" or syntax.text(closing + 1) != "(" or before is None:
        return False
    return (
        named
        and (before.kind == "word" or before.text in (">", "*", "&"))
        and (before.text not in ("return", "sizeof", "case") and _in_declaration(syntax, index))
    )


def _in_declaration(syntax: Syntax, index: int) -> bool:
    """Whether the statement that a token is in starts with a type; typedefs declare no pointer."""
    at = index
    while at > 0 and syntax.text(at - 1) not in (";", "{", "}", "(", ",", ")"):
        at -= 1
    first = syntax.text(at)
    return first not in ("typedef", "using") and syntax.tokens[at].kind == "word" and at != index


# ---- variables ----------------------------------------------------------------------------------


def _program_scope(syntax: Syntax) -> None:
    class_ends = {
        syntax.partner[d.body]
        for d in syntax.declarations
        if d.kind == "class" and d.body in syntax.partner
    }
    for declaration in syntax.declarations:
        if declaration.kind == "function":
            _static_locals(syntax, declaration)
            _vector_elements(syntax, declaration)
        elif (
            declaration.kind == "other"
            and declaration.parameters < 0
            and (
                declaration.start - 1 not in class_ends  # the name behind a typedef's struct
            )
        ):
            _stored(syntax, declaration)


def _stored(syntax: Syntax, declaration: Declaration) -> None:
    """Variables at program scope and static members are constant, and have a value."""
    start = after_template(syntax, declaration.start)
    plain = syntax.plain(start, declaration.end)
    texts = [syntax.text(i) for i in plain]
    stop = next((n for n, t in enumerate(texts) if t in ("=", "[", "{", ";", "(")), len(texts))
    head = texts[:stop]
    words = [t for t in head if t.isidentifier()]
    if len(words) < 2 or words[0] in _NOT_DECLARED or (head and head[-1] in ("*", "&")):
        return
    if declaration.classes and "static" not in words:
        return
    if not {"const", "constexpr", "static", "extern", "constant"} & set(words):
        return
    names = {a.name for a in syntax.attributes(declaration.start, declaration.end)}
    place = syntax.tokens[plain[stop - 1]]
    if "constant" not in words or _is_pointer_itself(head):
        scope = "extern" if "extern" in words else "program scope"
        raise Refusal(place, f"{scope} variable must reside in constant address space")
    initialised = "=" in texts or "{" in texts or "(" in texts
    if not initialised and "extern" not in words and "function_constant" not in names:
        raise Refusal(place, "variable in constant address space must be initialized")


def _is_pointer_itself(head: list[str]) -> bool:
    """`constant float* p` is not in constant memory, `constant float* constant p` is."""
    if "*" not in head:
        return False
    last = len(head) - 1 - head[::-1].index("*")
    return "constant" not in head[last:]


def _static_locals(syntax: Syntax, function: Declaration) -> None:
    for index in range(function.body + 1, function.end - 1):
        if syntax.text(index) != "static" or syntax.text(index - 1) not in "{};":
            continue
        words: list[str] = []
        while syntax.text(index + len(words)) not in ("=", ";", "{", "[", "(", ""):
            words.append(syntax.text(index + len(words)))
        if syntax.text(index + len(words)) != "(" and not {"constant", "threadgroup"} & set(words):
            raise Refusal(
                syntax.tokens[index], "static local variable must reside in constant address space"
            )


def _vector_elements(syntax: Syntax, function: Declaration) -> None:
    """Elements of vectors that the function declares have no address, as in clang's own vectors."""
    within = range(function.parameters + 1, function.end - 1)
    vectors = {
        syntax.text(index + 1 + (syntax.text(index + 1) == "&"))
        for index in within
        if _VECTOR.fullmatch(syntax.text(index))
    }
    for index in within:
        ampersand, name, dot, element, following = map(syntax.text, range(index, index + 5))
        is_address = ampersand == "&" and syntax.text(index - 1) in ("=", "(", ",", "return", "{")
        is_element = dot == "." and re.fullmatch("[xyzwrgba]", element) and following not in ".[("
        if is_address and is_element and name in vectors:
            raise Refusal(syntax.tokens[index], "address of vector element requested")


# ---- pointers without an address space -----------------------------------------------------------


class _Pointers:
    """Pointers and references to types that this source or Metal declares."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        self.dependent = {"auto", "decltype", "typename", "this"}
        self.known: set[str] = set()
        for declaration in syntax.declarations:
            self._learn(declaration)
        self.known -= self.dependent

    def _learn(self, declaration: Declaration) -> None:
        syntax = self.syntax
        at = declaration.start
        while syntax.text(at) == "template" and syntax.text(at + 1) == "<":
            end = syntax.skip_angles(at + 1)
            for first, last in syntax.split_commas(at + 2, end - 1):
                stop = next((i for i in range(first, last) if syntax.text(i) == "="), last)
                self.dependent.add(syntax.text(stop - 1))
            at = end
        words = {syntax.text(i) for i in range(at, declaration.body)}
        alias = bool(words & {"typedef", "using"})
        if declaration.kind == "class" or (alias and not words & SPACES):
            self.known.add(declaration.name)
        elif alias:
            self.dependent.add(declaration.name)  # its type may have a space

    def check(self) -> None:
        for declaration in self.syntax.declarations:
            if declaration.name == "static_assert" or self._is_instantiation(declaration):
                continue
            if declaration.parameters >= 0:
                self._function(declaration)
            elif declaration.kind == "other":
                start = after_template(self.syntax, declaration.start)
                self._at(start + {"typedef": 1, "using": 3}.get(self.syntax.text(start), 0))
            if declaration.kind == "function":
                self._body(declaration)

    def _is_instantiation(self, declaration: Declaration) -> bool:
        start = declaration.start
        return self.syntax.text(start) == "template" and self.syntax.text(start + 1) != "<"

    def _function(self, declaration: Declaration) -> None:
        opening = declaration.parameters
        start = after_template(self.syntax, declaration.start)
        self._type(self.syntax.plain(start, opening - 1))
        for first, last in self.syntax.split_commas(opening + 1, self.syntax.partner[opening]):
            plain = self.syntax.plain(first, last)
            # Without a body it may be a variable with its arguments: `constant A a(b * c);`
            words = [w for w in map(self.syntax.text, plain) if w not in ("const", "volatile")]
            if declaration.kind == "function" or self._is_type(words[0] if words else ""):
                self._type(plain)

    def _body(self, function: Declaration) -> None:
        for index in range(function.body + 1, function.end - 1):
            if self.syntax.text(index - 1) in ("{", "}", ";", "("):
                self._at(index)

    def _at(self, start: int) -> None:
        """A declaration, cast or condition that starts with a type."""
        at, text = start, self.syntax.text
        while text(at) in ("const", "volatile", "static", "constexpr", "mutable"):
            at += 1
        if not self._is_type(text(at)):
            return
        kind, at = at, at + 1
        if text(at) == "<":
            at = self.syntax.skip_angles(at)
        while text(at) in ("const", "volatile"):
            at += 1
        if text(at) not in ("*", "&") or self._unknown(range(kind, at)):
            return
        behind = at + 1
        while text(behind) in ("const", "volatile", "*"):
            behind += 1
        cast = text(start - 1) == "(" and text(behind) == ")"
        alias = text(start - 1) == "=" and text(behind) == ";"
        named = text(behind).isidentifier() and text(behind + 1) in _DECLARATORS
        if text(start - 1) == "(":  # `(a * b)` multiplies, even if a type has the name `a` too
            named = named and text(start - 2) in ("for", "if", "while", "switch")
        if cast or alias or (named and not SPACES & {text(i) for i in range(at, behind + 1)}):
            raise missing_space(self.syntax.tokens[at])

    def _type(self, plain: list[int]) -> None:
        """The type and name of a parameter, or a function's result."""
        texts = [self.syntax.text(i) for i in plain]
        stop = next(
            (n for n, t in enumerate(texts) if t in ("=", "(", "operator", ":")), len(texts)
        )
        place = next((n for n in range(stop) if texts[n] in ("*", "&")), -1)
        if place <= 0 or SPACES & set(texts[:stop]) or self._unknown(plain[:place]):
            return
        if texts[place] == "&" and texts[place + 1 : place + 2] == ["&"]:
            return
        raise missing_space(self.syntax.tokens[plain[place]])

    def _is_type(self, word: str) -> bool:
        return word in self.known or BUILTIN_TYPE.fullmatch(word) is not None

    def _unknown(self, indices: Iterable[int]) -> bool:
        """Whether the space may be in a template's argument or an alias."""
        return bool({self.syntax.text(i) for i in indices} & self.dependent)


# ---- kernels ------------------------------------------------------------------------------------


def _kernel(syntax: Syntax, kernel: Declaration) -> None:
    for attribute in syntax.attributes(kernel.start, kernel.body):
        if attribute.name == "max_total_threads_per_threadgroup":
            threads = evaluate(t.text for t in attribute.arguments)
            if threads is not None and not 1 <= threads <= MAX_THREADS:
                raise Refusal(
                    attribute.arguments[0],
                    "'max_total_threads_per_threadgroup' attribute parameter is out of bounds: "
                    f"must be between 1 and {MAX_THREADS}",
                )
    if kernel.classes:
        raise Refusal(
            syntax.tokens[kernel.parameters - 1], "a kernel function cannot be a member function"
        )

    for attribute in syntax.attributes(syntax.partner[kernel.parameters], kernel.body):
        raise Refusal(
            syntax.tokens[syntax.partner[kernel.parameters]],
            f"'{attribute.name}' attribute cannot be applied to types: write it before 'kernel'",
        )


def _calls_of_kernels(parsed: Pass) -> None:
    """No function calls a kernel. A name that a function has too may mean that one."""
    syntax = parsed.syntax
    starts = {kernel.start for kernels in parsed.kernels.values() for kernel in kernels}
    functions = [each for each in syntax.declarations if each.kind == "function"]
    kernels = parsed.kernels.keys() - {each.name for each in functions if each.start not in starts}
    for function in functions:
        for index in range(function.body + 1, function.end - 1):
            name = syntax.text(index)
            if name in kernels and _is_call_of_kernel(syntax, index, function):
                raise Refusal(
                    syntax.tokens[index],
                    f"a kernel function cannot be called: move the body of '{name}' to a function "
                    "that both call",
                )


def _is_call_of_kernel(syntax: Syntax, index: int, function: Declaration) -> bool:
    """Whether a name begins a statement, as the call of a kernel does, which has no value. A
    function may declare something else by that name."""
    begins = syntax.text(index - 1) in ("{", "}", ";", ")", "else", "::")
    if not begins or syntax.text(index + 1) != "(":
        return False
    within = range(function.parameters + 1, function.end - 1)
    return not any(
        syntax.text(at) == syntax.text(index) and syntax.tokens[at - 1].kind == "word"
        for at in within
        if syntax.text(at - 1) != "else"
    )


def _positions(parameters: list[tuple[Parameter, Token]]) -> None:
    """Positions and sizes in the grid have one number of components. Their types may differ."""
    first: tuple[Parameter, int] | None = None
    for parameter, token in parameters:
        found = _POSITION.fullmatch(parameter.type.replace("const", "").strip())
        if parameter.kind not in _POSITIONS or found is None or parameter.condition:
            continue
        components = int(found[1] or 1)
        if first is None:
            first = parameter, components
        elif components != first[1]:
            raise Refusal(
                token,
                f"'{parameter.name}' has the type '{parameter.type}' and '{first[0].name}' "
                f"'{first[0].type}': positions and sizes in the grid must be all scalars or all "
                "vectors with the same number of elements",
            )


def check_parameter(parameter: Parameter, token: Token) -> None:
    """The address space and type of a kernel's parameter fit its attribute."""
    words = [w for w in parameter.type.split() if w not in ("const", "volatile")]
    pointer = "*" in words or "&" in words
    spaces = SPACES & set(words)
    if parameter.kind in ("buffer", "threadgroup") and pointer:
        allowed = {"device", "constant"} if parameter.kind == "buffer" else {"threadgroup"}
        if spaces and not spaces <= allowed:
            pointee = next(w for w in words if w not in SPACES)
            raise Refusal(
                token,
                f"invalid address space qualification for {parameter.kind} pointee type "
                f"'{pointee}': valid address space qualifications are "
                f"{' and '.join(sorted(allowed, reverse=True))}",
            )
    elif parameter.kind not in ("buffer", "threadgroup"):
        vector = len(words) == 1 and re.fullmatch(r"u(int|short)[23]", words[0])
        if pointer or spaces - {"thread"} or (vector and parameter.kind in _SCALAR_BUILTINS):
            spelled = " ".join(words)
            raise Refusal(token, f"type '{spelled}' is not valid for attribute '{parameter.kind}'")
