"""Models at URLs: only what is read is fetched, and the results are those of local files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.convert import Settings, convert, make_plan, perform
from lbrx.convert.fingerprint import fingerprint
from lbrx.errors import FormatError
from lbrx.files.formats import remote_files
from lbrx.models.loading import model_path

fsspec = pytest.importorskip("fsspec")
NAMES = [f"model.layers.{i}.weight" for i in range(4)]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LBRX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_files, "_KNOWN", {})
    return tmp_path / "cache"


@pytest.fixture
def host(tmp_path, rng, cache, request):
    """A model in a local folder and at memory://; `host.fetched` are the ranges that were read."""
    tensors = {name: rng.standard_normal((50, 20)).astype(np.float32) for name in NAMES}
    lbrx.save(tmp_path / "local", tensors, format="safetensors", config={"model_type": "odd"})
    memory = fsspec.filesystem("memory")
    root = f"/{abs(hash(request.node.nodeid))}/my model"
    for file in (tmp_path / "local").iterdir():
        memory.pipe_file(f"{root}/{file.name}", file.read_bytes())
    memory.pipe_file(f"{root}/pytorch_model.bin", b"not needed")
    fetched = []
    read = type(memory).cat_file

    def counted(self, path, start=None, end=None, **options):
        fetched.append((path.rpartition("/")[2], start, end))
        return read(self, path, start, end, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(memory), "cat_file", counted)
        yield type(
            "Host",
            (),
            {
                "url": f"memory:/{root}",
                "root": root,
                "fetched": fetched,
                "tensors": tensors,
                "system": memory,
            },
        )
    memory.rm(root, recursive=True)


def test_only_what_is_read_is_fetched(host, cache):
    path = model_path(host.url)
    assert path.name == "my_model"
    assert not any("pytorch" in name for name, *_ in host.fetched)
    host.fetched.clear()
    model = lbrx.open_model(path)
    assert sorted(model) == NAMES
    assert host.fetched == []
    for _ in range(2):
        np.testing.assert_array_equal(model[NAMES[2]].numpy(), host.tensors[NAMES[2]])
    ((name, start, end),) = host.fetched
    assert (name, end - start) == ("model.safetensors", 4000)
    assert os.stat(path / "model.safetensors").st_size > 16000


def test_what_is_there_is_kept_for_the_next_process(host, monkeypatch):
    lbrx.open_model(model_path(host.url))[NAMES[0]].numpy()
    monkeypatch.setattr(remote_files, "_KNOWN", {})
    host.fetched.clear()
    again = lbrx.open_model(model_path(host.url))
    np.testing.assert_array_equal(again[NAMES[0]].numpy(), host.tensors[NAMES[0]])
    assert host.fetched == []


def test_conversions_and_merges_are_those_of_local_files(host, tmp_path):
    settings = Settings(quantize="f16")
    convert(tmp_path / "local", tmp_path / "a", settings, device="cpu")
    convert(model_path(host.url), tmp_path / "b", settings, device="cpu")
    given = {"merge_method": "linear", "parameters": {"weight": 0.5}}
    for name, source in (("c", str(tmp_path / "local")), ("d", host.url)):
        models = [{"model": source}, {"model": str(tmp_path / "local")}]
        lbrx.merge({**given, "models": models}, tmp_path / name, device="cpu", report=False)
    for first, second in (("a", "b"), ("c", "d")):
        read = [(tmp_path / n / "model.safetensors").read_bytes() for n in (first, second)]
        assert read[0] == read[1]


def test_the_fingerprint_does_not_change_while_a_copy_is_filled(host, tmp_path):
    plan = make_plan(model_path(host.url), tmp_path / "out", Settings())
    before = fingerprint(plan, "cpu", 64)
    perform(plan, device="cpu")
    assert fingerprint(plan, "cpu", 64) == before


def test_a_changed_file_is_another_copy(host):
    first = model_path(host.url)
    host.system.pipe_file(f"{host.root}/config.json", b'{"model_type": "another"}')
    assert model_path(host.url) != first


def test_another_process_has_its_own_copy(host, tmp_path, monkeypatch):
    """A worker gets the path that the driver has, and uses its own cache."""
    path = model_path(host.url) / "model.safetensors"
    info = lbrx.open_model(path).files.tensors[NAMES[1]]
    remotes = remote_files.remotes_among([path, Path("elsewhere")])
    assert list(remotes) == [path]
    monkeypatch.setattr(remote_files, "_KNOWN", {})
    monkeypatch.setenv("LBRX_CACHE", str(tmp_path / "worker"))
    remote_files.adopt(remotes)
    model = lbrx.StoredModel(lbrx.open_model(tmp_path / "local").files, {"x": info})
    np.testing.assert_array_equal(model["x"].numpy(), host.tensors[NAMES[1]])
    assert remote_files.local_path(path).is_relative_to(tmp_path / "worker")


def test_refusals(host, cache, monkeypatch):
    for url, message in {
        "memory://nowhere/at/all": "cannot be read",
        "nosuchprotocol://x/y": "no models are read from such URLs: give a local path, or a URL",
        host.url.replace("my model", ""): "has no files of a model",
    }.items():
        with pytest.raises(FormatError, match=message):
            model_path(url)
    model = lbrx.open_model(model_path(host.url))
    host.system.pipe_file(f"{host.root}/model.safetensors", b"cut short")
    with pytest.raises(FormatError, match="it has changed"):
        model[NAMES[3]]
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(FormatError, match="pip install"):
        model_path(host.url)


NOT_READ = """
reference://x jupyter://x tar://x zip://x.zip libarchive://x simplecache://x blockcache://x dir://x
dask://x git://x github://o:r@main/x generic://x async_wrapper://x data://x local://x :// ://x S3://x
simplecache::s3://x/y s3://x::https://y/z memory://a::reference://b reference+https://x .://x
""".split()


@pytest.mark.parametrize("url", NOT_READ)
def test_schemes_that_are_not_read(url, monkeypatch):
    """They are refused before fsspec sees them."""
    monkeypatch.setattr(fsspec.core, "url_to_fs", None)
    with pytest.raises(FormatError, match="no models are read from such URLs") as found:
        model_path(url)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("place", ["url_to_fs", "info", "ls", "cat_file"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TypeError("missing 1 argument:\n'fo'"), "missing 1 argument: 'fo': give the URL"),
        (AttributeError("'NoneType'"), "NoneType"),
        (KeyError("x"), "'x': give"),
        (ImportError("Install s3fs"), "Install s3fs: install the package it needs"),
        (TimeoutError(), "TimeoutError: give the URL"),
        (Exception("no credentials " * 90), "no credentials"),
    ],
)
def test_errors_of_file_systems(host, place, error, message):
    def fails(*arguments, **options):
        raise error

    owner = fsspec.core if place == "url_to_fs" else type(host.system)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, place, fails)
        with pytest.raises(FormatError, match=f"cannot be read: .*{message}") as found:
            model_path(host.url)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500


def test_a_host_that_does_not_say_sizes(host):
    listed = type(host.system).ls

    def without_sizes(*arguments, **options):
        return [{**one, "size": None} for one in listed(*arguments, **options)]

    problem = r"does not say the size of .*: download the model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(host.system), "ls", without_sizes)
        with pytest.raises(FormatError, match=problem):
            model_path(host.url)
