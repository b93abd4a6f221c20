"""The recipes of ARCHITECTURE.md, followed in a copy of the package. Those from outside have tests
of their own, which the recipes name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAMILY = {
    "__init__.py": '"""Doubling, as an example."""\n',
    "doubling.py": '''"""Doubling and adding a number."""

from dataclasses import dataclass

from lbrx.command_lists.records import Float, Record, UInt
from lbrx.device_info import DeviceKind
from lbrx.kernels.arrays import buffer_of, kernel_name, size_class
from lbrx.kernels.layouts import contiguous
from lbrx.kernels.registry import KernelFamily, computes
from lbrx.ops.table import OpFamily, op
from lbrx.ops import rules


class DoublingRecord(Record, header="doubling"):
    size: UInt
    plus: Float  # added to each


@dataclass(frozen=True)
class Doubling:
    size: int

    @property
    def shape_class(self):
        return size_class(self.size)


@op(OpFamily.CUSTOM, rules.elementwise(1), rules.floating)
def doubled(x, *, plus: float = 0.0):
    """2 x plus a number."""
    return 2 * x + plus


family = KernelFamily("doubling")


@computes("doubled")
def run_doubled(call):
    """Compute `doubled`."""
    b, x = call.builder, contiguous(call.builder, call.inputs[0])
    result = b.result(call.outputs[0])
    record = DoublingRecord(size=x.layout.size, plus=call.attributes["plus"])
    family.run(b, Doubling(x.layout.size), x, result, record)
    return (result,)


@family.variant("serial", made_for=DeviceKind.WIDE)
def serial(b, problem, x, result, record):
    """One thread for all elements."""
    pipeline = b.pipeline("doubling", kernel_name("doubled", "serial", x.dtype), safe_math=True)
    b.launch(pipeline, [buffer_of(x), buffer_of(result), record], (1, 1, 1), (1, 1, 1))
''',
    "doubling.h": """#pragma once
#include "records/doubling.h"
using namespace metal;

template <typename T>
kernel void doubled_serial(device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
                           constant DoublingRecord& record [[buffer(2)]]) {
  for (uint i = 0; i < record.size; i++) out[i] = 2 * x[i] + record.plus;
}
""",
    "doubling.metal": """#include "doubling.h"

template [[host_name("doubled_serial_float32")]] kernel void doubled_serial<float>(
    device const float*, device float*, constant DoublingRecord&);
""",
}
METHOD = '''"""The larger of all weights."""

from functools import reduce

from lbrx.merging.methods.method import Method


def largest(parents):
    """The largest value of each element."""
    return reduce(lambda x, y: x.maximum(y), parents.tensors)


METHOD = Method("largest", largest, "the largest value of each element", is_elementwise=True)
'''
COMMAND = '''"""lbrx hello: a greeting."""


def add_arguments(parser):
    parser.add_argument("name")


def run(options):
    print(f"hello {options.name}")
    return 0
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, whose parent folder is first on the path of `ran`."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(ROOT / "lbrx/src/lbrx", tmp_path / "src/lbrx", ignore=ignored))


def ran(package: Path, *arguments: object) -> str:
    """What a Python program prints that finds the copy."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new))


def test_a_kernel_family_is_one_folder(package: Path) -> None:
    folder = package / "kernels" / "doubling"
    folder.mkdir()
    for name, text in FAMILY.items():
        (folder / name).write_text(text)
    ran(package, ROOT / "lbrx/scripts/record_headers.py")
    assert "float plus;  // added to each" in (folder / "records" / "doubling.h").read_text()
    program = """
import lbrx
x = lbrx.tensor([[1.0, 2.0], [3.0, 4.0]], device="metal").T
y = lbrx.apply("doubled", x, plus=0.5)
print(y.tolist(), lbrx.__file__)
print(lbrx.metal.stats()["kernels"])
"""
    shown, counts = ran(package, "-c", program).splitlines()
    assert shown == f"[[2.5, 6.5], [4.5, 8.5]] {package / '__init__.py'}"
    assert "'doubling:serial': 1" in counts


def test_a_merge_method_is_one_module(package: Path, tmp_path: Path) -> None:
    methods = package / "merging" / "methods"
    (methods / "largest.py").write_text(METHOD)
    place = methods / "__init__.py"
    start = "from lbrx.merging.methods.linear import METHOD as LINEAR\n"
    change(place, start, f"from lbrx.merging.methods.largest import METHOD as LARGEST\n{start}")
    change(place, "*(LINEAR, SLERP,", "*(LARGEST, LINEAR, SLERP,")
    program = f"""
import lbrx
for name, values in (("a", [1.0, 5.0]), ("b", [4.0, 2.0])):
    lbrx.save(f"{tmp_path}/{{name}}.safetensors", {{"w": lbrx.tensor(values)}})
models = [{{"model": f"{tmp_path}/{{name}}.safetensors"}} for name in "ab"]
print(lbrx.merge({{"merge_method": "largest", "models": models}})["w"].tolist())
"""
    assert ran(package, "-c", program) == "[4.0, 5.0]\n"


def test_a_subcommand_is_one_module(package: Path) -> None:
    (package / "cli" / "hello.py").write_text(COMMAND)
    place = package / "cli" / "__init__.py"
    change(place, '    "inspect": "show', '    "hello": "a greeting",\n    "inspect": "show')
    case = '        case "inspect":\n'
    change(
        place,
        case,
        f'        case "hello":\n            from lbrx.cli import hello as command\n{case}',
    )
    assert ran(package, "-m", "lbrx", "hello", "reader") == "hello reader\n"
    assert "a greeting" in ran(package, "-m", "lbrx", "--help")


def test_files_that_the_architecture_names_are_there() -> None:
    """A name may leave out folders that its section is about."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    sources = ("lbrx/src/lbrx", "softmetal/src/softmetal", "lbrx-video/src/lbrx_video")
    folders = [ROOT / source for source in sources]
    files = {str(path.relative_to(folder)) for folder in folders for path in folder.rglob("*")}
    names = set(re.findall(r"`([\w/]+\.(?:py|h|c|m|md|metal))`", text))
    assert len(names) > 100

    def is_there(name: str) -> bool:
        return (ROOT / name).exists() or any(f"/{each}".endswith(f"/{name}") for each in files)

    assert sorted(name for name in names if not is_there(name)) == []


def test_paragraphs_of_the_architecture_are_short() -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.M | re.S)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:- |\d+\. |\|))", text)
    long = [part.strip()[:80] for part in parts if len(part.strip().splitlines()) > 6]
    assert long == []
