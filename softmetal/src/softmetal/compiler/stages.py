"""The stages of a compilation, in order, each a function of text to text.

preprocess -> rewrite (frontend.py) -> check           once for a library
unit -> optimise -> lower -> generate -> link          for each (kernel, function constants)
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from softmetal.compiler import host_access, instrument, integers
from softmetal.compiler.identity import INCLUDE, RUNTIME
from softmetal.compiler.tokens import MAX_NESTING, line_markers
from softmetal.errors import CompileError
from softmetal.toolchain import clang
from softmetal.toolchain.targets import Target
from softmetal.types import MAX_SOURCE, CompileOptions, Function, Parameter, Program

_OURS: tuple[Path | str, ...] = (INCLUDE, RUNTIME)
LANGUAGE = (
    *("-std=c++17", "-nostdinc", "-nostdlibinc", "-fdeclspec", "-fno-exceptions", "-fno-rtti"),
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
_USER_BEGIN = "#pragma clang attribute push(__attribute__((%s)), apply_to = function)\n"
_USER_END = "#pragma clang attribute pop\n"


def language_flags(options: CompileOptions) -> tuple[str, ...]:
    """Flags that every stage shares: they decide what the source means."""
    # Estimates of 1/x and 1/sqrt(x) would give NaN for 0 and infinity.
    estimates = ("-mrecip=none",) if options.fast_math else ()
    return (*LANGUAGE, *_NATIVE, *arithmetic_flags(options), *estimates)


def arithmetic_flags(options: CompileOptions) -> tuple[str, ...]:
    if not options.fast_math:
        return ("-ffp-contract=on",)
    special = () if options.finite_math else ("-fno-finite-math-only",)
    return ("-ffast-math", *special)


# ---- a library ----------------------------------------------------------------------------------


def preprocess(source: str, options: CompileOptions) -> str:
    """Expand includes and macros, and drop the text of our own headers again.

    Clang sees no files but our headers and those in the user's folders.
    """
    version = options.language_version
    flags = [
        *("-E", "-x", "c++", *QUIET, *language_flags(options)),
        "-Werror=c23-extensions",  # #embed
        *(f"-I{folder}" for folder in options.include_dirs),
        *(f"-D__METAL_VERSION__={version}", "-D__METAL__=1", "-D__METAL_MACOS__=1"),
        *(f"-D{name}={value}" for name, value in options.macros),
    ]
    name = options.file_name.replace("\\", "\\\\").replace('"', '\\"')
    visible = (*_OURS, *options.include_dirs)
    text, _ = clang.run("clang", [*flags, "-"], f'#line 1 "{name}"\n{source}', visible)
    kept = "".join(_without_headers(text))
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
    CompileError for one that a link leads out of them.
    """
    folders = [os.path.abspath(folder) for folder in options.include_dirs]
    found = []
    for name in {marker.file for marker in line_markers(text)} - {options.file_name}:
        path = Path(os.path.abspath(name))
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
    flags = ["-fsyntax-only", *QUIET, *_NO_WARNINGS, *language_flags(program.options)]
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
    calls = {
        name: set(re.findall(r'call [^\n]*?@"?([\w.$]+)"?\(', body))
        for name, body in _definitions(ir).items()
    }
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


def build_header(options: CompileOptions, target: Target, checked: bool, output: Path) -> None:
    """Precompile our headers: an empty unit then takes 0.04 s instead of 0.11."""
    flags = [*language_flags(options), f"--target={target.triple}", *target.flags]
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


# The first phase does not vectorise: `lower` must see which locals stayed in memory.
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
    flags += ["-O1", *instrument.FLAGS] if checked else ["-O3", *_SCALAR]
    flags += ["-S", "-emit-llvm", "-o", "-"]
    arguments = [*flags, "-Xclang", "-disable-llvm-passes", "-include-pch", str(header), *_STDIN]
    ir, _ = clang.run("clang", arguments, text, (*_OURS, header))
    ir, _ = clang.run("clang", [*flags, "-x", "ir", "-"], integers.defined(ir))
    return ir


