"""What a start does not import: each module costs every program that does not need it."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import lbrx

FORMATS = "lbrx.files.formats.containers.pytorch lbrx.files.formats.containers.onnx lbrx.files.formats.containers.npz lbrx.files.formats.containers.safetensors"
LIBRARIES = "jinja2 tokenizers rich ziglang softmetal safetensors torch importlib.metadata"
NUMBERS = "numpy ml_dtypes dataclasses inspect logging lbrx.namespace lbrx.tensors lbrx.ops"
COMMAND = "import lbrx.cli, contextlib\nwith contextlib.suppress(SystemExit): lbrx.cli.main([{!r}])"
ONE_NETWORK = "from lbrx.models import architectures; architectures.find('phi3')"
OPENED = "import lbrx; list(lbrx.open_model({gguf!r}))"
LOADED = "import lbrx; lbrx.load({gguf!r})"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import lbrx", f"{NUMBERS} argparse lbrx.entry_points"),
        (
            "import lbrx; lbrx.float32",
            f"lbrx.models lbrx.metal lbrx.kernels lbrx.files.formats {LIBRARIES}",
        ),
        (COMMAND.format("--version"), NUMBERS),
        (COMMAND.format("--help"), NUMBERS),
        (
            "import lbrx.cli.merge",
            f"lbrx.namespace lbrx.models lbrx.metal lbrx.files.stored.adapters lbrx.files.formats.imatrix "
            f"lbrx.files.formats.tokenizers lbrx.convert.verify ray fsspec yaml difflib {LIBRARIES}",
        ),
        (
            "import lbrx.cli.generate",
            f"lbrx.metal lbrx.files.formats.writing {FORMATS} {LIBRARIES}",
        ),
        (
            ONE_NETWORK,
            "lbrx.models.architectures.gemma2 lbrx.models.architectures.qwen2 lbrx.metal",
        ),
        (OPENED, f"lbrx.models lbrx.metal lbrx.files.formats.writing {FORMATS} {LIBRARIES}"),
        (LOADED, f"lbrx.models lbrx.metal lbrx.files.formats.writing {FORMATS} {LIBRARIES}"),
    ],
)
def test_a_start_imports_what_it_needs(code, absent, tmp_path):
    path = tmp_path / "m.gguf"
    lbrx.save(path, {"a": lbrx.ones(4, device="cpu")}, {"general.name": "a"})
    program = f"{code.format(gguf=str(path))}\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not set(absent.split()) & set(done.stderr.split())


def test_a_folder_that_an_update_left_behind_is_not_a_name(tmp_path):
    """Folders of earlier versions keep their compiled modules when git moves the others."""
    for name in ("tensor", "nothing"):
        (tmp_path / name / "__pycache__").mkdir(parents=True)
    program = (
        f"import lbrx; lbrx.__path__.append({str(tmp_path)!r})\n"
        "print(lbrx.tensor([1, 2]).tolist(), hasattr(lbrx, 'nothing'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[1, 2] False\n"


def test_no_function_has_the_name_of_a_package():
    packages = {each.name for each in pkgutil.iter_modules(lbrx.__path__)}
    assert packages > {"tensors", "kernels", "ops", "merging"}
    assert not [name for name in packages & {*lbrx.__all__} if callable(getattr(lbrx, name))]


def test_a_star_import_has_all_public_names():
    program = "from lbrx import *; import lbrx; print({*lbrx.__all__} - {*globals()})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_a_module_that_fails_is_not_taken_for_a_missing_name():
    """The error names the module that is missing below ours."""
    program = "import sys; sys.modules['zipfile'] = None; import lbrx; lbrx.convert"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "import of zipfile halted" in done.stderr
