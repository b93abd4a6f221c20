"""The stages of a compilation, in order, each a function of text to text, or to a module of IR.

preprocess -> rewrite (frontend.py) -> check           once for a library
unit -> optimise -> lower -> generate -> link          for each (kernel, function constants)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from softmetal.compiler import bfloat, host_access, instrument, integers
from softmetal.compiler.identity import INCLUDE, PACKAGE, RUNTIME
from softmetal.compiler.ir import Module
from softmetal.compiler.tokens import MAX_NESTING, line_markers
from softmetal.errors import CompileError
from softmetal.toolchain import clang
from softmetal.toolchain.targets import Target
from softmetal.types import MAX_SOURCE, CompileOptions, Function, Mode, Parameter, Program

FIRST_OF_17 = 400  # the first version of Metal's language that is based on C++17
_OURS: tuple[Path | str, ...] = (INCLUDE, RUNTIME)
NEWEST_STANDARD = "-std=c++17"  # in which all kernels are compiled, once they are checked
LANGUAGE = (
    *("-nostdinc", "-nostdlibinc", "-fdeclspec", "-fno-exceptions", "-fno-rtti"),
    # Without it -O3 duplicates calls of simd functions, and lanes arrive at different call sites.
    "-fconvergent-functions",
    *("-Xclang", "-ffloat16-excess-precision=none"),  # each half operation rounds, as on the GPU
    "-fsigned-char",  # as in Metal, on every machine
    "-fclang-abi-compat=14",  # vectors, which are classes here, obey the attribute `packed`
    *("-fno-strict-aliasing", "-fno-math-errno", "-fno-stack-protector"),
    "-fno-strict-float-cast-overflow",  # numbers an integer cannot hold saturate, NaN is 0
    "-fno-finite-loops",  # else clang deletes a loop that waits for memory to change
    f"-isystem{INCLUDE}",
)
_NATIVE = (
    "-fmax-type-align=8",  # GPUs accept vectors aligned to their element, and kernels rely on it
    "-fstack-clash-protection",  # a large stack frame must touch the guard page
    *("-fvisibility=hidden", "-fPIC", f"-isystem{RUNTIME}"),
)
QUIET = (
    *("-fno-caret-diagnostics", "-fno-color-diagnostics", "-ferror-limit=20"),
    *("-fno-crash-diagnostics", f"-fbracket-depth={MAX_NESTING}"),
    "-Wno-c++11-narrowing",  # float4 v = {i, 0, 0, 1}: Metal accepts it
    "-Wno-elaborated-enum-base",  # Apple's NS_ENUM in headers shared with the host
    "-Werror=vla",
    "-Werror=global-constructors",  # variables get their values when the kernel is loaded
)
# Erasing address spaces and attributes causes warnings that are not about the user's code.
_NO_WARNINGS = (
    *("-Wno-duplicate-decl-specifier", "-Wno-ignored-qualifiers", "-Wno-unknown-pragmas"),
    *(
        "-Wno-unused",
        "-Wunused-value",
        "-Wno-undefined-internal",
        "-Wno-ignored-attributes",
        "-Wno-pass-failed",
    ),
    *("-Wno-unneeded-internal-declaration", "-Wno-ignored-pragmas", "-Wno-constant-conversion"),
    "-Wno-psabi",
    "-Wno-c99-designator",  # Metal has C's array designators
)
ENTRIES = ("softmetal_entries", "softmetal_entry")  # the files of what follows a source
_USER_BEGIN = "#pragma clang attribute push(__attribute__((%s)), apply_to = function)\n"
_USER_END = "#pragma clang attribute pop\n"


def standard(options: CompileOptions) -> str:
    """The version of C++ that a version of Metal's language is based on. Clang warns of most of
    what is newer and accepts it, as Apple's compiler does."""
    return NEWEST_STANDARD if options.language_version >= FIRST_OF_17 else "-std=c++14"


