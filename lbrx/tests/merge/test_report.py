"""The report of a merge: numbers of tensors and layers, and a page that is well-formed and safe."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest
from merge_checks import linear, merged

import lbrx
from lbrx.merging.report import MergeReport, TensorRecord
from lbrx.merging.statistics import MergeSums, ParentSums, merge_sums

HOSTILE = "<script src='http://example.com/x.js'>&\"</script>"
VOID = {"meta", "path", "circle", "line", "rect"}


class Checked(HTMLParser):
    """Fails on tags that do not nest, and collects tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.tags, self.links, self.text = [], set(), [], ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID or tag == "rect" or tag == "circle":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def report(rng, base=True, layers=3, models=("one", "two"), title="test"):
    records = []
    names = [
        f"model.layers.{n}.{k}.weight"
        for n in range(layers)
        for k in ("mlp.up_proj", "self_attn.q_proj")
    ]
    for name in ["model.embed_tokens.weight", *names]:
        b, x, y = (lbrx.tensor(rng.standard_normal((6, 8)), device="cpu") for _ in range(3))
        sums = merge_sums((x + y) / 2, [x, y], b if base else None)
        records.append(TensorRecord(name, (6, 8), "linear", (0, 1), sums))
    return MergeReport(title, models, "base" if base else None, f"a: {HOSTILE}", tuple(records))


@pytest.mark.parametrize("base", [True, False])
def test_layers_are_the_sums_of_their_tensors(base, rng):
    numbers = report(rng, base).numbers()
    assert [layer["layer"] for layer in numbers["layers"]] == [0, 1, 2]
    own = [t for t in numbers["tensors"] if t["layer"] == 1]
    assert [t["kind"] for t in own] == ["mlp.up_proj", "self_attn.q_proj"]
    layer = numbers["layers"][1]
    assert layer["values"] == 96
    assert layer["norm"] == pytest.approx(np.hypot(*(t["norm"] for t in own)))
    assert layer["sign_conflicts"] == pytest.approx(np.mean([t["sign_conflicts"] for t in own]))
    assert (layer["density"] is not None) == base
    assert numbers["total"]["values"] == 7 * 48
    wanted = sum(t["parents"][1]["norm"] ** 2 for t in numbers["tensors"]) ** 0.5
    assert numbers["total"]["parents"][1]["norm"] == pytest.approx(wanted)


@pytest.mark.parametrize("base", [True, False])
@pytest.mark.parametrize("layers", [0, 1, 40])
def test_the_page_is_whole_and_needs_nothing_else(base, layers, rng):
    files = report(rng, base, layers).files()
    page = Checked(files["merge-report.html"].decode())
    assert not page.links
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "prefers-color-scheme: dark" in page.text
    assert ("svg" in page.tags) == (layers > 0)
    assert json.loads(files["merge-report.json"])["tensors"][0]["name"] in page.text


def test_text_from_files_stays_text(rng):
    made = report(rng, models=(HOSTILE, HOSTILE + "2"), title=HOSTILE)
    bad = TensorRecord(f"model.layers.0.{HOSTILE}", (6, 8), HOSTILE, (0, 1), made.records[0].sums)
    made = MergeReport(made.title, made.models, HOSTILE, HOSTILE, (bad, *made.records))
    page = Checked(made.files()["merge-report.html"].decode())
    assert "script" not in page.tags
    assert HOSTILE in page.text
    assert json.loads(made.files()["merge-report.json"])["configuration"] == HOSTILE


def test_a_tensor_with_only_some_of_the_models(rng):
    sums = MergeSums(4, 4.0, 0, (ParentSums(9.0, 6.0),))
    records = (TensorRecord("model.layers.0.x.weight", (4,), "passthrough", (1,), sums),)
    numbers = MergeReport("t", ("a", "b"), None, "", records).numbers()
    assert [parent["model"] for parent in numbers["tensors"][0]["parents"]] == [1]
    assert [parent["cosine"] for parent in numbers["layers"][0]["parents"]] == [None, 1.0]


def test_numbers_that_are_not_finite_are_null():
    sums = MergeSums(1, float("inf"), 0, (ParentSums(float("nan"), float("nan")),))
    made = MergeReport("t", ("a",), None, "", (TensorRecord("x", (1,), "linear", (0,), sums),))
    numbers = json.loads(made.files()["merge-report.json"])
    assert numbers["tensors"][0]["norm"] is None
    assert numbers["tensors"][0]["parents"][0]["norm"] is None


def test_a_merge_writes_its_report(model, tmp_path):
    """Into the folder that it writes, or beside its file."""
    values = [model(name, near=None) for name in ("a", "b")]
    config = linear((tmp_path / "a", 3), (tmp_path / "b", 1))
    merged(config, tmp_path / "out")
    numbers = json.loads((tmp_path / "out" / "merge-report.json").read_text())
    assert numbers["models"] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert "merge_method: linear" in numbers["configuration"]
    assert numbers["title"] == "out"
    assert {t["name"] for t in numbers["tensors"]} == values[0].keys()
    name = "model.layers.1.mlp.down_proj.weight"
    (found,) = (t for t in numbers["tensors"] if t["name"] == name)
    x, y = (v[name].astype(np.float64).reshape(-1) for v in values)
    m = 0.75 * x + 0.25 * y
    assert found["norm"] == pytest.approx(np.linalg.norm(m), rel=1e-5)
    assert found["sign_conflicts"] == np.count_nonzero(x * y < 0) / x.size
    wanted = m @ y / np.linalg.norm(m) / np.linalg.norm(y)
    assert found["parents"][1]["cosine"] == pytest.approx(wanted, abs=1e-5)
    Checked((tmp_path / "out" / "merge-report.html").read_text())
    lbrx.merge(config, tmp_path / "one.gguf", device="cpu")
    again = json.loads((tmp_path / "one.merge-report.json").read_text())
    assert {t["name"] for t in again["tensors"]} == values[0].keys()
    (same,) = (t for t in again["tensors"] if t["name"] == name)
    assert same["norm"] == pytest.approx(found["norm"], rel=1e-6)
    merged(config, tmp_path / "without", report=False)
    assert not (tmp_path / "without" / "merge-report.json").exists()
