"""Build the wheels of all distributions, install them into fresh environments and use them there.

What an editable install hides shows here: files missing from a wheel, dependencies that are not
declared, and writing into site-packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
USES_LBRX = """
import lbrx

x = lbrx.arange(6, dtype="float32").reshape(2, 3)
assert x.device == "metal" and (x @ x.T).tolist() == [[5.0, 14.0], [14.0, 50.0]]
"""

PROGRAM = """program(1.0)
{
    func main<ios17>(tensor<fp32, [2]> x) {
        tensor<fp32, [2]> out = relu(x = x)[name = string("out")];
    } -> (out);
}
"""
USES_SOFTCOREML = """
import importlib.util

assert importlib.util.find_spec("coremltools") is None
import softcoreml

model = softcoreml.load("model.mlmodelc")
assert model.predict({"x": [-1.0, 2.0]})["out"].tolist() == [0.0, 2.0]
softcoreml.install()
import CoreML

assert CoreML.MLModelConfiguration.alloc().init().computeUnits() == CoreML.MLComputeUnitsAll
"""


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> None:
    # Nothing of this environment: neither its packages nor its caches.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    subprocess.run([str(part) for part in command], cwd=cwd, env=kept | variables, check=True)


def pip(python: Path, *arguments: str | Path) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", *arguments)


def build(folder: Path) -> list[Path]:
    names = ("softmetal", "softcoreml", "lbrx")
    for name in names:
        pip(Path(sys.executable), "wheel", "--quiet", "--no-deps", "-w", folder, ROOT / name)
    return [next(folder.glob(f"{name}-*.whl")) for name in names]


def installed(folder: Path, *wheels: Path) -> Path:
    """The Python of a new environment with these wheels, which nothing may write into."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    pip(python, "install", "--quiet", "--constraint", CONSTRAINTS, *wheels)
    for path in _files(folder):
        path.chmod(path.stat().st_mode & ~0o222)
    return python


def _files(folder: Path) -> list[Path]:
    (packages,) = folder.glob("lib/python*/site-packages")
    return sorted(packages.rglob("*"))


def snapshot(folder: Path) -> list[tuple[Path, int]]:
    """Files of site-packages and when they were written: root may write read-only files too."""
    return [(path, path.stat().st_mtime_ns) for path in _files(folder)]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        home = {"HOME": name, "XDG_CACHE_HOME": f"{name}/cache"}
        softmetal, softcoreml, lbrx = build(folder / "wheels")

        python = installed(folder / "alone", softmetal)
        before = snapshot(folder / "alone")
        run(python, "-c", "import importlib.util as u; assert u.find_spec('numpy') is None")
        program = ROOT / "examples" / "saxpy.py"
        run(python, "-m", "softmetal", "run", program, cwd=elsewhere, **home)
        assert snapshot(folder / "alone") == before, "softmetal writes into site-packages"

        python = installed(folder / "coreml", softcoreml)
        before = snapshot(folder / "coreml")
        (folder / "elsewhere" / "model.mlmodelc").mkdir()
        (folder / "elsewhere" / "model.mlmodelc" / "model.mil").write_text(PROGRAM)
        run(python, "-c", USES_SOFTCOREML, cwd=elsewhere, **home)
        run(python, "-m", "softcoreml", "inspect", "model.mlmodelc", cwd=elsewhere, **home)
        assert snapshot(folder / "coreml") == before, "softcoreml writes into site-packages"

        python = installed(folder / "both", softmetal, lbrx)
        before = snapshot(folder / "both")
        run(python, "-c", USES_LBRX, cwd=elsewhere, **home)
        run(folder / "both" / "bin" / "lbrx", "devices", cwd=elsewhere, **home)
        assert snapshot(folder / "both") == before, "lbrx writes into site-packages"
    print("the wheels work where they are installed")


if __name__ == "__main__":
    main()