def cooperates(ir: str) -> bool:
    """Whether threads wait for each other; the token pass misses calls through pointers."""
    meeting = r"call [^\n]*@softmetal_(barrier|collective|lane|check_barrier)\("
    return re.search(meeting, ir) is not None


def refuse(ir: str, assembly: frozenset[str] = frozenset()) -> None:
    """Raise CompileError for what can only be seen in the IR; `assembly` is allowed."""
    host_access.check_ir(ir, assembly)
    for name, body in _definitions(ir).items():
        if re.search(rf"call [^\n]*@{re.escape(name)}\(", body):
            raise CompileError(
                f"error: recursion is not supported in Metal: {host_access.demangle(name)}\n"
            )


def lower(ir: str, target: Target) -> str:
    """Refuse and rewrite what can only be seen in the IR; see ARCHITECTURE.md."""
    refuse(ir)
    if "= alloca " in _definitions(ir).get("softmetal_entry", ""):
        promise = r'^(!\d+ = )!\{!"llvm.loop.parallel_accesses".*$'
        ir = re.sub(promise, r'\1!{!"softmetal.sequential"}', ir, flags=re.M)
    native_bfloat = target.native_bfloat
    if re.search(r"^@\S+ = .*\bthread_local\b", ir, re.M):
        ir, native_bfloat = _without_avx512(ir), False
    if "bfloat" in ir:
        ir = _without_sve(ir)
    return ir if native_bfloat else _bfloat_by_integers(ir)


def _without_sve(ir: str) -> str:
    """LLVM 22 cannot select masked loads and stores of bfloat vectors for SVE; NEON has none."""
    return re.sub(r"\+(sve[\w-]*)", r"-\1", ir)


def _without_avx512(ir: str) -> str:
    """LLVM keeps values in xmm16 and above over __tls_get_addr, which may overwrite them.

    So AVX-512 is off in code with thread-local storage, which holds threadgroup variables.
    """
    return re.sub(r"\+(avx512\w*|avx10\S*?|evex512)\b", r"-\1", ir)


def _definitions(ir: str) -> dict[str, str]:
    found = re.finditer(r'^define [^\n]*@"?([\w.$]+)"?\([^\n]*\{\n(.*?)^\}', ir, re.M | re.S)
    return {match[1]: match[2] for match in found}


_OPERAND = r"([^,<(\n]+|splat \([^)]*\))"
_NARROW = re.compile(
    r"^  (%\S+) = (fadd|fsub|fmul|fdiv|fcmp) ((?:[a-z]+ )*)(?:bfloat|<(\d+) x bfloat>) "
    rf"{_OPERAND}, {_OPERAND}$",
    re.M,
)
_FROM_INTEGER = re.compile(r"^  (%\S+) = ([su]itofp .+) to (?:bfloat|<(\d+) x bfloat>)$", re.M)
_TO_INTEGER = re.compile(r"^  (%\S+) = (fpto[su]i) (?:bfloat|<(\d+) x bfloat>) (.+) to (.+)$", re.M)
_EXTEND = re.compile(
    r"^  (%\S+) = fpext (?:[a-z]+ )*(?:bfloat|<(\d+) x bfloat>) (.+) to (?:<\d+ x )?float>?$",
    re.M,
)
_TRUNCATE = re.compile(
    r"^  (%\S+) = fptrunc (?:[a-z]+ )*(?:float|<(\d+) x float>) (\S+) to \S*(?: x )?bfloat>?.*$",
    re.M,
)


