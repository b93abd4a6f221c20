"""Spells a parsed source with real address spaces, for clang's C++ for OpenCL.

Code generation erases address spaces. Here they stay in the types: include/softmetal/spaces.h says
which of clang's each one is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from softmetal.compiler import directives, stages
from softmetal.compiler.frontend import Pass, float_literal
from softmetal.compiler.syntax import Declaration, Syntax
from softmetal.types import Function

SPACES = {
    "device": "SM_DEVICE",
    "threadgroup": "SM_THREADGROUP",
    "thread": "SM_THREAD",
    "constant": "SM_CONSTANT",
}
# Words that C++ for OpenCL keeps for itself.
_RESERVED = frozenset(
    "global local generic pipe kernel read_only write_only read_write uniform vec_step "
    "addrspace_cast event_t sampler_t queue_t clk_event_t reserve_id_t image1d_t image2d_t "
    "image3d_t".split()
) - {"kernel", "uniform"}
THREADGROUP_MEMORY = 32 << 10  # bytes: Apple7 to Apple10
TOO_LARGE = (
    f"threadgroup memory size exceeds the maximum threadgroup memory allowed ({THREADGROUP_MEMORY})"
)
_STORAGE = frozenset("static const constexpr volatile constant".split())
_STATEMENT_STARTS = frozenset({"{", "}", ";", ":", ")"})
_NOT_METHODS = frozenset("static_assert alignas decltype __attribute__ typedef using".split())
_ENABLED = "".join(
    f'_Pragma("OPENCL EXTENSION __cl_clang_{name} : enable") '
    for name in ("function_pointers", "bitfields", "variadic_functions")
)
_HEAD_ENDS = frozenset({"{", ";", ":", "=", "->", ""})


def respell(
    parsed: Pass,
    swapped: bool,
    limits: bool = False,
    before: Mapping[int, str] = MappingProxyType({}),
) -> str:
    """The source with address spaces, on the same lines after the first; each kernel is used.

    Member functions can name only some of clang's spaces: `swapped` says whether threadgroup is one
    of them, or device. `limits` asserts that plain kernels do not take too much threadgroup memory;
    `before` is text to put before tokens.
    """
    return _Speller(parsed, swapped, limits, before).text()


def after_template(syntax: Syntax, start: int) -> int:
    """The first token after the `template <...>` that a declaration starts with."""
    while syntax.text(start) == "template" and syntax.text(start + 1) == "<":
        start = syntax.skip_angles(start + 1)
    return start


def _deleted(space: str) -> str:
    return (
        f"= delete(\"'this' object is in address space '{space}', but method expects object in "
        "address space 'thread'\");"
    )


class _Speller:
    def __init__(
        self, parsed: Pass, swapped: bool, limits: bool, before: Mapping[int, str]
    ) -> None:
        self.before, self.limits = before, limits
        self.parsed, self.syntax = parsed, parsed.syntax
        self.swapped = swapped
        self.unnamed = "device" if swapped else "threadgroup"
        self.blanked = list(parsed.blanked)
        self.replaced = {i: t for i, t in parsed.replaced.items() if not t.startswith("SM_TG")}
        self.after: dict[int, str] = {}
        self.classes = {d.name for d in self.syntax.declarations if d.kind == "class"}
        self.spaces = self._written_spaces()
        self._constructors()
        for declaration in self.syntax.declarations:
            if self._is_constructor(declaration):
                for index in self._trailer(declaration):
                    if self.syntax.text(index) in SPACES:
                        self.replaced[index] = ""
            elif self._is_method(declaration):
                self._method(declaration)
            if declaration.kind == "function":
                self._constant_locals(declaration)
            self._function_parameters(declaration)
            self._threadgroup_variables(declaration)

    def text(self) -> str:
        text = self.parsed.edited(self.blanked, self._spell)
        uses = stages.uses(map(self._kernel, self.parsed.functions.values()))
        return f'{_ENABLED}\n{text}\n# 1 "softmetal_entries"\n{uses}'

    def _kernel(self, function: Function) -> Function:
        """A kernel whose name has the address spaces of its template's arguments."""
        if function.name not in self.parsed.instances:
            return function
        kernel, indices = self.parsed.instances[function.name]
        spelled = " ".join(map(self._word, indices))
        return replace(function, entry="::".join((*kernel.scope, spelled)))

    def _spell(self, index: int) -> str:
        return self.before.get(index, "") + self._word(index) + self.after.get(index, "")

    def _word(self, index: int) -> str:
        token = self.parsed.tokens[index]
        if index in self.replaced:
            return self.replaced[index]
        if token.kind == "number":
            return float_literal(token.text)
        if token.kind == "word":
            if token.text in SPACES:
                return SPACES[token.text]
            if token.text == "kernel":
                return ""
            if token.text in _RESERVED:
                return f"softmetal_{token.text}"
            if self.parsed.is_cast(index):
                return f"SM_CAST_{token.text}"
        if token.kind == "directive" and not token.text.startswith("# "):
            return directives.pragma(token.text)
        return token.text

    # ---- member functions ----------------------------------------------------------------------

    def _constructors(self) -> None:
        """A constructor without a space serves all: overloads in other spaces go."""
        kept = {d.start for d in self.syntax.declarations if self._is_constructor(d)}
        self.blanked += [pair for pair in self.parsed.duplicates if pair[0] in kept]

    def _is_constructor(self, declaration: Declaration) -> bool:
        if declaration.parameters < 0:
            return False
        at, depth = declaration.parameters - 1, 0
        if declaration.name == "operator":  # its `>` closes nothing
            return False
        while at > declaration.start and (self.syntax.text(at) == ">" or depth):  # `Name<T>()`
            depth += (self.syntax.text(at) == ">") - (self.syntax.text(at) == "<")
            at -= 1
        return self.syntax.text(at) in declaration.classes[-1:]

    def _is_method(self, declaration: Declaration) -> bool:
        if declaration.parameters < 0 or declaration.name in _NOT_METHODS:
            return False
        opening = declaration.parameters
        inside = declaration.classes or (
            self.syntax.text(opening - 2) == "::" and self.syntax.text(opening - 3) in self.classes
        )
        if not inside or self.syntax.text(opening - 2) == "~":
            return False
        head = {self.syntax.text(i) for i in range(declaration.start, opening)}
        if head & {"static", "friend", "typedef", "using"} - {declaration.name}:
            return False
        return declaration.name == "operator" or (
            declaration.name.isidentifier() and len(head) > 1 and declaration.name != "void"
        )

    def _trailer(self, declaration: Declaration) -> Iterator[int]:
        """The tokens between a function's parameters and its body."""
        at = self.syntax.partner[declaration.parameters] + 1
        while self.syntax.text(at) not in _HEAD_ENDS:
            yield at
            at += 1

    def _method(self, declaration: Declaration) -> None:
        trailer = list(self._trailer(declaration))
        closing = self.syntax.partner[declaration.parameters]
        written = [i for i in trailer if self.syntax.text(i) in SPACES]
        if self.syntax.text(closing + len(trailer) + 1) == "=":  # = default, = delete
            if written and self.syntax.text(declaration.end - 2) == "default":
                # What clang declares instead serves all spaces.
                self.blanked.append((declaration.start, declaration.end))
            return
        for index in written:
            if self.syntax.text(index) == self.unnamed:
                self.replaced[index] = "__generic"
        if all(self.syntax.text(index) == "thread" for index in written):
            if not written:  # a member function without a space is for objects in thread memory
                self.after[closing] = " SM_THREAD"
            if declaration.classes:
                self.after[declaration.end - 1] = self._other_spaces(declaration, trailer)

    def _other_spaces(self, declaration: Declaration, trailer: list[int]) -> str:
        """Overloads of a member function for objects in thread memory: one for temporaries, which
        have no space in clang, and deleted ones for the spaces that it is not for."""
        syntax = self.syntax
        closing = syntax.partner[declaration.parameters]
        head = " ".join(map(self._word, syntax.plain(declaration.start, closing + 1)))
        qualifiers = " ".join(self._word(i) for i in trailer if syntax.text(i) not in SPACES)
        rest = closing + len(trailer) + 1
        stop = declaration.body if declaration.kind == "function" else declaration.end - 1
        result = " ".join(map(self._word, syntax.plain(rest, stop)))
        taken = self.spaces[self._overload(declaration)]
        named, other = ("threadgroup", "device") if self.swapped else ("device", "threadgroup")
        overloads = []
        if other not in taken:
            body = self._body(declaration)
            overloads.append(f"{head} __generic {qualifiers} {result} {body}")
        if named not in taken:
            overloads.append(f"{head} __local {qualifiers} {result} {_deleted(named)}")
        if not {"constant", other} & taken:
            deleted = _deleted(f"constant' or '{other}")
            overloads.append(f"{head} __global {qualifiers} {result} {deleted}")
        return " " + " ".join(overloads)

    def _body(self, declaration: Declaration) -> str:
        """A body in one line where clang needs it: for a constant expression or a deduced type."""
        syntax = self.syntax
        words = {syntax.text(i) for i in range(declaration.start, declaration.parameters)}
        inside = range(declaration.body, declaration.end)
        directives_inside = any(syntax.tokens[i].kind == "directive" for i in inside)
        if declaration.kind != "function" or directives_inside or not words & {"constexpr", "auto"}:
            return ";"
        return " ".join(map(self._word, syntax.plain(declaration.body, declaration.end)))

    def _overload(self, declaration: Declaration) -> tuple[int, str]:
        """What overloads of a member function have in common."""
        start = declaration.parameters - 1
        while declaration.name == "operator" and self.syntax.text(start) != "operator":
            start -= 1
        name = " ".join(self.syntax.text(i) for i in range(start, declaration.parameters))
        return declaration.owner, name

    def _written_spaces(self) -> dict[tuple[int, str], set[str]]:
        found: dict[tuple[int, str], set[str]] = defaultdict(set)
        for declaration in self.syntax.declarations:
            if self._is_method(declaration):
                words = {self.syntax.text(i) for i in self._trailer(declaration)}
                found[self._overload(declaration)] |= words & SPACES.keys()
        return found

    def _function_parameters(self, declaration: Declaration) -> None:
        """`template <void (*f)(int)>`: clang takes such a parameter as `void f(int)` only."""
        at, text = declaration.start, self.syntax.text
        while text(at) == "template" and text(at + 1) == "<":
            end = self.syntax.skip_angles(at + 1)
            for index in range(at, end):
                if [text(index + n) for n in (0, 1, 3, 4)] == ["(", "*", ")", "("]:
                    self.replaced |= {index: " ", index + 1: "", index + 3: ""}
            at = end

    # ---- variables -----------------------------------------------------------------------------

    def _constant_locals(self, function: Declaration) -> None:
        """`constant T x[] = {...};` in a function is static."""
        for index in range(function.body + 1, function.end - 1):
            if self.syntax.text(index) == "constant" and self._declares_storage(index):
                first = index
                while self.syntax.text(first - 1) in _STORAGE:
                    first -= 1
                words = {self.syntax.text(i) for i in range(first, index)}
                if self.syntax.text(first - 1) in _STATEMENT_STARTS and "static" not in words:
                    self.replaced[index] = "static SM_CONSTANT"

    def _declares_storage(self, index: int) -> bool:
        at = index + 1
        while self.syntax.text(at) not in ("", ";", "[", "=", "{", ")", "(", ","):
            if self.syntax.text(at) in ("*", "&", "&&"):
                return False
            opens = self.syntax.text(at) == "<"
            at = self.syntax.skip_angles(at) if opens else at + 1
        return self.syntax.text(at) in ("[", "=", "{", ";")

    def _threadgroup_variables(self, kernel: Declaration) -> None:
        """`threadgroup T a[2], b;` becomes references, as clang has such variables in kernels that
        are not templates only. Apple's compiler leaves their size to the pipeline: libraries have
        instances of templates that take too much beside those that are used. A plain kernel that
        does is a mistake."""
        is_limited = self.limits and self.syntax.text(kernel.start) != "template"
        blocks: list[int] = []  # "{" around the current token
        totals: list[tuple[int, str]] = []  # ("{" of a declaration, what it and those before take)
        for index in range(kernel.body, kernel.end):
            text = self.syntax.text(index)
            if text == "{":
                blocks.append(index)
            elif text == "}" and blocks:
                closed = blocks.pop()
                totals = [total for total in totals if total[0] != closed]
            elif self.parsed.replaced.get(index, "").startswith("SM_TG"):
                references, sizes = self._references(index)
                self.replaced[index] = "; ".join(references)
                if not is_limited:
                    continue
                name = f"softmetal_total{index}"
                sizes += [totals[-1][1]] if totals else []
                total = f"constexpr unsigned long {name} = {' + '.join(sizes)}"
                limit = f'static_assert({name} <= {THREADGROUP_MEMORY}, "{TOO_LARGE}")'
                totals.append((blocks[-1], name))
                self.replaced[index] += f"; {total}; {limit}"

    def _references(self, index: int) -> tuple[list[str], list[str]]:
        """The references that a declaration becomes, and the sizes of its variables."""
        syntax = self.syntax
        end = next(i for i in range(index, len(syntax.tokens)) if syntax.text(i) == ";")
        kind, references, sizes = "", list[str](), list[str]()
        for first, last in syntax.split_commas(index + 1, end):
            stop = next((i for i in range(first, last) if syntax.text(i) == "["), last)
            if not kind:
                kind = " ".join(self._word(i) for i in syntax.plain(first, stop - 1))
            variable = kind + "".join(f" {self._word(i)}" for i in range(stop, last))
            references.append(
                f"auto &{syntax.text(stop - 1)} = ::softmetal::threadgroup_variable<{variable}>()"
            )
            sizes.append(f"sizeof({variable})")
        first = index
        while syntax.text(first - 1) in ("const", "volatile", "static"):
            first -= 1
        self.blanked += [(first, index), (index + 1, end)]
        return references, sizes