def language_flags(options: CompileOptions, version: str = NEWEST_STANDARD) -> tuple[str, ...]:
    """Flags that every stage shares: they decide what the source means."""
    # Estimates of 1/x and 1/sqrt(x) would give NaN for 0 and infinity.
    estimates = ("-mrecip=none",) if options.fast_math else ()
    return (version, *LANGUAGE, *_NATIVE, *arithmetic_flags(options), *estimates)


def arithmetic_flags(options: CompileOptions) -> tuple[str, ...]:
    if not options.fast_math:
        return ("-ffp-contract=on",)
    special = () if options.finite_math else ("-fno-finite-math-only",)
    return ("-ffast-math", *special)


# ---- a library ----------------------------------------------------------------------------------


def expanded(source: str, options: CompileOptions, more: Sequence[str] = ()) -> str:
    """Expand includes and macros. Clang sees no files but our headers and those in the user's
    folders."""
    version = options.language_version
    flags = [
        *("-E", "-x", "c++", *QUIET, *language_flags(options, standard(options))),
        "-Werror=c23-extensions",  # #embed
        *(f"-I{folder}" for folder in options.include_dirs),
        "-DSM_MACROS_ONLY",  # of our headers, of which nothing else is kept
        *(f"-D__METAL_VERSION__={version}", "-D__METAL__=1", "-D__METAL_MACOS__=1"),
        *(f"-D{name}={value}" for name, value in options.macros),
        *more,
    ]
    name = options.file_name.replace("\\", "\\\\").replace('"', '\\"')
    visible = (*_OURS, *options.include_dirs)
    return clang.run("clang", [*flags, "-"], f'#line 1 "{name}"\n{source}', visible)[0]


def preprocess(source: str, options: CompileOptions) -> str:
    """A source without includes and macros, and without the text of our own headers."""
    kept = "".join(_without_headers(expanded(source, options)))
    if len(kept) > MAX_SOURCE:
        raise CompileError(
            f"error: the source expands to {len(kept):,} characters: at most {MAX_SOURCE:,} are "
            "compiled\n"
        )
    return kept


def _without_headers(text: str) -> Iterator[str]:
    """Lines that came from the user's files. A marker follows each gap, so numbers stay right."""
    ours = tuple(map(str, _OURS))
    kept, position = True, 0
    for marker in line_markers(text):
        if kept:
            yield text[position : marker.start]
        kept = not marker.file.startswith(ours)
        if kept:  # without the flags, as enter and leave no longer match
            yield f'# {marker.line} "{marker.spelled}"\n'
        position = marker.end
    if kept:
        yield text[position:]


def included_files(text: str, options: CompileOptions) -> list[Path]:
    """The user's headers that a preprocessed text came from.

    A `#line` of the user can name any file: only those in the user's folders count. Raises
    CompileError for one that a link leads out of them, and for names of our own.
    """
    folders = [os.path.abspath(folder) for folder in options.include_dirs]
    found = []
    for name in sorted({marker.file for marker in line_markers(text)}):
        path = Path(os.path.abspath(name))
        if path.is_relative_to(PACKAGE) or path.name.startswith(ENTRIES):
            raise CompileError(
                f"{options.file_name}:1:1: error: #line cannot give the name '{name}', which is "
                "one of softmetal's files: choose another\n"
            )
        if name == options.file_name:
            continue
        if not any(path.is_relative_to(folder) for folder in folders) or not path.is_file():
            continue
        if not any(path.resolve().is_relative_to(os.path.realpath(f)) for f in folders):
            raise CompileError(
                f"{name}:1:1: error: a link leads to {path.resolve()}, which is outside the "
                "include folders: give its folder too\n"
            )
        found.append(path)
    return sorted(found)


def check(program: Program, header: Path) -> str:
    """Compile without generating code; returns the warnings, raises CompileError."""
    flags = ["-fsyntax-only", *QUIET, *_NO_WARNINGS]
    flags += language_flags(program.options, standard(program.options))
    arguments = [*flags, "-include-pch", str(header), *_STDIN]
    _, warnings = clang.run("clang", arguments, _every_kernel(program), (*_OURS, header))
    return warnings