def _bfloat_by_integers(ir: str) -> str:
    """Convert bfloat to float and back by integer arithmetic, which vectorises: LLVM would call a
    function to round each element, also in the operations that it narrows to bfloat. It cannot
    select vectors of some of these, such as comparisons for AVX-512 with bfloat instructions."""
    numbers = itertools.count()

    def kinds(lanes: str | None) -> list[str]:
        types = ("float", "bfloat", "i32", "i16", "i1")
        return [f"<{lanes} x {t}>" if lanes else t for t in types]

    def widen(match: re.Match[str]) -> str:
        result, operation, flags, lanes, left, right = match.groups()
        (wide, narrow, *_), n = kinds(lanes), f"%softmetal.bf{next(numbers)}"
        computed = f"{operation} {flags}{wide} {n}.left, {n}.right"
        return _block(
            f"{n}.left = fpext {narrow} {left} to {wide}",
            f"{n}.right = fpext {narrow} {right} to {wide}",
            *(
                [f"{result} = {computed}"]
                if operation == "fcmp"
                else [f"{n}.wide = {computed}", f"{result} = fptrunc {wide} {n}.wide to {narrow}"]
            ),
        )

    def from_integer(match: re.Match[str]) -> str:
        result, conversion, lanes = match.groups()
        (wide, narrow, *_), n = kinds(lanes), f"%softmetal.bf{next(numbers)}"
        return _block(
            f"{n}.wide = {conversion} to {wide}",
            f"{result} = fptrunc {wide} {n}.wide to {narrow}",
        )

    def to_integer(match: re.Match[str]) -> str:
        result, conversion, lanes, value, integer = match.groups()
        (wide, narrow, *_), n = kinds(lanes), f"%softmetal.bf{next(numbers)}"
        return _block(
            f"{n}.wide = fpext {narrow} {value} to {wide}",
            f"{result} = {conversion} {wide} {n}.wide to {integer}",
        )

    def extend(match: re.Match[str]) -> str:
        result, lanes, value = match.groups()
        (wide, narrow, i32, i16, _), n = kinds(lanes), f"%softmetal.bf{next(numbers)}"
        return _block(
            f"{n}.short = bitcast {narrow} {value} to {i16}",
            f"{n}.low = zext {i16} {n}.short to {i32}",
            f"{n}.bits = shl {i32} {n}.low, {_splat(16, lanes)}",
            f"{result} = bitcast {i32} {n}.bits to {wide}",
        )

    def truncate(match: re.Match[str]) -> str:  # to nearest, ties to even
        result, lanes, value = match.groups()
        (wide, narrow, i32, i16, i1), n = kinds(lanes), f"%softmetal.bf{next(numbers)}"
        return _block(
            f"{n}.bits = bitcast {wide} {value} to {i32}",
            f"{n}.high = lshr {i32} {n}.bits, {_splat(16, lanes)}",
            f"{n}.odd = and {i32} {n}.high, {_splat(1, lanes)}",
            f"{n}.half = add {i32} {n}.odd, {_splat(0x7FFF, lanes)}",
            f"{n}.sum = add {i32} {n}.bits, {n}.half",
            f"{n}.quiet = or {i32} {n}.bits, {_splat(0x400000, lanes)}",
            f"{n}.isnan = fcmp uno {wide} {value}, {value}",
            f"{n}.pick = select {i1} {n}.isnan, {i32} {n}.quiet, {i32} {n}.sum",
            f"{n}.top = lshr {i32} {n}.pick, {_splat(16, lanes)}",
            f"{n}.short = trunc {i32} {n}.top to {i16}",
            f"{result} = bitcast {i16} {n}.short to {narrow}",
        )

    ir = _TO_INTEGER.sub(to_integer, _FROM_INTEGER.sub(from_integer, _NARROW.sub(widen, ir)))
    return _TRUNCATE.sub(truncate, _EXTEND.sub(extend, ir))


def _block(*lines: str) -> str:
    return "\n".join(f"  {line}" for line in lines)


def _splat(number: int, lanes: str | None) -> str:
    return f"splat (i32 {number})" if lanes else str(number)


def generate(ir: str, target: Target, output: Path) -> None:
    """IR to an object file, vectorised."""
    flags = [
        "-O3",
        "-fPIC",
        "-w",
        "-fno-stack-protector",
        f"--target={target.triple}",
        *target.flags,
    ]
    clang.run("clang", [*flags, "-x", "ir", "-c", "-", "-o", str(output)], ir)


def link(objects: list[Path], output: Path) -> None:
    """Objects to a shared object; undefined symbols are resolved against the runtime.

    So is the function that finds thread-local variables: see runtime/kernel.c.
    """
    # Without --no-dependent-libraries an object could name files to link.
    flags = ["-shared", "--gc-sections", "--wrap=__tls_get_addr", "--no-dependent-libraries"]
    clang.run("ld.lld", [*flags, *map(str, objects), "-o", str(output)])
