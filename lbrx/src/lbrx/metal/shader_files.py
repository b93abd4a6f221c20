"""Where shaders are: folders of sources, whose headers include each other by name alone. Other
distributions add folders by entry points."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lbrx.entry_points import imported, named
from lbrx.errors import DeviceError

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.MULTILINE)
ENTRY_POINTS = "lbrx.shaders"
RECORDS = "records"  # folders of generated headers, which are included as records/NAME.h


class ShaderFiles:
    """A folder with the folders in it, and after it those of other distributions, whose stems are
    listed if `installed`. A name is that of one file among them all."""

    def __init__(self, root: Path, *, installed: bool = False) -> None:
        self.root = root
        self._installed = installed
        self._folders = {root: _inside(root)}

    def roots(self) -> Iterator[Path]:
        """The folder, and those of other distributions."""
        yield self.root
        for name in named(ENTRY_POINTS):
            package = imported(ENTRY_POINTS, name)
            yield from map(Path, package.__path__ if package else ())

    def find(self, name: str) -> Path | None:
        """The file of a name; None if there is none."""
        paths = (folder / name for root in self.roots() for folder in self._inside(root))
        return next((path for path in paths if path.is_file()), None)

    def sources(self) -> list[Path]:
        """The files of stems, which are libraries of kernels."""
        roots = self.roots() if self._installed else (self.root,)
        folders = (folder for root in roots for folder in self._inside(root))
        found = (path for folder in folders for path in folder.glob("*.metal"))
        return sorted(found, key=lambda path: path.name)

    def stems(self) -> list[str]:
        """The names of the libraries."""
        return [path.stem for path in self.sources()]

    def read(self, name: str) -> str:
        """The text of a file as it is."""
        path = self.find(name)
        if path is None:
            raise DeviceError(f"the shader {name} is not in {self}")
        try:
            return path.read_text()
        except OSError as problem:
            raise DeviceError(f"the shader {path} cannot be read: {problem}") from problem

    def _inside(self, root: Path) -> list[Path]:
        if root not in self._folders:
            self._folders[root] = _inside(root)
        return self._folders[root]

    def __str__(self) -> str:
        return " or ".join(map(str, self.roots()))


def _inside(root: Path) -> list[Path]:
    folders = sorted(root.glob("**/"))
    return [path for path in folders if path.name not in (RECORDS, "__pycache__")]


def shader_text(
    files: ShaderFiles, name: str, text: str | None = None, seen: set[str] | None = None
) -> str:
    """A shader with the headers that it includes inserted, each once: Metal's run-time compiler
    does not search folders. `text` is the shader's source; without it the file is read."""
    seen = set() if seen is None else seen
    if name in seen:
        return ""
    seen.add(name)
    body = files.read(name) if text is None else text

    def included(match: re.Match[str]) -> str:
        following = body.count("\n", 0, match.start()) + 2
        inner = shader_text(files, match[1], None, seen)
        return f'{inner}\n#line {following} "{name}"'

    return f'#line 1 "{name}"\n' + _INCLUDE.sub(included, body)
