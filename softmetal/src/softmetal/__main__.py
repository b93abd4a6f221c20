"""python -m softmetal run | check | native | devices | cache."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softmetal.errors import SettingError, SoftmetalError, ToolchainError

if TYPE_CHECKING:
    from softmetal.types import Program


def _run(options: argparse.Namespace) -> int:
    """Run a program as `python` would, with softmetal instead of PyObjC."""
    from softmetal import running

    arguments = options.module or options.arguments
    if not arguments:
        return _complain("nothing to run: give a script, or -m MODULE")
    if not options.module and not os.path.exists(arguments[0]):
        return _complain(f"no such script: {_shown(arguments[0])}")
    try:
        running.run(arguments, bool(options.module), options.keep_status)
    # Others are the program's.
    except (SettingError, ToolchainError, running.StartError) as problem:
        return _complain(problem)
    return 0


def _shown(path: str) -> str:
    """A path for a message: one line of at most 300 characters."""
    return f"{path!r:.301}".strip("'\"")


def _complain(text: object) -> int:
    print(f"softmetal: {text}", file=sys.stderr)
    return 1


def _check(options: argparse.Namespace) -> int:
    """Compile a file; print clang's diagnostics and a table of its kernels."""
    from softmetal import compiler, env
    from softmetal.errors import CompileError
    from softmetal.types import CompileOptions

    file = Path(options.file)
    try:
        source = file.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise SoftmetalError(f"cannot read {_shown(options.file)}: {reason}") from None
    macros = (item.partition("=") for item in options.define)
    settings = CompileOptions(
        finite_math=env.finite_math(),
        macros=tuple((name, value if equals else "1") for name, equals, value in macros),
        include_dirs=(str(file.parent), *options.include),
        file_name=options.file,
        language_version=options.std,
        strict="msl" in env.strict() if options.strict is None else options.strict,
        limits=True,
    )
    try:
        program, warnings = compiler.check(source, settings)
    except CompileError as problem:
        print(problem.diagnostics.rstrip(), file=sys.stderr)
        return 1
    if not settings.strict:
        warnings += compiler.check_address_spaces(source, settings)
    if warnings.strip():
        print(warnings.rstrip(), file=sys.stderr)
    if options.modes:
        rows = [
            (name, each.mode.name, "; ".join(each.reasons))
            for name, each in compiler.outcomes(program)
        ]
        _print_table([("kernel", "mode", "why not a faster one"), *rows])
    else:
        _print_kernels(program)
    return 0


def _language_version(text: str) -> int:
    """320 for "3.2", as __METAL_VERSION__ has it."""
    from softmetal import compiler

    try:
        return compiler.language_version(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _print_kernels(program: Program) -> None:
    rows = [("kernel", "index", "type", "name")]
    for name, function in program.functions.items():
        title = name
        for p in function.parameters:
            index = f"{p.kind} {p.index}" if p.kind in ("buffer", "threadgroup") else p.kind
            rows.append((title, index, re.sub(r"\s+([*&])", r"\1", p.type), p.name))
            title = ""
        if not function.parameters:
            rows.append((title, "", "", ""))
    _print_table(rows)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    sys.stdout.write("\n".join(lines) + "\n")


def _devices(options: argparse.Namespace) -> int:
    """List the devices that Metal programs will find."""
    if options.profiles:
        return _profiles()
    from softmetal.api.device import MTLCopyAllDevices
    from softmetal.executors.cuda import gpus

    titles = ("device", "threads a threadgroup", "threadgroup memory", "working set")
    rows = [
        (
            device.name(),
            str(device.maxThreadsPerThreadgroup()[0]),
            f"{device.maxThreadgroupMemoryLength() >> 10} KiB",
            f"{device.recommendedMaxWorkingSetSize() / 2**30:.1f} GiB",
        )
        for device in MTLCopyAllDevices()
    ]
    _print_table([titles, *rows])
    if reason := gpus.why_none():
        print(f"no NVIDIA GPU: {reason}")
    return 0


def _profiles() -> int:
    from softmetal import profiles

    _print_table(profiles.table())
    return 0


def _cache(options: argparse.Namespace) -> int:
    """Show or clear the cache of compiled kernels."""
    from softmetal.toolchain import disk_cache

    store = disk_cache.default()
    if options.action == "clear":
        print(f"removed {store.clear()} entries from {store.root}")
        return 0
    sizes: dict[str, list[int]] = {}
    for entry in store.entries():
        sizes.setdefault(entry.path.relative_to(store.root).parts[0], []).append(entry.size)
    rows = [("kind", "entries", "MiB")]
    rows += (
        (kind, str(len(each)), f"{sum(each) / 2**20:.1f}") for kind, each in sorted(sizes.items())
    )
    print(f"{store.root} (limit {store.limit / 2**20:.0f} MiB)")
    _print_table(rows)
    return 0


def _native(options: argparse.Namespace) -> int:
    """Objective-C, C++ and other programs that are not Python."""
    from softmetal.native import building, environment

    if options.explain:
        return environment.explain(options.explain)
    print(environment.exports() if options.env else building.build())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m softmetal", description="The Metal compute API in software."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a program that says `import Metal`")
    run.add_argument(
        "--keep-status",
        action="store_true",
        help="exit with the program's status also if checking modes found something (else 66)",
    )
    run.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, help="run a module: -m MODULE [ARGS]"
    )
    run.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARGS]",
        help="run a file, with arguments of its own",
    )
    run.set_defaults(function=_run)
    check = commands.add_parser("check", help="compile a .metal file and list its kernels")
    check.add_argument("file", metavar="FILE", help="a source in Metal Shading Language")
    check.add_argument(
        "-I",
        dest="include",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder whose files may be included",
    )
    check.add_argument(
        "-D",
        dest="define",
        metavar="X[=Y]",
        action="append",
        default=[],
        help="a macro, with 1 or Y as its text",
    )
    check.add_argument(
        "--strict",
        action=argparse.BooleanOptionalAction,
        help="refuse what Apple's compiler refuses (on unless SOFTMETAL_STRICT has no-msl)",
    )
    check.add_argument(
        "--modes",
        action="store_true",
        help="list how the CPU runs each kernel, and why not in a faster way",
    )
    check.add_argument(
        "--std",
        metavar="VERSION",
        type=_language_version,
        default=320,
        help="version of the language, 2.0 to 4.0 (3.2)",
    )
    check.set_defaults(function=_check)
    native = commands.add_parser(
        "native", help="the library that stands for Metal in programs that are not Python"
    )
    native.add_argument(
        "--env", action="store_true", help="print variables for a shell that builds and runs them"
    )
    native.add_argument(
        "--explain",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM",
        help="run a program, and list what it asks for that softmetal lacks",
    )
    native.set_defaults(function=_native)
    devices = commands.add_parser("devices", help="list the devices")
    devices.add_argument(
        "--profiles", action="store_true", help="list the values of SOFTMETAL_PROFILE"
    )
    devices.set_defaults(function=_devices)
    cache = commands.add_parser("cache", help="show or clear the cache of compiled kernels")
    cache.add_argument("action", nargs="?", choices=("show", "clear"), default="show")
    cache.set_defaults(function=_cache)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.function
    if command is _run:
        return command(options)
    try:
        return command(options)
    except SoftmetalError as problem:
        return _complain(problem)
    except BrokenPipeError:  # the reading end of a pipe, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