def _every_kernel(program: Program) -> str:
    """The whole library, each of its kernels instantiated."""
    return (
        _constants(program, {})
        + program.text
        + f'\n# 1 "softmetal_entries"\n{uses(program.functions.values())}'
    )


def uses(kernels: Iterable[Function]) -> str:
    """Declarations that instantiate each kernel."""
    return "".join(
        _within(f.scope, f"static void (*const softmetal_use{i})() = (void (*)()) &::{f.entry};\n")
        for i, f in enumerate(kernels)
    )


def _within(scope: str, text: str) -> str:
    """Wrap text in the namespace of the user's declaration, so that names resolve alike."""
    return f"namespace {scope} {{\n{text}}}\n" if scope else text


def recursive_functions(program: Program, target: Target, header: Path) -> set[str]:
    """Names of functions on a cycle of calls, before the optimiser turns them into loops."""
    flags = [*language_flags(program.options), f"--target={target.triple}", *target.flags, "-w"]
    arguments = ["-O0", "-Xclang", "-disable-llvm-passes", *flags, *QUIET, "-S", "-emit-llvm"]
    arguments += ["-include-pch", str(header), *_STDIN, "-o", "-"]
    ir, _ = clang.run("clang", arguments, _every_kernel(program), (*_OURS, header))
    functions = Module(ir).functions
    calls = {name: function.called() for name, function in functions.items()}
    found = set()
    for name in calls:
        reached, pending = set[str](), [name]
        while pending:
            fresh = (calls.get(pending.pop(), set()) & calls.keys()) - reached
            reached |= fresh
            pending += fresh
        if name in reached:
            found.add(host_access.demangle(name))
    return found


def build_header(
    options: CompileOptions, version: str, target: Target, checked: bool, output: Path
) -> None:
    """Precompile our headers: an empty unit then takes 0.04 s instead of 0.11."""
    flags = [*language_flags(options, version), f"--target={target.triple}", *target.flags]
    flags += instrument.FLAGS if checked else ()
    source = str(INCLUDE / "softmetal" / "unit.h")
    clang.run(
        "clang",
        [
            "-x",
            "c++-header",
            "-O3",
            "-fpch-instantiate-templates",
            *flags,
            source,
            "-o",
            str(output),
        ],
    )


# ---- a kernel -----------------------------------------------------------------------------------

# Modification times are ignored: the key of a precompiled header contains the headers' text.
_STDIN = ("-Xclang", "-fno-validate-pch", "-x", "c++", "-")


def unit(program: Program, function: Function, constants: Mapping[int, bytes], entry: str) -> str:
    """The C++ that becomes the code of one kernel, which `entry` exports."""
    parameters = ", ".join(_parameter(p) for p in function.parameters)
    kernel = f"::softmetal::kernel<&::{function.entry}, ::softmetal::list<{parameters}>>"
    return (
        _constants(program, constants)
        + _USER_BEGIN % "internal_linkage, always_inline"
        + program.text
        + f'\n# 1 "softmetal_entry"\n{_USER_END}'
        + _within(function.scope, f"using softmetal_kernel = {kernel};\n")
        + (
            f"using softmetal_kernel = {function.scope}::softmetal_kernel;\n"
            if function.scope
            else ""
        )
        + entry
    )


def _parameter(parameter: Parameter) -> str:
    if parameter.kind == "buffer":
        constant = "constant" in parameter.type.split()
        kind = f"::softmetal::{'constant_buffer' if constant else 'buffer'}<{parameter.index}>"
    elif parameter.kind == "threadgroup":
        kind = f"::softmetal::scratch<{parameter.index}>"
    else:
        kind = f"::softmetal::special<::softmetal::builtin::{parameter.kind}>"
    if parameter.condition:
        kind = f"::softmetal::when<bool({parameter.condition}), {kind}>::type"
    return kind


