"""The token pass: turns preprocessed MSL into C++ for clang, and finds the library's contents.

Clang knows neither Metal's attributes nor its address spaces, so both are read here and erased;
lines stay where the user wrote them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from softmetal.compiler import directives, rules, swizzles, vector_lists
from softmetal.compiler.indices import index_of, value_of
from softmetal.compiler.rules import SPACES
from softmetal.compiler.syntax import Declaration, Syntax
from softmetal.compiler.tokens import Refusal, Token, apply_edits, blank, tokenize
from softmetal.compiler.unsupported import (
    OF_OTHER_STAGES,
    about_textures,
    other_stage,
    refuse_parameters,
)
from softmetal.types import Function, FunctionConstant, Mode, Parameter

ERASED = frozenset({"device", "thread", "threadgroup", "kernel"})
_STORAGE = ("constant", "const", "static", "constexpr")
_STATEMENT_STARTS = frozenset({"{", "}", ";", ":"})
_FLOAT = re.compile(
    r"(?P<digits>(?:\d[\d']*\.[\d']*|\.\d[\d']*)(?:[eE][+-]?\d+)?|\d[\d']*[eE][+-]?\d+"
    r"|0[xX][\da-fA-F'.]+[pP][+-]?\d+|\d[\d']*(?=[hH]$|[bB][fF]$))(?P<suffix>[hH]|[bB][fF]|[fF])?$"
)
_SUFFIXES = {"": "f", "f": "f", "h": "f16"}
_WORD = re.compile(r"\w+")
_SCALAR = re.compile(r"bool|u?(char|short|int|long)|unsigned|float|half|bfloat|size_t|u?int\d+_t")
# Functions that make threads wait for each other: a kernel that reaches one needs fibers.
_COOPERATION = re.compile(
    r"(threadgroup_barrier|(__metal_)?simdgroup_(barrier|matrix|load|store|multiply\w*|\w+8x8"
    r"|async_copy|event)|make_\w+_simdgroup_matrix|simd_vote|quad_vote|(__metal_)?(simd|quad)_"
    r"(sum|product|minimum|maximum|min|max|and|or|xor|all|any|ballot|is_first"
    r"|prefix_\w+|broadcast\w*|shuffle\w*|active_threads_mask|is_helper_thread))$"
)
_ALIGNING = ("alignas", "__attribute__")

# Builtins that a loop over the grid can supply without knowing the threadgroup.
_FLAT_BUILTINS = frozenset(
    "thread_position_in_grid threads_per_grid grid_size grid_origin threadgroups_per_grid "
    "dispatch_threads_per_threadgroup threads_per_simdgroup thread_execution_width".split()
)
BUILTINS = _FLAT_BUILTINS | frozenset(
    "thread_position_in_threadgroup threadgroup_position_in_grid threads_per_threadgroup "
    "thread_index_in_threadgroup thread_index_in_simdgroup simdgroup_index_in_threadgroup "
    "simdgroups_per_threadgroup dispatch_simdgroups_per_threadgroup thread_index_in_quadgroup "
    "quadgroup_index_in_threadgroup quadgroups_per_threadgroup "
    "dispatch_quadgroups_per_threadgroup".split()
)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of the pass."""

    text: str
    functions: dict[str, Function]
    constants: tuple[FunctionConstant, ...]
    suspects: dict[str, Token]  # functions that may be recursive, by name
    parsed: Pass  # what the strict check spells differently


@dataclass(frozen=True, slots=True)
class Reached:
    """The words that a word may lead to, and whether one of them makes threads wait."""

    words: set[str]
    cooperates: bool


def rewrite(text: str) -> Rewritten:
    """Run the token pass over preprocessed text; raises Refusal with the token in question."""
    return Pass(text).run()


