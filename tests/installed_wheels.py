"""Install the wheels that `make dist` builds into fresh environments and use them there.

python tests/installed_wheels.py dist

What an editable install hides shows here: files missing from a wheel, dependencies that are not
declared, and writing into site-packages.
"""

from __future__ import annotations

import os
import shlex
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

USES_EXTRAS = """
import jinja2, tokenizers
from lbrx.merging.config import documents

assert documents("merge_method: linear", "test") == [{"merge_method": "linear"}]
"""
WITHOUT_VIDEO = """
import lbrx

try:
    lbrx.video
except AttributeError as error:
    assert "lbrx-video" in str(error) and "pip install" in str(error), error
"""
USES_VIDEO = """
import numpy as np
import lbrx

frames = np.random.default_rng(1).random((3, 3, 8, 12), "f4").repeat(8, 2).repeat(8, 3)
with lbrx.video.writer("clip.mov", codec="prores", profile="4444", size=(64, 96), rate=24) as out:
    out.write(lbrx.tensor(frames))
with lbrx.video.open("clip.mov") as clip:
    (batch,) = clip.batches(3, dtype="float32", layout="NCHW")
assert 10 * np.log10(1 / ((batch.numpy() - frames) ** 2).mean()) > 40
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


def wheels_in(folder: Path) -> list[Path]:
    """The wheels of the distributions that are for all systems."""
    names = ("softmetal", "softcoreml", "lbrx", "lbrx_video")
    return [next(folder.glob(f"{name}-*-none-any.whl")) for name in names]


def environment(folder: Path) -> Path:
    """The Python of a new environment."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


def installed(folder: Path, *wheels: str | Path) -> Path:
    """The Python of a new environment with these wheels, which nothing may write into."""
    python = environment(folder)
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


def tutorial_packages() -> list[str]:
    """What the first command of the tutorial about language models installs from the checkout."""
    page = (ROOT / "docs" / "tutorials" / "language_models.md").read_text()
    command = page.partition("```sh\npip install ")[2].partition(" && ")[0]
    return shlex.split(command)


def main(wheels: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        home = {"HOME": name, "XDG_CACHE_HOME": f"{name}/cache"}
        softmetal, softcoreml, lbrx, _ = wheels_in(wheels)

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
        run(python, "-c", WITHOUT_VIDEO, cwd=elsewhere, **home)
        assert snapshot(folder / "both") == before, "lbrx writes into site-packages"

        python = installed(folder / "video", softmetal, f"{lbrx}[video]", "--find-links", wheels)
        before = snapshot(folder / "video")
        run(python, "-c", USES_VIDEO, cwd=elsewhere, **home)
        run(folder / "video" / "bin" / "lbrx", "video", "info", "clip.mov", cwd=elsewhere, **home)
        assert snapshot(folder / "video") == before, "lbrx-video writes into site-packages"

        python = environment(folder / "checkout")
        pip(python, "install", "--quiet", "--constraint", CONSTRAINTS, *tutorial_packages())
        run(python, "-c", USES_EXTRAS, cwd=elsewhere, **home)
    print("the wheels work where they are installed")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