def _constants(program: Program, values: Mapping[int, bytes]) -> str:
    lines = []
    for index in sorted({constant.index for constant in program.constants}):
        value = values.get(index)
        if value is None:
            literal = "::softmetal::undefined_constant{}"
        else:
            literal = (
                f"::softmetal::constant_bytes<{len(value)}>{{{{{', '.join(map(str, value))}}}}}"
            )
        lines.append(f"#define SM_FC_{index} {literal}\n")
        lines.append(f"#define SM_FC_DEFINED_{index} {str(value is not None).lower()}\n")
    return "".join(lines)


# The first phase does not vectorise: `lower` must see which locals stayed in memory, and checks
# know whole accesses, not those of some lanes.
_SCALAR = (
    *("-mllvm", "-force-vector-width=1", "-mllvm", "-force-vector-interleave=1"),
    # Loops of known length unroll, else their arrays stay in memory; others are left to phase two.
    *(
        "-fno-slp-vectorize",
        "-mllvm",
        "-unroll-runtime=false",
        "-mllvm",
        "-unroll-allow-partial=false",
    ),
)


def optimise(
    text: str, options: CompileOptions, target: Target, header: Path, checked: bool = False
) -> str:
    """C++ to LLVM IR, everything inlined; with a call at every access if it is to be checked."""
    flags = [*language_flags(options), f"--target={target.triple}", *target.flags, "-w", *QUIET]
    # -O1 keeps the accesses of the source: an access that is optimised away cannot be checked.
    flags += ["-O1", *instrument.FLAGS] if checked else ["-O3"]
    flags += _SCALAR
    flags += ["-S", "-emit-llvm", "-o", "-"]
    arguments = [*flags, "-Xclang", "-disable-llvm-passes", "-include-pch", str(header), *_STDIN]
    ir, _ = clang.run("clang", arguments, text, (*_OURS, header))
    ir, _ = clang.run("clang", [*flags, "-x", "ir", "-"], integers.defined(ir))
    return ir


def cooperates(ir: str) -> bool:
    """Whether threads wait for each other; the token pass misses calls through pointers."""
    meeting = r"call [^\n]*@softmetal_(barrier|collective|lane|check_barrier)\("
    return re.search(meeting, ir) is not None


def accepted(ir: str, allowed: host_access.Allowed = host_access.CPU) -> Module:
    """The IR if there is nothing in it that is refused; raises CompileError."""
    host_access.check_ir(ir, allowed)
    module = Module(ir)
    for name, function in module.functions.items():
        if name in function.body and name in function.called():
            raise CompileError(
                f"error: recursion is not supported in Metal: {host_access.demangle(name)}\n"
            )
    return module


def lower(module: Module, target: Target, mode: Mode) -> None:
    """Rewrite what can only be seen in the IR; see ARCHITECTURE.md."""
    split = mode in (Mode.REGIONS, Mode.SIMDGROUPS)
    if not split:
        _join_meetings(module)
    ir = str(module)
    entry = module.functions.get("softmetal_entry")
    if entry is not None and "= alloca " in entry.body and not split:
        for name, node in module.metadata.items():
            if node.text and node.text.startswith(f'!{name} = !{{!"llvm.loop.parallel_accesses"'):
                node.text = f'!{name} = !{{!"softmetal.sequential"}}'
    if _longest_choice(ir) > _MAX_CHOICES:
        for node in module.metadata.values():
            node.text = node.text and node.text.replace(_VECTORIZED, _NOT_VECTORIZED)
    off = []
    native_bfloat = target.native_bfloat
    others = (each.body for name, each in module.functions.items() if name != "softmetal_entry")
    is_found_late = not split or any("llvm.threadlocal" in body for body in others)
    if module.variables("thread_local") and is_found_late:
        # LLVM keeps values in xmm16 and above over __tls_get_addr, which may overwrite them. So
        # AVX-512 is off in code with thread-local storage, which holds threadgroup variables.
        off.append(r"avx512\w*|avx10[^\s,\"]*|evex512")
        native_bfloat = False
    if "bfloat" in ir:
        # LLVM 22 cannot select masked accesses of bfloat vectors for SVE; NEON has none.
        off.append(r"sve[\w-]*")
    _turn_off(module, "|".join(off))
    if not native_bfloat:
        bfloat.by_integers(module)


