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
import site_links

ROOT = Path(__file__).parent.parent


def test_nothing_is_wrong():
    assert list(check_docs.problems()) == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_files_that_a_page_names_exist(page):
    named = set(re.findall(r"`([\w./-]+\.(?:py|h|c|m|md|toml))`", (ROOT / page).read_text()))
    folders = [each for each in ROOT.glob("[a-z]*") if each.is_dir()]
    files = {f"/{each.relative_to(ROOT)}" for folder in folders for each in folder.rglob("*.*")}
    files |= {f"/{each.name}" for each in ROOT.iterdir()}
    missing = {each for each in named if not any(file.endswith(f"/{each}") for file in files)}
    assert missing <= {"executors/NAME.py"}


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


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        ('<a href="gone.html">', "there is no such file"),
        ('<a class="x" href="/gone.html">', "there is no such file"),
        ('<img alt="" src="gone.png">', "there is no such file"),
        ('<a href="#gone">', "there is no such anchor"),
        ('<a href="sub/b.html#gone">', "there is no such anchor"),
        ('<a href="sub/b.html#h%C3%A9re">', None),
        ('<a href="/sub/b.html?x=1#h&eacute;re">', None),
        ('<a href="https://example.org/gone.html">', None),
        ('<a href="data:,gone">', None),
        ("<code>href=&quot;gone.html&quot;</code>", None),
    ],
)
def test_links_of_the_built_site(tmp_path, element, problem):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.html").write_text('<h1 id="h&eacute;re">', "utf-8")
    (tmp_path / "a.html").write_text(element, "utf-8")
    found = list(site_links.dead_links(tmp_path))
    assert [each.rpartition(": ")[2] for each in found] == ([problem] if problem else [])


@pytest.mark.full
def test_the_build_refuses_what_leads_nowhere(tmp_path):
    """Also with --quiet, which alone makes MkDocs forget its warnings before `strict` counts."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} is not installed: make .venv/.docs")
    links = "[a](gone.md)\n[b](#gone)\n[c][lbrx.gone]\n"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f'# Home\n\n{links}<a href="gone.html">d</a>\n')
    (tmp_path / "docs" / "unlisted.md").write_text("# Unlisted\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    settings = re.sub(r"(docs/scripts|\w+/src)\b", lambda found: str(ROOT / found[0]), settings)
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav: [index.md]\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    told = (
        "'gone.md', but",
        "'#gone', but",
        "target 'lbrx.gone'",
        "gone.html: there",
        "unlisted.md",
    )
    assert [each for each in told if each not in done.stderr] == []


@pytest.mark.parametrize(
    ("header", "whole"), [("| a | b |", True), ("| | b |", False), ("| a ||", False)]
)
def test_columns_have_headings(pages, header, whole):
    (pages / "docs" / "index.md").write_text(f"# Home\n\n{header}\n|---|--:|\n| 1 | |\n")
    problem = f"docs/index.md: {header}: give each column a heading"
    assert list(check_docs.table_problems()) == ([] if whole else [problem])


def test_a_public_name_without_a_text(monkeypatch):
    import lbrx

    def made(x): ...

    made.__module__ = "lbrx.tensors.functions"
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
