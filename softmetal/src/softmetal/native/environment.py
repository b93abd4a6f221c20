"""Variables under which native programs are built and run, and what a program asked for in vain."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from softmetal.errors import ToolchainError
from softmetal.native import building

MISSING = (
    "SOFTMETAL_NATIVE_MISSING"  # a file to which the library adds what programs ask for in vain
)


def variables() -> dict[str, str]:
    """Compilers, flags and paths. Raises ToolchainError where no Python could be started."""
    if building.libpython() is None:
        raise ToolchainError(
            f"{sys.base_prefix} has no libpython.so, which native programs start: use one with "
            "a shared library (on Debian and Ubuntu: apt-get install libpython3-dev)"
        )
    folder = building.build()
    flags = " ".join([*building.OBJECTIVE_C, "-fexceptions", "-fPIC", "-Dweak_import=weak",
                      f"-isystem {building.INCLUDE}", f"-isystem {folder}"])  # fmt: skip
    compilers = dict.fromkeys(("CC", "OBJC"), f"{folder}/softmetal-cc")
    compilers |= dict.fromkeys(("CXX", "OBJCXX"), f"{folder}/softmetal-c++")
    return {
        **compilers,
        **dict.fromkeys(("CFLAGS", "CXXFLAGS", "OBJCFLAGS", "OBJCXXFLAGS"), flags),
        "LDFLAGS": f"-L{folder} -Wl,-rpath,{folder} -lunwind",
        "LDLIBS": "-lMetal -lFoundation -lobjc",
        "CMAKE_LIBRARY_PATH": str(folder),
        "LD_LIBRARY_PATH": _before("LD_LIBRARY_PATH", folder),
        "PATH": _before("PATH", folder),
    }


def _before(name: str, folder: Path) -> str:
    """The folder in front of a list of folders."""
    rest = [each for each in os.environ.get(name, "").split(os.pathsep) if each]
    return os.pathsep.join([str(folder), *(each for each in rest if each != str(folder))])


def exports() -> str:
    """The variables as commands of a shell."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables().items())


_KINDS = {
    "class": "class {name}",
    "method": "method {name} of {owner}, which ended the program",
    "selector": "method {name} of {owner}, which the program asked about",
    "sysctl": "value {name} of sysctl",
}


def explain(command: Sequence[str]) -> int:
    """Run a program; print what it asked for that softmetal does not have. Returns its status."""
    with tempfile.NamedTemporaryFile("r", prefix="softmetal-missing-") as file:
        environment = {**os.environ, **variables(), MISSING: file.name}
        try:
            status = subprocess.run(command, env=environment, check=False).returncode
        except OSError as problem:
            raise ToolchainError(f"cannot run {command[0]}: {problem.strerror}") from None
        asked = dict.fromkeys(line.rstrip("\n") for line in file)
    lines = [_KINDS[kind].format(owner=owner, name=name)
             for kind, owner, name in (line.split(" ", 2) for line in asked)]  # fmt: skip
    print("softmetal has all that the program asked for" if not lines else "softmetal lacks:")
    for line in lines:
        print(f"  {line}")
    return 128 - status if status < 0 else status
