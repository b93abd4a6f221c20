"""Build and check what is published: the sdists of all distributions, and their wheels from these.
lbrx also has a wheel for macOS, with a library for it that is built here.

python scripts/build_distributions.py FOLDER    # `make dist` gives it hatchling and twine
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = ("softmetal", "softcoreml", "lbrx", "lbrx-video")
ENCODER = "lbrx/metal/liblbrx_encoder.dylib"  # in the wheel for macOS alone
_NEEDED = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<extras>[^\]]*)\])?\s*(?P<version>[^;\s]*)")


def run(*command: str | Path, cwd: Path = ROOT, **settings: str) -> None:
    environment = {**os.environ, **settings}
    subprocess.run([sys.executable, *map(str, command)], cwd=cwd, check=True, env=environment)


def in_file_names(name: str) -> str:
    """A distribution's name as the names of its sdist and wheel begin."""
    return name.replace("-", "_")


def build(folder: Path) -> list[Path]:
    """The sdists and wheels. A wheel is built where there is nothing but its unpacked sdist."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (path for name in NAMES for path in folder.glob(f"{in_file_names(name)}-*")):
        old.unlink()
    for name in NAMES:
        run("-m", "hatchling", "build", "--target", "sdist", "--directory", folder, cwd=ROOT / name)
    sdists = sorted(folder.glob("*.tar.gz"))
    without = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    wheels = ("-m", "pip", "wheel", "--quiet", *without, "--wheel-dir", folder)
    run(*wheels, *sdists)
    with tempfile.TemporaryDirectory() as place:
        library = encoder_library(Path(place))
        (lbrx,) = (path for path in sdists if path.name.startswith("lbrx-"))
        run(*wheels, lbrx, LBRX_ENCODER=str(library))
    return [*sdists, *sorted(folder.glob("*.whl"))]


def encoder_library(folder: Path) -> Path:
    """Build the library of metal/encoder.c for macOS on arm64. The linker signs it ad hoc, without
    which macOS loads no code there."""
    output = folder / Path(ENCODER).name
    target = ("-target", "aarch64-macos.14.0", f"-Wl,-install_name,@rpath/{output.name}")
    flags = ("-shared", "-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Werror")
    source = ROOT / "lbrx" / "src" / "lbrx" / "metal" / "encoder.c"
    run("-m", "ziglang", "cc", *target, *flags, "-o", output, source)
    return output


def committed(name: str) -> set[str]:
    """The files that a distribution installs, by their paths in site-packages."""
    source = ROOT / name / "src"
    found = subprocess.run(["git", "ls-files", "-z"], cwd=source, stdout=subprocess.PIPE)
    if found.returncode:
        raise SystemExit(f"git does not list the files of {source}: build in a clone")
    return set(filter(None, found.stdout.decode().split("\0")))


def in_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def in_sdist(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        names = (name.split("/", 2)[1:] for name in archive.getnames())
        return {rest[-1] for rest in names if len(rest) == 2 and rest[0] == "src"}


def metadata(path: Path) -> Message:
    with zipfile.ZipFile(path) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def check_files(name: str, found: set[str], path: Path) -> None:
    """Raises SystemExit if a package is not made of the files that git knows."""
    wanted = committed(name)
    for problem, names in (("lacks", wanted - found), ("has, and git does not,", found - wanted)):
        if names:
            raise SystemExit(f"{path.name} {problem} {', '.join(sorted(names)[:5])}")


def check_needs(wheels: dict[str, Message]) -> None:
    """Raises SystemExit if the distributions have different versions, or need others of each
    other, or extras that do not exist."""
    versions = {str(one["Version"]) for one in wheels.values()}
    if len(versions) != 1:
        raise SystemExit(f"the distributions have the versions {', '.join(sorted(versions))}")
    for name, one in wheels.items():
        for line in one.get_all("Requires-Dist", []):
            found = _NEEDED.match(line)
            if found is None or found["name"] not in wheels:
                continue
            if found["name"] != name and found["version"] != f"=={one['Version']}":
                raise SystemExit(f"{name} needs {line}: write =={{version}} in its pyproject.toml")
            known = wheels[found["name"]].get_all("Provides-Extra", [])
            extras = [extra.strip() for extra in (found["extras"] or "").split(",")]
            if unknown := [extra for extra in extras if extra and extra not in known]:
                raise SystemExit(f"{name} needs {line}: there is no extra {unknown[0]}")


def _first(path: Path) -> str:
    return path.name.partition("-")[0]


def main(folder: Path) -> None:
    built = build(folder.absolute())
    every = [path for path in built if path.suffix == ".whl"]
    if len(every) != len(NAMES) + 1:
        raise SystemExit(
            f"{len(every)} wheels were built: one each and lbrx's for macOS are wanted"
        )
    names = {in_file_names(name): name for name in NAMES}
    wheels = {names[_first(path)]: path for path in every}
    for path in built:
        read = in_wheel if path.suffix == ".whl" else in_sdist
        more = {ENCODER} if "macosx" in path.name else set()
        if not more <= read(path):
            raise SystemExit(f"{path.name} lacks {ENCODER}")
        check_files(names[_first(path)], read(path) - more, path)
    check_needs({name: metadata(path) for name, path in wheels.items()})
    run("-m", "twine", "--no-color", "check", "--strict", *built)
    print(f"{len(built)} files in {folder}: publish them with twine upload {folder}/*")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
