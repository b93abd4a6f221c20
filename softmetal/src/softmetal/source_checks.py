"""Checks of many sources at once, and their results in the forms that tools read."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import quote

from softmetal import compiler
from softmetal.errors import CompileError, SoftmetalError, shown_path
from softmetal.types import CompileOptions, Program

_PLACE = re.compile(
    r"^(?:(?P<file>[^\n]+?):(?P<line>\d+):(?P<column>\d+): )?"
    r"(?P<severity>fatal error|error|warning|note): (?P<message>.*)$",
    re.MULTILINE,
)
_GITHUB_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message of the compiler. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    severity: str  # error, warning or note
    message: str


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """What the check of one file gave."""

    file: str
    program: Program | None  # None if it has errors
    text: str  # the compiler's messages, with lines of the source

    @property
    def diagnostics(self) -> list[Diagnostic]:
        return [
            Diagnostic(
                found["file"] or self.file,
                int(found["line"] or 1),
                int(found["column"] or 1),
                found["severity"].removeprefix("fatal "),
                found["message"],
            )
            for found in _PLACE.finditer(self.text)
        ]


def files_of(paths: Sequence[str]) -> list[str]:
    """The sources that paths name: files, folders with all `.metal` files below, and patterns.

    Raises SoftmetalError for a path that names none.
    """
    files: list[str] = []
    for path in paths:
        named = _named(path)
        if not named:
            raise SoftmetalError(
                f"{shown_path(path)} has no .metal file: give files, folders or patterns"
            )
        files += named
    return list(dict.fromkeys(files))


def _named(path: str) -> list[str]:
    if os.path.isdir(path):
        return sorted(str(file) for file in Path(path).rglob("*.metal") if file.is_file())
    if not os.path.exists(path) and glob.has_magic(path):
        return sorted(file for file in glob.glob(path, recursive=True) if os.path.isfile(file))
    return [path]  # one that does not exist is an error when it is read


def check_all(files: Sequence[str], options: CompileOptions) -> Iterator[CheckedSource]:
    """Check files side by side; results in the order of the files."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lambda file: check_file(file, options), files)


def check_file(file: str, options: CompileOptions) -> CheckedSource:
    """Check one file, whose folder may be included from. Raises SoftmetalError if it cannot be
    read."""
    try:
        source = Path(file).read_text()
    except (OSError, ValueError) as problem:  # ValueError: not text, or a NUL in the name
        reason = getattr(problem, "strerror", None) or problem
        raise SoftmetalError(f"cannot read {shown_path(file)}: {reason}") from None
    folders = (str(Path(file).parent), *options.include_dirs)
    settings = replace(options, include_dirs=folders, file_name=file)
    try:
        program, warnings = compiler.check(source, settings)
    except CompileError as problem:
        return CheckedSource(file, None, problem.diagnostics)
    if not settings.strict:
        warnings += compiler.check_address_spaces(source, settings)
    return CheckedSource(file, program, warnings)


# ---- forms of results ----------------------------------------------------------------------------


def as_json(checked: Sequence[CheckedSource]) -> str:
    """A list with an object for each file."""
    return json.dumps(
        [
            {
                "file": each.file,
                "compiles": each.program is not None,
                "kernels": _kernels(each.program),
                "diagnostics": [asdict(one) for one in each.diagnostics],
            }
            for each in checked
        ],
        indent=2,
    )


def _kernels(program: Program | None) -> list[dict[str, object]]:
    functions = program.functions.items() if program else ()
    return [
        {"name": name, "parameters": [_parameter(p) for p in function.parameters]}
        for name, function in functions
    ]


def _parameter(parameter: object) -> dict[str, object]:
    return {key: getattr(parameter, key) for key in ("name", "kind", "index", "type")}


def as_sarif(checked: Sequence[CheckedSource]) -> str:
    """SARIF 2.1.0, which code scanning and editors read. Notes belong to the message before."""
    results: list[dict[str, object]] = []
    related: list[dict[str, object]] = []  # of the last result
    for one in (one for each in checked for one in each.diagnostics):
        region = {"startLine": one.line, "startColumn": one.column}
        file = {"uri": quote(Path(one.file).as_posix())}
        place = {"physicalLocation": {"artifactLocation": file, "region": region}}
        message = {"text": one.message}
        if one.severity == "note" and results:
            related.append({**place, "message": message})
            continue
        related = []
        results.append(
            {
                "ruleId": f"metal/{one.severity}",
                "level": one.severity,  # SARIF has clang's words
                "message": message,
                "locations": [place],
                "relatedLocations": related,
            }
        )
    rules = [{"id": rule} for rule in sorted({str(result["ruleId"]) for result in results})]
    run = {"tool": {"driver": {"name": "softmetal", "rules": rules}}, "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2)


def as_github(checked: Sequence[CheckedSource]) -> str:
    """Workflow commands: GitHub Actions shows each message at its line of a pull request."""
    return "\n".join(
        f"::{_GITHUB_LEVELS[one.severity]} file={_property(one.file)},line={one.line},"
        f"col={one.column}::{_escaped(one.message)}"
        for each in checked
        for one in each.diagnostics
    )


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
