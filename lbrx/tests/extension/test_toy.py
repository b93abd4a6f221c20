"""A distribution that is installed from its wheel, and that imports lbrx.extension alone, adds an
operation with a kernel, a file format, an architecture's names, a command and a package."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from with_toy import run

import lbrx

TOY = Path(__file__).parent / "toy" / "src" / "lbrx_toy"

OPERATION = """
import sys

import numpy as np

import lbrx

values = np.random.default_rng(1).standard_normal((3, 5, 37)).astype("f4")
assert not [name for name in sys.modules if name.startswith("lbrx_toy")]
for device in ("cpu", "metal"):
    for dtype, error in (("float32", 1e-6), ("float16", 4e-3), ("bfloat16", 4e-2)):
        x = lbrx.tensor(values, device=device).astype(dtype)
        y = lbrx.apply("toy_neighbours", x)
        wide = x.numpy().astype("f8")
        assert (y.dtype, y.device) == (dtype, device)
        np.testing.assert_allclose(
            y.numpy().astype("f8"), wide[..., 1:] + wide[..., :-1], atol=error
        )
    if device == "cpu":
        assert "lbrx_toy.kernels" not in sys.modules
assert lbrx.metal.stats()["kernels"]["toy_neighbours:threads"] == 3

doubled = lbrx.compile(lambda x: lbrx.apply("toy_neighbours", x * 2) + 1)
assert doubled(lbrx.tensor([1.0, 2.0, 4.0])).tolist() == [7.0, 13.0]
gradient = lbrx.grad(lambda x: (lbrx.apply("toy_neighbours", x) * [1.0, 10.0]).sum())
assert gradient(lbrx.tensor([1.0, 2.0, 4.0])).tolist() == [1.0, 11.0, 10.0]
for wrong in (lbrx.ones(1), lbrx.arange(3)):
    try:
        lbrx.apply("toy_neighbours", wrong)
    except (lbrx.ShapeError, lbrx.DtypeError) as error:
        print(error)
try:
    lbrx.kernels.forced(toy_neighbours="quick")
except lbrx.SettingError as error:
    print(error)
try:
    lbrx.apply("toy_neighbour", lbrx.ones(2))
except KeyError as error:
    print(error.args[0])
"""


def test_an_operation_and_its_kernel(toy_folder):
    done = run(toy_folder, "-c", OPERATION, LBRX_KERNEL="toy_neighbours:threads")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "toy_neighbours(float32[1]): (1,) has rows without neighbours: give rows of two or more",
        "toy_neighbours(int64[3]): int64 is not floating: cast to float32",
        "forced(toy_neighbours='quick'): toy_neighbours has no such variant, it has threads",
        "there is no operation 'toy_neighbour': did you mean 'toy_neighbours'?",
    ]


def test_its_shaders_are_known(toy_folder):
    done = run(toy_folder, "-m", "lbrx", "shaders", "build", "--stems", "toy_neighbours")
    assert done.stdout.startswith("3 pipelines for "), done.stderr
    done = run(None, "-m", "lbrx", "shaders", "build", "--stems", "toy_neighbours")
    assert "there is no stem 'toy_neighbours'" in done.stderr


def test_a_file_format(toy_folder, tmp_path):
    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    lbrx.save(tmp_path / "m.npz", {"a": values})
    given, toys, back = (str(tmp_path / name) for name in ("m.npz", "m.toys", "back.safetensors"))
    assert run(toy_folder, "-m", "lbrx", "convert", given, toys).returncode == 0
    done = run(toy_folder, "-m", "lbrx", "inspect", toys)
    assert "toys" in done.stdout, done.stderr
    assert run(toy_folder, "-m", "lbrx", "convert", toys, back).returncode == 0
    np.testing.assert_array_equal(lbrx.load(back)["a"].numpy(), values)
    done = run(None, "-m", "lbrx", "inspect", toys)
    assert "starts with b'TOYS{" in done.stderr


NAMES = """
import sys
import lbrx
from lbrx.convert import convert

hf, gguf = sys.argv[1:]
convert(hf, gguf)
print(lbrx.open_model(gguf).metadata["general.architecture"])
print(lbrx.open_model(gguf).config["model_type"])
"""


def test_names_of_an_architecture(toy_folder, tmp_path, rng):
    heads, width = 2, 8
    weight = rng.standard_normal((width, width)).astype(np.float32)
    config = {"model_type": "toy_vision", "num_hidden_layers": 1, "hidden_size": width}
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    name = "model.layers.0.self_attn.q_proj.weight"
    folder = tmp_path / "hf"
    lbrx.save(folder, {name: weight}, format="safetensors", config=config)
    gguf, back = str(tmp_path / "m.gguf"), str(tmp_path / "back")
    done = run(toy_folder, "-c", NAMES, str(folder), gguf)
    assert done.stdout.split() == ["toyllm", "toy"], done.stderr
    stored = lbrx.load(gguf)["blk.0.attn_q.weight"].numpy()
    pairs = weight.reshape(heads, 2, -1, width).swapaxes(1, 2).reshape(width, width)
    np.testing.assert_array_equal(stored, pairs)
    done = run(toy_folder, "-m", "lbrx", "convert", gguf, back, "--to", "safetensors")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(lbrx.load(back)[name].numpy(), weight)
    done = run(None, "-c", NAMES, str(folder), str(tmp_path / "n.gguf"))
    assert "model_type 'toy_vision' of config.json has no table" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "printed"),
    [
        (["toy", "1,2,4"], 0, "3.0,6.0\n"),
        (["toy", "1,b"], 1, "lbrx: 1,b is not a list of numbers: give 1,2,3\n"),
        (["toy", "--help"], 0, "Add up the neighbours in a list of numbers."),
        (["--help"], 0, "    toy         add up the neighbours in a list of numbers"),
        (["tyo"], 2, "invalid choice: 'tyo', did you mean 'toy'?"),
        (["completion", "bash"], 0, "toy"),
    ],
)
def test_a_command(toy_folder, arguments, status, printed):
    done = run(toy_folder, "-m", "lbrx", *arguments)
    assert done.returncode == status
    assert printed in done.stdout + done.stderr


PACKAGE = """
import lbrx

print("toy" in dir(lbrx), lbrx.toy.neighbours(lbrx.tensor([1.0, 2.0])).tolist())
from lbrx.toy.files import TOYS
import sys
import lbrx_toy.files
print(sys.modules["lbrx.toy.files"] is lbrx_toy.files, lbrx_toy.files.__spec__.name)
print(lbrx.toy is lbrx_toy, lbrx_toy.__spec__.name)
"""


@pytest.mark.parametrize("left", [False, True])
def test_a_package(toy_folder, tmp_path, left):
    """Also where an earlier version of lbrx has left a folder of that name behind."""
    program = PACKAGE
    if left:
        (tmp_path / "toy" / "__pycache__").mkdir(parents=True)
        program = f"import lbrx\nlbrx.__path__.append({str(tmp_path)!r})\n{PACKAGE}"
    done = run(toy_folder, "-c", program)
    assert done.stdout == "True [3.0]\nTrue lbrx_toy.files\nTrue lbrx_toy\n", done.stderr
    done = run(None, "-c", PACKAGE)
    assert done.stderr.endswith("AttributeError: module 'lbrx' has no attribute 'toy'\n")


def test_it_imports_the_extension_alone():
    found = set()
    for path in TOY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                found.add(node.module)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    ours = {name for name in found if name.split(".")[0] == "lbrx"}
    assert ours
    assert {name for name in ours if not name.startswith("lbrx.extension.")} == set()