class Pass:
    """The tokens of a source, and what becomes of them."""

    def __init__(self, text: str) -> None:
        self.source = text
        self.tokens = tokenize(text)
        self.syntax = Syntax(self.tokens)
        self.blanked: list[tuple[int, int]] = []  # token ranges to remove
        self.duplicates: list[tuple[int, int]] = []  # and those of overloads that become the same
        # Of each name with several bodies: the definitions that have a body in common.
        self.overloads: list[list[list[Declaration]]] = []
        self.replaced: dict[int, str] = {}  # token index -> text
        self.constants: list[FunctionConstant] = []
        self.optional = self._optional()
        self.kernels: dict[str, list[Declaration]] = {}  # templates may be overloaded
        self.left_out = self._other_stages()
        self.ignored: list[Refusal] = []  # attributes that mean nothing
        self.shared_constants: set[int] = set()  # the word `constant` of those that others use
        self.functions: dict[str, Function] = {}
        self.heads: dict[int, tuple[tuple[Parameter, ...], int]] = {}  # by a kernel's start
        self.reached: dict[str, Reached] = {}  # by the word it is reached from
        self.callees: dict[str, set[str]] = defaultdict(set)
        self.parameters: dict[int, list[tuple[Parameter, Token]]] = {}  # by a kernel's start
        self.instances: dict[str, tuple[Declaration, list[int]]] = {}  # tokens that name a kernel

    def run(self) -> Rewritten:
        directives.enforce(self.syntax)
        rules.enforce(self.syntax)
        self._drop_duplicates()
        self._collect_callees()
        for declaration in self.syntax.declarations:
            self._constructor_qualifiers(declaration)
        for declaration in self.syntax.declarations:
            self._read(declaration)
        self._leave_out_textures()
        self._threadgroup_variables()
        self._shared_constants()
        for index in rules.static_locals(self.syntax):
            self.replaced[index] = "static __attribute__((require_constant_initialization))"
        for index in swizzles.operands(self.syntax):
            self.replaced[index] = self.tokens[index].text + swizzles.VALUE
        self.replaced |= vector_lists.calls(self.syntax)
        if self.left_out and not self.functions:
            raise next(iter(self.left_out.values()))
        suspects = rules.recursion_suspects(self.syntax)
        text = self.edited([*self.blanked, *self.duplicates], self._cpp)
        return Rewritten(text, self.functions, tuple(self.constants), suspects, self)

    # DEVIATION: functions of other stages than compute, and functions of textures and samplers that
    # no kernel uses, are left out of a library that has kernels, with a warning, and are not
    # checked. A library of nothing else is refused.
    def _other_stages(self) -> dict[int, Refusal]:
        """Why declarations are left out, by their first tokens."""
        found = ((d.start, other_stage(self.syntax, d)) for d in self.syntax.declarations)
        return {start: refusal for start, refusal in found if refusal is not None}

    def _leave_out_textures(self) -> None:
        reached = self._reach(w for f in self.functions.values() for w in _WORD.findall(f.entry))
        for declaration in self.syntax.declarations:
            if declaration.start in self.left_out or declaration.name in reached:
                continue
            refusal = about_textures(self.syntax, declaration)
            if refusal is not None and not declaration.classes:
                self.left_out[declaration.start] = refusal
                self.blanked.append((declaration.start, declaration.end))

    # ---- declarations --------------------------------------------------------------------------

    def _drop_duplicates(self) -> None:
        """Overloads on address spaces alone become one definition; the first stays."""
        seen: dict[tuple[str, ...], list[Declaration]] = {}
        for declaration in self._definitions():
            others = seen.setdefault(self.syntax.signature(declaration, ERASED), [])
            if others and not self._is_redefinition(declaration, others):
                extra = 1 if self.syntax.text(declaration.end) == ";" else 0
                self.duplicates.append((declaration.start, declaration.end + extra))
            others.append(declaration)
        for others in seen.values():
            self._group_by_body(others)

    # DEVIATION: operators and conversions that differ in address spaces only, yet have different
    # bodies, are refused: address spaces are erased, and these cannot have other names.
    def _group_by_body(self, overloads: list[Declaration]) -> None:
        """Notes overloads that must stay different functions."""
        if len(overloads) < 2 or overloads[0].kind != "function":
            return
        bodies: dict[tuple[str, ...], list[Declaration]] = {}
        for declaration in overloads:
            bodies.setdefault(self.syntax.body(declaration, ERASED), []).append(declaration)
        if len(bodies) < 2 or self._is_redefinition(overloads[-1], overloads[:-1]):
            return
        last = next(iter(reversed(bodies.values())))[0]
        if last.name == "operator" or last.name in last.classes[-1:]:
            raise Refusal(
                self.tokens[last.parameters - 1],
                f"overloads of '{last.name}' that differ in address spaces only, yet have "
                "different bodies, are not supported by softmetal: it erases address spaces",
            )
        self.overloads.append(list(bodies.values()))

    def _definitions(self) -> Iterator[Declaration]:
        """Functions, specialised classes, and functions that a class declares or defaults."""
        for declaration in self.syntax.declarations:
            specialised = declaration.kind == "class" and "<" in (
                self.syntax.text(i) for i in range(declaration.start, declaration.body)
            )
            declared = declaration.classes and declaration.parameters >= 0
            if declaration.kind == "function" or specialised or declared:
                yield declaration

    def _is_redefinition(self, declaration: Declaration, others: list[Declaration]) -> bool:
        """Identical definitions are left to clang, which reports the redefinition."""
        if declaration.classes:  # a constructor's own address space is not in its signature
            return False
        spelled = self.syntax.signature(declaration, frozenset())
        return any(self.syntax.signature(other, frozenset()) == spelled for other in others)

    def _constructor_qualifiers(self, declaration: Declaration) -> None:
        """`Name() constant {`: a constructor cannot be const in C++."""
        if declaration.kind != "function" or declaration.name not in declaration.classes[-1:]:
            return
        for index in range(self.syntax.partner[declaration.parameters], declaration.body):
            if self.syntax.text(index) == "constant":
                self.replaced[index] = "        "

    def _collect_callees(self) -> None:
        """The words that each name may stand for. A class stands for what it declares, but not for
        the bodies of member functions that can only be called by their names."""
        members = [d for d in self.syntax.declarations if d.classes and d.kind == "function"]
        named = {d.start: d for d in members if self._is_called_by_name(d)}
        apart = {index for d in named.values() for index in range(d.start, d.end)}
        for declaration in self.syntax.declarations:
            if self._is_instantiation(declaration):
                continue
            own = declaration.start in named
            words = {
                self.tokens[index].text
                for index in range(declaration.start, declaration.end)
                if self.tokens[index].kind == "word" and (own or index not in apart)
            }
            names = (declaration.name,) if own else declaration.classes
            for name in names or (declaration.name,):
                self.callees[name] |= words
            if declaration.kind != "function":
                self.callees[declaration.name] |= words

    def _is_called_by_name(self, member: Declaration) -> bool:
        """Whether a member function is neither a constructor, a destructor, an operator, a
        conversion, nor what a loop over a range calls."""
        head = {self.syntax.text(i) for i in range(member.start, member.parameters)}
        return member.name not in {*member.classes, "begin", "end"} and "operator" not in head

    def _read(self, declaration: Declaration) -> None:
        syntax = self.syntax
        attributes = syntax.attributes(declaration.start, declaration.body)
        names = {attribute.name for attribute in attributes}
        head = {syntax.text(i) for i in range(declaration.start, declaration.body)}
        if declaration.start in self.left_out:
            self.blanked.append((declaration.start, declaration.end))
        elif "function_constant" in names and declaration.parameters < 0:
            self._read_constant(declaration)
        elif self._is_instantiation(declaration):
            if "kernel" in head or "host_name" in names:
                self._read_instantiation(declaration)
        elif declaration.kind == "function" and ("kernel" in head or "kernel" in names):
            refuse_parameters(self.tokens, declaration)
            self._read_kernel(declaration)

    def _is_instantiation(self, declaration: Declaration) -> bool:
        start = declaration.start
        return self.syntax.text(start) == "template" and self.syntax.text(start + 1) != "<"

    def _read_constant(self, declaration: Declaration) -> None:
        syntax = self.syntax
        plain = syntax.plain(declaration.start, declaration.end - 1)
        name = declaration.name
        words = [syntax.text(i) for i in plain if syntax.text(i) not in (*_STORAGE, name)]
        (argument,) = (
            a.arguments
            for a in syntax.attributes(declaration.start, declaration.end)
            if a.name == "function_constant"
        )
        index = index_of(self.source, argument, "function_constant")
        kind = " ".join(words)
        self.constants.append(FunctionConstant(name, kind, index, name not in self.optional))
        self._replace_range(declaration, f"SM_FUNCTION_CONSTANT({kind}, {name}, {index})")

    def _optional(self) -> set[str]:
        """Names that the source passes to is_function_constant_defined."""
        return {
            self.syntax.text(index + 2)
            for index, token in enumerate(self.tokens)
            if token.text == "is_function_constant_defined"
        }

    def _read_kernel(self, declaration: Declaration) -> None:
        rules.check_result(self.syntax, declaration)
        name = "::".join((*declaration.scope, declaration.name))
        self._separate_overload(declaration, self.kernels.setdefault(name, []))
        if self.syntax.text(declaration.start) != "template":
            scope = "::".join(declaration.scope)
            entry = "::".join((*declaration.scope, declaration.name))
            self._add_function(declaration, self._host_name(declaration) or entry, entry, scope)

    def _separate_overload(self, template: Declaration, others: list[Declaration]) -> None:
        """Kernel templates with the same name and other parameters: all but the first get another
        name, as an instantiation without its parameters would be ambiguous."""
        types = self.syntax.parameter_types(template)
        start = template.start
        if self.syntax.text(start) == "template" and self.syntax.text(start + 2) != ">":
            if others and all(self.syntax.parameter_types(o) != types for o in others):
                name = f"{template.name}_softmetal_overload{len(others)}"
                self.replaced[template.parameters - 1] = name
                self.callees[name] |= self.callees[template.name]
            others.append(template)
        elif not others:
            others.append(template)

    def _read_instantiation(self, declaration: Declaration) -> None:
        """`template [[host_name("x")]] kernel RETURN name<arguments>(types);` becomes an entry."""
        syntax = self.syntax
        plain = syntax.plain(declaration.start, declaration.end - 1)
        closing = plain[-1]
        opening, values = -1, list[str]()
        if syntax.text(closing) == ")":  # drop the parameter types
            opening = next((i for i in plain if syntax.partner.get(i) == closing), closing)
            plain = plain[: plain.index(opening)]
        last = len(plain) - 1
        first = last - self._angle_length(plain) + 1
        name = syntax.text(plain[first - 1]) if first <= last else syntax.text(plain[last])
        first = first - 1 if first <= last else last
        named = first
        while first >= 2 and syntax.text(plain[first - 1]) == "::":
            if syntax.text(plain[first - 2]) in ("void", "kernel"):  # `kernel void ::a::k<...>`
                break
            first -= 2
        path = [syntax.text(plain[i]) for i in range(first, named, 2)]
        kernels = self._find_kernels(declaration.scope, (*path, name))
        if not kernels:
            raise Refusal(
                self.tokens[plain[0]], f"no kernel template named '{name}' to instantiate"
            )
        words = plain[named : last + 1]
        if syntax.text(words[-1]) == ">":
            kernel = self._instantiated(kernels, words, opening)
        else:
            kernel, values = self._deduced(kernels, plain[0], opening)
        if (renamed := self.replaced.get(kernel.parameters - 1)) is not None:
            self.replaced[words[0]] = renamed
        spelled = " ".join(self._cpp(i) for i in words)
        spelled += f"<{', '.join(values)}>" if values else ""
        entry = "::".join((*kernel.scope, spelled))
        scope = "::".join(declaration.scope)
        host_name = self._host_name(declaration) or entry
        self._add_function(kernel, host_name, entry, scope)
        if not values:
            self.instances[host_name] = (kernel, words)
        self.blanked.append((declaration.start, declaration.end))

    def _deduced(
        self, kernels: list[Declaration], at: int, opening: int
    ) -> tuple[Declaration, list[str]]:
        """The template with the parameters in the parentheses at `opening`, and its arguments."""
        for kernel in kernels if opening >= 0 else []:
            if (values := self.syntax.deduced(kernel, opening)) is not None:
                return kernel, values
        raise Refusal(
            self.tokens[at],
            "no kernel template has these parameters: write its arguments, e.g. "
            "'template kernel void k<float>(...)'",
        )

    def _find_kernels(self, scope: tuple[str, ...], path: tuple[str, ...]) -> list[Declaration]:
        """Kernels by the name written in `scope`: looked up outwards, then anywhere."""
        for depth in range(len(scope), -1, -1):
            if found := self.kernels.get("::".join((*scope[:depth], *path))):
                return found
        return next((k for n, k in self.kernels.items() if n.split("::")[-1] == path[-1]), [])

    def _instantiated(
        self, kernels: list[Declaration], named: list[int], opening: int
    ) -> Declaration:
        """The overload that an instantiation means: its `name<...>` is `named`, and the parameters
        that it repeats, if any, begin at `opening`."""
        values = [
            [self.syntax.text(i) for i in range(first, last)]
            for first, last in self.syntax.split_commas(named[0] + 2, named[-1])
        ]
        fitting = [k for k in kernels if self.syntax.takes(k, len(values))] or kernels
        if len(fitting) == 1 or opening < 0:
            return fitting[0]
        wanted = self.syntax.types_between(opening)
        counted = [k for k in fitting if len(self.syntax.parameter_types(k)) == len(wanted)]
        return next(
            (k for k in counted if self.syntax.parameter_types(k, values) == wanted),
            next(iter(counted), fitting[0]),
        )

    def _angle_length(self, plain: list[int]) -> int:
        """The number of trailing tokens that are a template argument list."""
        depth = 0
        for length, index in enumerate(reversed(plain), 1):
            text = self.syntax.text(index)
            depth += (text == ">") - (text == "<")
            if depth == 0:
                return length if length > 1 else 0
        return 0

    def _host_name(self, declaration: Declaration) -> str:
        for attribute in self.syntax.attributes(declaration.start, declaration.body):
            if attribute.name == "host_name":
                return "".join(t.text[1:-1] for t in attribute.arguments if t.kind == "string")
        return ""

    # ---- kernels -------------------------------------------------------------------------------

    def _add_function(self, kernel: Declaration, name: str, entry: str, scope: str = "") -> None:
        if kernel.start not in self.heads:  # templates may have hundreds of instances
            self.heads[kernel.start] = self._parameters(kernel), self._limit(kernel)
        parameters, limit = self.heads[kernel.start]
        reached = [self._reached_from(word) for word in set(_WORD.findall(entry))]
        if any(each.cooperates for each in reached):
            mode = Mode.FIBERS
        elif all(p.kind == "buffer" or p.kind in _FLAT_BUILTINS for p in parameters):
            mode = Mode.FLAT
        else:
            mode = Mode.GROUPS
        names = (c.name for c in self.constants)
        needed = tuple(name for name in names if any(name in each.words for each in reached))
        self.functions[name] = Function(name, entry, parameters, mode, limit, needed, scope)

    def _limit(self, kernel: Declaration) -> int:
        """The threads of a threadgroup at most, 0 if the kernel does not say."""
        limit = 0
        for attribute in self.syntax.attributes(kernel.start, kernel.body):
            if attribute.name == "max_total_threads_per_threadgroup":
                limit = value_of(self.source, attribute.arguments) or 0
        return limit

    def _reached_from(self, word: str) -> Reached:
        if word not in self.reached:
            words = self._reach([word])
            self.reached[word] = Reached(words, any(map(_COOPERATION.match, words)))
        return self.reached[word]

    def _reach(self, words: Iterable[str]) -> set[str]:
        """Every word in the bodies of what `words` may name, and of what those name."""
        reached: set[str] = set()
        pending = list(words)
        while pending:
            word = pending.pop()
            if word not in reached:
                reached.add(word)
                pending += self.callees.get(word, ())
        return reached

    def _parameters(self, kernel: Declaration) -> tuple[Parameter, ...]:
        opening = kernel.parameters
        closing = self.syntax.partner[opening]
        found = [
            (self._parameter(kernel, first, last), self.tokens[first])
            for first, last in self.syntax.split_commas(opening + 1, closing)
            if [self.syntax.text(i) for i in self.syntax.plain(first, last)] != ["void"]
        ]
        taken = {(p.kind, p.index) for p, _ in found}
        numbered: list[tuple[Parameter, Token]] = []
        for parameter, token in found:  # Metal gives arguments without an index the lowest free one
            if parameter.index < 0 and parameter.kind in ("buffer", "threadgroup"):
                kind = parameter.kind
                index = next(n for n in range(len(taken) + 1) if (kind, n) not in taken)
                taken.add((kind, index))
                parameter = replace(parameter, index=index)
            rules.check_parameter(parameter, token)
            numbered.append((parameter, token))
        rules.check_places(numbered)
        self.parameters[kernel.start] = numbered
        return tuple(parameter for parameter, _ in numbered)

    def _parameter(self, kernel: Declaration, first: int, last: int) -> Parameter:
        syntax = self.syntax
        named = syntax.parameter_name(first, last)
        spelled = [syntax.text(i) for i in syntax.plain(first, last) if i != named]
        kind, index, condition = "", -1, ""
        for attribute in syntax.attributes(first, last):
            if attribute.name == "function_constant":
                condition = "".join(t.text for t in attribute.arguments)
            elif attribute.name in ("buffer", "threadgroup"):
                kind, index = (
                    attribute.name,
                    index_of(self.source, attribute.arguments, attribute.name),
                )
                rules.check_index(kind, index, self.tokens[first])
            elif attribute.name in BUILTINS:
                kind = attribute.name
            elif attribute.name in OF_OTHER_STAGES or not SPACES & set(spelled):
                raise Refusal(
                    self.tokens[first],
                    f"attribute '{attribute.name}' on a kernel parameter is not supported",
                )
            else:  # as Apple's compiler treats those that it does not know
                why = f"unknown attribute '{attribute.name}' ignored"
                self.ignored.append(Refusal(self.tokens[first], why))
        if not kind:
            if "threadgroup" in spelled:
                kind = "threadgroup"
            elif "device" in spelled or "constant" in spelled:
                kind = "buffer"
            else:
                raise Refusal(
                    self.tokens[first],
                    f"parameter '{syntax.text(named)}' of kernel '{kernel.name}' is neither "
                    "a buffer nor a builtin: add an attribute, e.g. [[thread_position_in_grid]]",
                )
        name = syntax.text(named) if named >= 0 else ""
        return Parameter(name, " ".join(spelled), kind, index, condition)

    # ---- edits ---------------------------------------------------------------------------------

    def _replace_range(self, declaration: Declaration, text: str) -> None:
        """Put `text` where the declaration stood, less its final semicolon."""
        self.blanked.append((declaration.start + 1, declaration.end - 1))
        self.replaced[declaration.start] = text

    def _threadgroup_variables(self) -> None:
        """`threadgroup T name[n];` in a function is storage; elsewhere the word is a type's."""
        kernels = {name.rpartition("::")[2] for name in self.kernels}
        for declaration in self.syntax.declarations:
            if declaration.kind != "function" or declaration.start in self.left_out:
                continue
            for index in range(declaration.body, declaration.end):
                if self.syntax.text(index) == "threadgroup" and self._is_storage(index):
                    if declaration.name not in kernels:
                        raise Refusal(
                            self.tokens[index],
                            "variables in the threadgroup address space cannot be declared in "
                            f"'{declaration.name}', which is not a kernel: pass a pointer",
                        )
                    self.replaced[index] = "SM_TG      "

    def _shared_constants(self) -> None:
        """Constants of vectors and classes that other constants use are `constexpr`: C++ lets an
        initializer read only those, and scalars."""
        words: dict[str, int] = {}  # name -> its word `constant`
        used: set[str] = set()
        for declaration in self.syntax.declarations:
            if declaration.kind != "other" or declaration.classes:
                continue
            texts = [self.syntax.text(i) for i in range(declaration.start, declaration.end)]
            if "=" in texts and "constant" in texts and "constexpr" not in texts:
                used.update(texts[texts.index("=") :])
                if not any(map(_SCALAR.fullmatch, texts[: texts.index("=")])):
                    words[declaration.name] = declaration.start + texts.index("constant")
        self.shared_constants = {index for name, index in words.items() if name in used}

    # DEVIATION: a threadgroup variable with an initializer other than zero is refused. Apple's
    # compiler accepts a constant one.
    def _is_storage(self, index: int) -> bool:
        before = index - 1
        while self.syntax.text(before) in ("const", "volatile", "static", "]", ")"):
            if self.syntax.text(before) in "])":  # alignas(16), [[attribute]]
                before = self.syntax.opener.get(before, before)
                before -= self.syntax.text(before - 1) in _ALIGNING
            before -= 1
        if self.syntax.text(before) not in _STATEMENT_STARTS:
            return self.tokens[before].kind == "directive"
        at = index + 1
        while self.syntax.text(at) not in ("", ";", "[", ",", "=", "(", ")", "{"):
            if self.syntax.text(at) in ("*", "&", "auto"):
                return False
            if self.syntax.text(at) in _ALIGNING:
                at = self._after_alignment(at)
                continue
            opens = self.syntax.text(at) == "<"
            at = self.syntax.skip_angles(at) if opens else at + 1
        stored = self.syntax.text(at) in (";", "[", ",")
        while self.syntax.text(at) == "[" and at in self.syntax.partner:
            at = self.syntax.partner[at] + 1
        if self.syntax.text(at) in ("=", "{"):
            stored |= self._erases_zeros(at)
        return stored

    def _erases_zeros(self, at: int) -> bool:
        """Apple's compiler takes zero, or a list of zeros, for a threadgroup variable, which stays
        without a value. Other initializers are refused."""
        first = at + (self.syntax.text(at) == "=")
        last = self.syntax.partner.get(first, first)
        values = {self.syntax.text(place) for place in range(first, last + 1)}
        ends = self.syntax.text(last + 1) in (";", ",")
        if not ends or not values <= {"0", "0.0f", "0.f", "0.0", "false", ",", "{", "}"}:
            raise Refusal(
                self.tokens[at],
                "initializers of threadgroup variables are not supported by softmetal: let one "
                "thread assign the value, then call threadgroup_barrier",
            )
        self.replaced |= dict.fromkeys(range(at, last + 1), "")
        return True

    def _after_alignment(self, at: int) -> int:
        """Where `alignas(16)` or `__attribute__((...))` ends. In a type C++ has no `alignas`."""
        close = self.syntax.partner.get(at + 1, at + 1)
        if self.syntax.text(at) == "alignas":
            self.replaced[at], self.replaced[close] = "__attribute__((aligned", ")))"
        return close + 1

    def _cpp(self, index: int) -> str:
        """One token as C++."""
        token = self.tokens[index]
        if index in self.replaced:
            return self.replaced[index]
        if token.kind == "number":
            return float_literal(token.text)
        if token.kind == "word":
            if token.text in ERASED:
                return " " * len(token.text)
            if index in self.shared_constants:
                return "constexpr"
            if token.text == "constant":
                beside = (self.syntax.text(index - 1), self.syntax.text(index + 1))
                return "const   " if "const" not in beside else "        "
            if self.is_cast(index):
                return f"SM_CAST_{token.text}"
            if token.text == "forward" and self.syntax.text(index - 1) == "::":
                return "sm_forward"
        if token.kind == "directive" and not token.text.startswith("# "):
            return directives.pragma(token.text)
        return token.text

    def is_cast(self, index: int) -> bool:
        """`half(x)`, `bfloat(x)` and `static_cast<T>(x)`: clang has no way from half to bfloat."""
        text, following = self.syntax.text(index), self.syntax.text(index + 1)
        if text == "static_cast":
            end = self.syntax.skip_angles(index + 1)
            return self.syntax.text(end - 2) not in ("*", "&", "void")
        before = self.syntax.text(index - 1)
        return (
            text in ("half", "bfloat")
            and following == "("
            and before not in ERASED
            and before not in ("constant", "const", "operator", "<", ",")
            and self.syntax.text(index + 2) not in ("*", "&", ")")
        )

    def edited(self, blanked: list[tuple[int, int]], spell: Callable[[int], str]) -> str:
        """The source without the `blanked` ranges of tokens, each other token as `spell` says."""
        edits: list[tuple[int, int, str]] = []
        gone = sorted(blanked)
        index, hidden = 0, 0
        while index < len(self.tokens):
            while hidden < len(gone) and gone[hidden][1] <= index:
                hidden += 1
            if hidden < len(gone) and gone[hidden][0] <= index:
                edits += self._blank_tokens(index, gone[hidden][1])
                index = gone[hidden][1]
            elif self.syntax.is_attribute(index):
                edits += self._blank_tokens(index, self.syntax.partner[index] + 1)
                index = self.syntax.partner[index] + 1
            else:
                token = self.tokens[index]
                if (text := spell(index)) != token.text:
                    edits.append((token.start, token.end, text))
                index += 1
        return apply_edits(self.source, edits)

    def _blank_tokens(self, start: int, end: int) -> list[tuple[int, int, str]]:
        """Blank tokens one by one: line markers between them must stay."""
        return [
            (token.start, token.end, blank(token.text))
            for token in self.tokens[start:end]
            if not token.text.startswith("# ")
        ]


def float_literal(text: str) -> str:
    """MSL's literals are float without a suffix, half with h, bfloat with bf."""
    found = _FLOAT.match(text)
    if found is None:
        return text
    suffix = (found["suffix"] or "").lower()
    if suffix == "bf":  # clang has no such literals
        return f"__bf16({found['digits']})"
    return found["digits"] + _SUFFIXES[suffix]
