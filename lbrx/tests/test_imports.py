"""What a start does not import: each module costs every program that does not need it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lbrx

FORMATS = "lbrx.formats.containers.pytorch lbrx.formats.containers.onnx lbrx.formats.containers.npz lbrx.formats.containers.safetensors"
LIBRARIES = "jinja2 tokenizers rich ziglang softmetal safetensors torch importlib.metadata"
ONE_NETWORK = "from lbrx.models import architectures; architectures.find('phi3')"
OPENED = "import lbrx; list(lbrx.open_model({gguf!r}))"
LOADED = "import lbrx; lbrx.load({gguf!r})"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import lbrx", f"lbrx.models lbrx.metal lbrx.kernels lbrx.formats {LIBRARIES}"),
        ("import lbrx.cli", f"lbrx.models lbrx.metal lbrx.formats {LIBRARIES}"),
        ("import lbrx.cli.merge", f"lbrx.models lbrx.metal ray fsspec yaml {LIBRARIES}"),
        ("import lbrx.cli.generate", f"lbrx.metal lbrx.formats.writing {FORMATS} {LIBRARIES}"),
        (
            ONE_NETWORK,
            "lbrx.models.architectures.gemma2 lbrx.models.architectures.qwen2 lbrx.metal",
        ),
        (OPENED, f"lbrx.models lbrx.metal lbrx.formats.writing {FORMATS} {LIBRARIES}"),
        (LOADED, f"lbrx.models lbrx.metal lbrx.formats.writing {FORMATS} {LIBRARIES}"),
    ],
)
def test_a_start_imports_what_it_needs(code, absent, tmp_path):
    path = tmp_path / "m.gguf"
    lbrx.save(path, {"a": lbrx.ones(4, device="cpu")}, {"general.name": "a"})
    program = f"{code.format(gguf=str(path))}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not set(absent.split()) & set(done.stdout.split())
