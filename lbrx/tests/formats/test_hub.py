"""Models of Hugging Face's hub: the cache is read as its libraries write it, and downloads are those
of what is read, from a hub on the loopback."""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tiny_models import config, shapes

import lbrx
from lbrx import cli
from lbrx.convert import convert
from lbrx.errors import FormatError, LbrxError
from lbrx.files.formats import hub
from lbrx.files.formats.packaged_models import model_path

COMMIT, OTHER = "a" * 40, "b" * 40


def files_of(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*.*")}


@pytest.fixture(scope="module")
def contents(tmp_path_factory) -> dict[str, bytes]:
    """The files of a repository: weights in two shards, and what lbrx does not read."""
    folder = tmp_path_factory.mktemp("source") / "model"
    tensors = {f"layer.{i}": np.full((40, 10), i, np.float32) for i in range(4)}
    lbrx.save(
        folder, tensors, format="safetensors", config={"model_type": "odd"}, max_shard_size=4000
    )
    found = files_of(folder)
    assert len(found) == 4
    beside = {"tokenizer.json": b"{}", "README.md": b"#", "consolidated.safetensors": b"x"}
    return found | beside | {"onnx/model.onnx": b"x", "training_args.bin": b"x"}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    lbrx.save(path, {"x": np.ones((2, 32), np.float32)}, {"general.name": "m"})
    return path.read_bytes()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def fill(cache: Path, repository: str, files: dict[str, bytes], commit=COMMIT, ref="main") -> Path:
    """A repository in the cache: blobs, links to them in a snapshot, and a reference to it."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for number, (name, content) in enumerate(files.items()):
        blob = folder / "blobs" / f"{number:040x}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
    (folder / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / ref).write_text(commit)
    return snapshot


@contextmanager
def serving(repositories: dict[str, dict[str, bytes]], refusal: str = ""):
    """A hub with repositories, or one that refuses all with an error code. Gives its address and
    the list of what was downloaded."""
    sent = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, status, body=b"", **headers):
            self.send_response(status)
            for key, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(key.replace("_", "-"), str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self):
            parts = self.path.strip("/").split("/")
            if refusal:
                return self.answer(401, X_Error_Code=refusal)
            if parts[:2] == ["api", "models"]:
                files = repositories.get("/".join(parts[2:4]))
                if files is None:
                    return self.answer(401, X_Error_Code="RepoNotFound")
                listed = [{"rfilename": name} for name in [*files, "../../bad.safetensors"]]
                about = {"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": listed}
                return self.answer(200, json.dumps(about).encode())
            assert parts[2:4] == ["resolve", COMMIT]
            name = "/".join(parts[4:])
            body = repositories["/".join(parts[:2])][name]
            if self.command == "GET":
                sent.append(name)
            return self.answer(200, body, ETag=f'"{hash(name):x}"', X_Repo_Commit=COMMIT)

        do_HEAD = do_GET  # noqa: N815

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
            patch.setenv("NO_PROXY", "127.0.0.1")
            patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
            yield sent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("org/name", ("org/name", "main", None)),
        ("hf://org/name", ("org/name", "main", None)),
        ("hf://org/name@v1.0", ("org/name", "v1.0", None)),
        ("org/Name-3.2_x@refs/pr/7", ("org/Name-3.2_x", "refs/pr/7", None)),
        ("org/name:q4_k_m", ("org/name", "main", "q4_k_m")),
        ("org/name@v1:a/b-Q8_0.gguf", ("org/name", "v1", "a/b-Q8_0.gguf")),
        ("hf://org/name/a/b.gguf", ("org/name", "main", "a/b.gguf")),
        *((text, None) for text in ("name", "a/b/c", "./a", "../a", "/a/b", "a/", "~/a", "a/..")),
        *(
            (text, None)
            for text in ("a/b\nc", "a/b@../c", "a/b:../c", "a/b:/c", "s3://a/b", "a/.b")
        ),
    ],
)
def test_names(text, parts):
    found = hub.parse(text)
    assert parts == (found and (found.repository, found.revision, found.file))


@pytest.mark.parametrize("text", ["hf://", "hf://a", "hf://datasets/a/b", "hf://a/b/../../c"])
def test_names_that_are_not_those_of_models(text):
    with pytest.raises(FormatError, match=r"is not the name of a model: give hf://"):
        hub.parse(text)


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HUB_CACHE": "/x/a", "HF_HOME": "/x/b"}, "/x/a"),
        ({"HF_HOME": "$PLACE/b"}, "/x/b/hub"),
        ({"XDG_CACHE_HOME": "/x/c"}, "/x/c/huggingface/hub"),
        ({"HOME": "/x"}, "/x/.cache/huggingface/hub"),
    ],
)
def test_the_place_of_the_cache(variables, place, monkeypatch):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"PLACE": "/x"} | variables).items():
        monkeypatch.setenv(name, value)
    assert hub.cache() == Path(place)


def test_the_cache_needs_neither_network_nor_library(cache, contents, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    first = fill(cache, "org/name", contents)
    second = fill(cache, "org/name", contents, OTHER, "v1")
    for name in ("org/name", "hf://org/name", "org/name@main", f"org/name@{COMMIT}"):
        assert model_path(name) == first
    assert model_path("org/name@v1") == second
    assert float(lbrx.open_model(model_path("org/name"))["layer.3"].numpy()[0, 0]) == 3
    with pytest.raises(FormatError, match=r"^org/name@v2 is not in the cache .*lbrx\[hub\]"):
        model_path("org/name@v2")


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (("config.json",), "has no weights of a format that lbrx reads"),
        (("config.json", "model.safetensors.index.json"), "is missing"),
        (("model.safetensors.index.json", "model-00001-of-00002.safetensors"), "is missing"),
        (("model-00002-of-00002.safetensors",), "model-00001-of-00002.safetensors is missing"),
    ],
)
def test_an_incomplete_model_is_not_taken(kept, message, cache, contents):
    fill(cache, "org/name", {name: contents[name] for name in kept})
    with pytest.raises(FormatError, match=rf"^org/name is not complete in the cache \(.*{message}"):
        model_path("org/name")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("org/name:q4_k_m", "m-Q4_K_M.gguf"),
        ("org/name:Q8_0", "big/m.Q8_0-00001-of-00002.gguf"),
        ("org/name:f16/m.gguf", "f16/m.gguf"),
        ("hf://org/name/m-Q4_K.gguf", "m-Q4_K.gguf"),
        ("org/name:q4_k", "m-Q4_K.gguf"),
    ],
)
def test_one_of_several_files(name, file, cache, gguf):
    files = ["m-Q4_K_M.gguf", "m-Q4_K.gguf", "m-Q2_K.gguf", "f16/m.gguf"]
    files += [f"big/m.Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    with serving({"org/name": dict.fromkeys(files, gguf)}) as sent:
        path = cache / "models--org--name/snapshots" / COMMIT / file
        for _ in range(2):  # the second time without the hub
            assert model_path(name) == path
    assert sent == [f for f in files if f == file or ("00001" in file and f.startswith("big"))]


def test_which_of_several_files_is_asked(cache, gguf):
    files = {"m-Q4_K_M.gguf": gguf, "m-Q8_0.gguf": gguf}
    with serving({"org/name": files}) as sent:
        with pytest.raises(
            FormatError, match=r"give org/name:NAME with a name of m-Q4_K_M\.gguf, "
        ):
            model_path("org/name")
        with pytest.raises(FormatError, match=r"has no file q5_0: give one of m-Q4_K_M\.gguf, m-Q"):
            model_path("org/name:q5_0")
    assert sent == []


def test_a_download_has_what_is_read(cache, contents):
    with serving({"org/name": contents}) as sent:
        path = model_path("org/name")
        assert model_path("org/name") == path
    read = [name for name in contents if name.startswith(("model", "config", "tokenizer."))]
    assert sorted(sent) == sorted(read)
    assert files_of(path) == {name: contents[name] for name in read}
    assert sorted(lbrx.open_model(path)) == [f"layer.{i}" for i in range(4)]
    assert model_path(f"org/name@{COMMIT}") == path
    assert {p.name for p in cache.rglob("*bad*")} == set()


def test_a_download_goes_on(cache, contents):
    """What an interrupted download has written is not fetched again."""
    fill(cache, "org/name", {"config.json": contents["config.json"]})
    with serving({"org/name": contents}) as sent:
        model_path("org/name")
    assert "config.json" not in sent
    assert "tokenizer.json" in sent


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ("RepoNotFound", "the hub has no model org/name that you may read: check the name"),
        ("GatedRepo", "has conditions that were not accepted: accept its conditions at https://"),
        ("RevisionNotFound", "org/name has no revision v1: give a branch, tag or commit"),
    ],
)
def test_what_the_hub_refuses(refusal, message, cache):
    with serving({}, refusal), pytest.raises(FormatError, match=message):
        model_path("hf://org/name@v1")


def test_without_network(cache):
    with pytest.raises(
        FormatError, match=r"^org/name is not in .*cannot be downloaded \(.*refused"
    ):
        model_path("org/name")


def test_commands_without_network_end_with_one_line(cache, capsys):
    for given in (["generate", "-p", "x"], ["inspect"], ["convert", "out"], ["plan"]):
        assert cli.main([given[0], "hf://nobody/nothing", *given[1:]]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("lbrx: hf://nobody/nothing is not in the cache ")


def test_models_and_adapters_of_the_hub(cache, tmp_path, monkeypatch):
    """A merge takes both, and what is written has the repository's name, not a commit's."""
    monkeypatch.chdir(tmp_path)
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes("llama").items()}
    lbrx.save("model", tensors, format="safetensors", config=config("llama"))
    query = "model.layers.0.self_attn.q_proj"
    factors = {
        f"base_model.model.{query}.lora_A.weight": np.ones((1, 16), np.float32),
        f"base_model.model.{query}.lora_B.weight": np.ones((16, 1), np.float32),
    }
    lbrx.save("lora/adapter_model.safetensors", factors)
    settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 2}
    Path("lora/adapter_config.json").write_text(json.dumps(settings))
    kept = {name: files_of(tmp_path / name) for name in ("model", "lora")}
    with serving({f"org/{name}-v1.5": files for name, files in kept.items()}):
        models = [{"model": "org/model-v1.5+hf://org/lora-v1.5"}]
        merged = lbrx.merge({"merge_method": "passthrough", "models": models})
        np.testing.assert_array_equal(merged[f"{query}.weight"].numpy(), 3)
        convert(model_path("org/model-v1.5"), "m.gguf", device="cpu")
    assert lbrx.open_model("m.gguf").metadata["general.name"] == "model-v1.5"


def test_a_local_folder_comes_first(cache, contents, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snapshot = fill(cache, "org/name", contents)
    assert model_path("org/name") == snapshot
    (tmp_path / "org").mkdir()
    assert model_path("org/name") == snapshot
    (tmp_path / "org/name").mkdir()
    assert model_path("org/name") == Path("org/name")
    assert model_path("hf://org/name") == snapshot


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("smolm2", "smollm2"),
        ("SmolLM2", "smollm2"),
        ("tuned/first", "tunes/first"),
        ("tunes/frist", "tunes/first"),
        ("tunes/first/model.safetensor", "tunes/first/model.safetensors"),
        ("hf://organisation/nam", "organisation/name"),
    ],
)
def test_names_that_are_nearly_right(given, meant, cache, contents, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(cache, "organisation/name", contents)
    lbrx.save("tunes/first", {"x": np.ones(2, np.float32)}, format="safetensors")
    with pytest.raises(LbrxError, match=rf"did you mean {meant}\?$"):
        model_path(given)


@pytest.mark.parametrize(
    "given", ["entirely else", "tunes/x", "x" * 5000, "tunes/\0", "tunes/y.gguf"]
)
def test_names_that_are_like_none(given, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tunes").mkdir()
    with pytest.raises(LbrxError, match=r"does not exist: give a model's file or folder"):
        model_path(given)
