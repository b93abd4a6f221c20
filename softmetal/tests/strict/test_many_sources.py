"""`python -m softmetal check` of many files, and the forms that tools read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softmetal.__main__ import main

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
RIGHT = HEAD + "kernel void right(device float* x [[buffer(3)]]) { x[0] = 1; }\n"
WRONG = HEAD + "kernel void wrong(device float* x [[buffer(0)]]) { x[0] = missing_name; }\n"
WARNS = HEAD + "kernel void warns(device float* x [[buffer(0)]]) { int i = 0; i == 1; x[i] = 1; }\n"
ABOUT_TYPES = HEAD + (  # an error with a note
    "void f(float x);\nkernel void noted(device float* x [[buffer(0)]]) { f(x); }\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    below = tmp_path / "a folder"
    below.mkdir()
    (tmp_path / "right.metal").write_text(RIGHT)
    (below / "wrong.metal").write_text(WRONG)
    (below / "warns.metal").write_text(WARNS)
    (below / "noted.metal").write_text(ABOUT_TYPES)
    (below / "other.txt").write_text("not a source")
    monkeypatch.chdir(tmp_path)
    return tmp_path


ALL = ["a folder/noted.metal", "a folder/warns.metal", "a folder/wrong.metal", "right.metal"]


@pytest.mark.parametrize(
    ("paths", "files"),
    [
        (["."], ALL),
        (["**/*.metal"], ALL),
        (["right.metal", "a folder"], [ALL[3], *ALL[:3]]),
        (["a folder/w*.metal", "a folder/wrong.metal"], ALL[1:3]),  # each once
    ],
)
def test_files_that_paths_name(folder, capsys, paths, files):
    main(["check", "--json", *paths])
    checked = json.loads(capsys.readouterr().out)
    assert sorted(each["file"] for each in checked) == sorted(files)
    assert [each["file"] for each in checked] == list(
        dict.fromkeys(each["file"] for each in checked)
    )


def test_a_line_for_each_of_many(folder, capsys):
    assert main(["check", "right.metal", "a folder"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "right.metal: 1 kernel",
        "a folder/noted.metal: does not compile",
        "a folder/warns.metal: 1 kernel",
        "a folder/wrong.metal: does not compile",
    ]
    assert "a folder/wrong.metal:3:59: error: use of undeclared identifier 'missing_name'" in err
    assert main(["check", "right.metal", "a folder/warns.metal"]) == 0


def test_json(folder, capsys):
    assert main(["check", "--json", "right.metal", "a folder/wrong.metal"]) == 1
    right, wrong = json.loads(capsys.readouterr().out)
    buffer = {"name": "x", "kind": "buffer", "index": 3, "type": "device float *"}
    assert right == {
        "file": "right.metal",
        "compiles": True,
        "kernels": [{"name": "right", "parameters": [buffer]}],
        "diagnostics": [],
    }
    assert not wrong["compiles"]
    (found,) = wrong["diagnostics"]
    assert (found["line"], found["column"], found["severity"]) == (3, 59, "error")
    assert "missing_name" in found["message"]


def test_sarif(folder, capsys):
    assert main(["check", "--sarif", "."]) == 1
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    results = {}
    for result in run["results"]:
        place = result["locations"][0]["physicalLocation"]
        results[place["artifactLocation"]["uri"]] = result
        assert result["ruleId"] in rules
        assert place["region"].keys() == {"startLine", "startColumn"}
    assert results.keys() == {f"a%20folder/{name}.metal" for name in ("noted", "warns", "wrong")}
    levels = {name.split("/")[1]: result["level"] for name, result in results.items()}
    assert levels == {"noted.metal": "error", "warns.metal": "warning", "wrong.metal": "error"}
    (note,) = results["a%20folder/noted.metal"]["relatedLocations"]
    assert "candidate function" in note["message"]["text"]
    assert note["physicalLocation"]["region"]["startLine"] == 3


def test_github(folder, capsys):
    assert main(["check", "--github", "a folder/wrong.metal", "a folder/warns.metal"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("::error file=a folder/wrong.metal,line=3,col=59::use of undeclared")
    assert lines[1].startswith("::warning file=a folder/warns.metal,line=3,col=")
    Path("per%cent, and colon:.metal").write_text(WRONG)
    main(["check", "--github", "per%cent, and colon:.metal"])
    assert capsys.readouterr().out.startswith(
        "::error file=per%25cent%2C and colon%3A.metal,line=3"
    )


@pytest.mark.parametrize("path", ["missing.metal", "*.missing", "empty", "a folder/\0"])
def test_a_path_without_a_source(folder, capsys, path):
    Path("empty").mkdir()
    assert main(["check", "right.metal", path]) == 1
    assert path.replace("\0", "\\x00") in capsys.readouterr().err


def test_forms_exclude_each_other(folder, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["check", "--json", "--sarif", "right.metal"])
    assert caught.value.code == 2