def _join_meetings(module: Module) -> None:
    """Inline the functions in which threads meet, as each call is a place of its own, and forget
    what all lanes would do together."""

    def inlined(group: re.Match[str]) -> str:
        text = module.attributes[group[1]].text or ""
        inner = text[text.index("{") + 1 : text.rindex("}")]
        return inner.replace(" noinline ", " alwaysinline ") if " noinline " in inner else group[0]

    for name, function in module.functions.items():
        if "_together" in function.body:
            function.body = _TOGETHER.sub(r"\1null)", function.body)
        if name.startswith("_ZN9softmetal"):  # a program's own functions stay as they are
            function.header = re.sub(r"#(\d+)", inlined, function.header)


_TOGETHER = re.compile(
    r"(call [^\n]*@softmetal_collective\([^\n]*, ptr (?:noundef )?|"
    r'call void asm sideeffect "", "[^"]*"\(ptr (?:\w+ )*)@[^),]+\)'
)
_VECTORIZED = '!"llvm.loop.vectorize.enable", i1 true'
_NOT_VECTORIZED = _VECTORIZED.replace("true", "false")
_MAX_CHOICES = 16
_COMPARED = re.compile(r"^  (%\S+) = [fi]cmp .* (\S+), (\S+)$", re.M)
_CHOSEN = re.compile(r"^  (%\S+) = select .*i1 (%\S+), \S+ (\S+), \S+ (\S+)$", re.M)


def _longest_choice(ir: str) -> int:
    """How many times a value is compared with the next and the one or the other chosen, as a
    maximum in a variable is. LLVM 22's vectoriser takes 2**n steps for n of them."""
    compared = {found[1]: {found[2], found[3]} for found in _COMPARED.finditer(ir)}
    depth: dict[str, int] = {}
    for found in _CHOSEN.finditer(ir):
        both = compared.get(found[2], set()) & {found[3], found[4]}
        depth[found[1]] = 1 + max((depth.get(name, 0) for name in both), default=0)
    return max(depth.values(), default=0)


def _turn_off(module: Module, features: str) -> None:
    """Let code do without features of the processor, which a regular expression names."""
    if features:
        for group in module.attributes.values():
            group.text = group.text and re.sub(rf"\+({features})(?=[,\"])", r"-\1", group.text)


def generate(ir: str, target: Target, output: Path, mode: Mode) -> None:
    """IR to an object file, vectorised."""
    # A kernel may have many loops over few threads: what a vector does not hold runs one by one.
    split = mode in (Mode.REGIONS, Mode.SIMDGROUPS)
    once = ("-mllvm", "-enable-epilogue-vectorization=false") if split else ()
    flags = [
        "-O3",
        "-fPIC",
        "-w",
        "-fno-stack-protector",
        "-fstack-size-section",
        f"--target={target.triple}",
        *target.flags,
        *once,
    ]
    clang.run("clang", [*flags, "-x", "ir", "-c", "-", "-o", str(output)], ir)


def link(objects: list[Path], output: Path) -> None:
    """Objects to a shared object; undefined symbols are resolved against the runtime.

    So is the function that finds thread-local variables: see runtime/kernel.c.
    """
    # Without --no-dependent-libraries an object could name files to link.
    flags = ["-shared", "--gc-sections", "--wrap=__tls_get_addr", "--no-dependent-libraries"]
    clang.run("ld.lld", [*flags, *map(str, objects), "-o", str(output)])
