"""The documentation's own checks find what they are for, and its tutorials do what they say."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lbrx import cli, quant

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "scripts"))

import check_docs
import generate_pages
import layout_pictures
import public_names
import settings_page

ROOT = Path(__file__).parent.parent


def test_nothing_is_wrong():
    assert list(check_docs.problems()) == []


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """A checkout with one page that is in the navigation."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n## A part\n")
    (tmp_path / "README.md").write_text("[home](docs/index.md#a-part)\n")
    (tmp_path / "mkdocs.yml").write_text("nav:\n  - Home: index.md\n")
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    monkeypatch.setattr(check_docs, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(check_docs, "generated", dict)
    return tmp_path


def test_a_checkout_without_problems(pages):
    assert [*check_docs.page_problems(), *check_docs.link_problems()] == []


def test_a_page_that_is_not_in_the_navigation(pages):
    (pages / "docs" / "other.md").write_text("# Other\n")
    assert list(check_docs.page_problems()) == ["mkdocs.yml: add other.md to nav"]


def test_a_page_that_does_not_exist(pages):
    (pages / "docs" / "index.md").unlink()
    assert list(check_docs.page_problems()) == ["mkdocs.yml: there is no page index.md"]


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("[x](gone.md)", "docs/index.md: gone.md: there is no such file"),
        ("![x](gone.svg)", "docs/index.md: gone.svg: there is no such file"),
        ("[x](#gone)", "docs/index.md: #gone: there is no such heading"),
        ("[x](../README.md#gone)", "docs/index.md: ../README.md#gone: there is no such heading"),
        ("`[x](gone.md)`", None),
        ("[x](https://example.org/gone)", None),
        ("[x](#a-part)", None),
    ],
)
def test_links(pages, link, problem):
    (pages / "docs" / "index.md").write_text(f"# Home\n\n## A part\n\n{link}\n")
    check_docs.anchors.cache_clear()
    assert list(check_docs.link_problems()) == ([problem] if problem else [])


def test_a_public_name_without_a_text(monkeypatch):
    import lbrx

    def made(x): ...

    made.__module__ = "lbrx.tensor.functions"
    monkeypatch.setattr(lbrx, "made", made, raising=False)
    monkeypatch.setattr(lbrx, "__all__", [*lbrx.__all__, "made"])
    assert "lbrx.made: it has no docstring" in list(check_docs.name_problems())
    assert "reference/python/functions.md" in generate_pages.stale()


def test_a_package_that_no_page_has(monkeypatch):
    kept = tuple(name for name in public_names.EXPORTING if name != "lbrx.quant")
    monkeypatch.setattr(public_names, "EXPORTING", kept)
    assert public_names.missing_packages() == ["lbrx.quant"]


def test_every_variable_is_found():
    assert {"LBRX_KERNEL", "SOFTMETAL_CHECK", "LBRX_FUSION"} <= settings_page.used() | {
        name for name, _ in settings_page.variables()
    }
    assert settings_page.USED.findall('os.environ.get("LBRX_NEW")') == ["LBRX_NEW"]


def test_bits_of_blocks():
    """Q8_0: a scale of 16 bits for all values, then a byte for each. Q4_0: halves of bytes."""
    eight = layout_pictures.segments(quant.find("q8_0"))
    assert [each.values for each in eight if each.byte >= 2] == [(i,) for i in range(32)]
    assert all(len(each.values) == 32 for each in eight if each.byte < 2)
    four = layout_pictures.segments(quant.find("q4_0"))
    low = [each.values[0] for each in four if each.byte >= 2 and each.first == 0]
    high = [each.values[0] for each in four if each.byte >= 2 and each.first == 4]
    assert (low, high) == (list(range(16)), list(range(16, 32)))


def test_commands_of_the_tutorial_are_understood():
    page = (ROOT / "docs" / "tutorials" / "language_models.md").read_text()
    lines = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()
    commands = [line for line in lines if line.startswith("lbrx ")]
    assert len(commands) > 8
    for line in commands:
        _, command, *arguments = shlex.split(line)
        parser = argparse.ArgumentParser()
        cli._find(command).add_arguments(parser)
        parser.parse_args(arguments)


def test_the_tutorial_of_metal_tests(tmp_path):
    """continuous_integration.md: the second test fails with the finding that is printed."""
    page = (ROOT / "docs" / "tutorials" / "continuous_integration.md").read_text()
    for name in ("scale.metal", "test_scale.py"):
        text = re.search(rf"Save this as `{name}`.*?```\w+\n(.*?)```", page, re.DOTALL)[1]
        (tmp_path / name).write_text(text)
    python = [sys.executable, "-m"]
    checked = [*python, "softmetal", "check", "scale.metal"]
    subprocess.run(checked, cwd=tmp_path, check=True, capture_output=True)
    run = [*python, "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "test_scale.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout
    for finding in re.findall(r"^bounds: .*$", page, re.MULTILINE):
        assert finding in done.stdout


def test_the_example_of_core_ml(tmp_path, monkeypatch):
    """softcoreml.md: loading and predicting, with a model that counts in a state."""
    ct = pytest.importorskip("coremltools")
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import types

    half = {"shape": (2,), "dtype": types.fp16}
    specs = [Builder.TensorSpec(**half), Builder.StateTensorSpec(**half)]

    @Builder.program(input_specs=specs, opset_version=ct.target.iOS18)
    def net(x, cache):
        total = Builder.add(x=Builder.read_state(input=cache), y=x)
        return Builder.coreml_update_state(state=cache, value=total, name="out")

    target = ct.target.iOS18
    made = ct.convert(net, minimum_deployment_target=target, skip_model_load=True)
    made.save(str(tmp_path / "net.mlpackage"))
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "softcoreml.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {"x": np.ones(2, np.float16)}
    exec(block, names)
    assert names["outputs"]["out"].tolist() == names["states"]["cache"].tolist() == [1, 1]
