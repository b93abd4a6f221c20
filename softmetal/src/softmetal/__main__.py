"""python -m softmetal run | check | native | devices | cache."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from softmetal.errors import SettingError, SoftmetalError, ToolchainError, shown_path

if TYPE_CHECKING:
    from softmetal.source_checks import CheckedSource
    from softmetal.types import CompileOptions, Program


def _run(options: argparse.Namespace) -> int:
    """Run a program as `python` would, with softmetal instead of PyObjC."""
    from softmetal import running

    arguments = options.module or options.arguments
    if not arguments:
        return _complain("nothing to run: give a script, or -m MODULE")
    if not options.module and not os.path.exists(arguments[0]):
        return _complain(f"no such script: {shown_path(arguments[0])}")
    try:
        running.run(arguments, bool(options.module), options.keep_status)
    # Others are the program's.
    except (SettingError, ToolchainError, running.StartError) as problem:
        return _complain(problem)
    return 0


def _complain(text: object) -> int:
    print(f"softmetal: {text}", file=sys.stderr)
    return 1


def _check(options: argparse.Namespace) -> int:
    """Compile sources without running them; print clang's diagnostics and what was found."""
    from softmetal import source_checks

    files = source_checks.files_of(options.files)
    checked = source_checks.check_all(files, _compile_options(options))
    form = options.form
    if form is None:
        status = 0
        for each in checked:
            _print_checked(each, len(files) > 1, options.modes)
            status |= each.program is None
        return status
    results = list(checked)
    print(getattr(source_checks, f"as_{form}")(results))
    return int(any(each.program is None for each in results))


def _compile_options(options: argparse.Namespace) -> CompileOptions:
    from softmetal import env
    from softmetal.types import CompileOptions

    macros = (item.partition("=") for item in options.define)
    return CompileOptions(
        finite_math=env.finite_math(),
        macros=tuple((name, value if equals else "1") for name, equals, value in macros),
        include_dirs=tuple(options.include),
        language_version=options.std,
        strict="msl" in env.strict() if options.strict is None else options.strict,
        limits=True,
    )


def _print_checked(checked: CheckedSource, is_one_of_many: bool, shows_modes: bool) -> None:
    """Messages go to standard error. One file has a table of its kernels, of many each a line."""
    if checked.text.strip():
        print(checked.text.rstrip(), file=sys.stderr)
    if checked.program is None:
        if is_one_of_many:
            print(f"{checked.file}: does not compile")
    elif shows_modes:
        _print_modes(checked.program)
    elif is_one_of_many:
        count = len(checked.program.functions)
        print(f"{checked.file}: {count} kernel{'' if count == 1 else 's'}")
    else:
        _print_kernels(checked.program)


def _print_modes(program: Program) -> None:
    from softmetal import compiler

    rows = [
        (name, each.mode.name, "; ".join(each.reasons)) for name, each in compiler.outcomes(program)
    ]
    _print_table([("kernel", "mode", "why not a faster one"), *rows])


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
    check = commands.add_parser("check", help="compile .metal files and list their kernels")
    check.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a source in Metal Shading Language, a folder with .metal files, or a pattern (**)",
    )
    form = check.add_mutually_exclusive_group()
    for name, what in (
        ("json", "kernels and messages as JSON"),
        ("sarif", "messages as SARIF 2.1.0, for code scanning and editors"),
        ("github", "messages as commands that GitHub Actions shows in a pull request"),
    ):
        form.add_argument(
            f"--{name}", dest="form", action="store_const", const=name, help=f"print {what}"
        )
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
