"""What convert creates, replaces and removes on the disk."""

from __future__ import annotations

import os
import shutil
import stat

import pytest
from conversion_checks import contents, to

import lbrx
from lbrx.cli import main
from lbrx.convert import Settings, make_plan
from lbrx.convert.partial import PartialOutput


@pytest.fixture
def precious(tmp_path):
    """A folder with files that must stay."""
    folder = tmp_path / "precious"
    folder.mkdir()
    for name in ("journal.jsonl", "m.gguf", "notes.txt"):
        (folder / name).write_text(f"the content of {name}")
    before = contents(folder)
    yield folder
    assert contents(folder) == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("link", "to_folder"),
    [("", True), ("files", True), ("files/m.gguf", False), ("journal.jsonl", False)],
)
@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_planted_links_are_not_followed(folder, tmp_path, precious, link, to_folder, make, resume):
    """Symbolic and hard links in the place of the partial folder and of all that is in it."""
    if to_folder and make is os.link:
        pytest.skip("a folder cannot have hard links")
    source, _ = folder()
    place = tmp_path / ".m.gguf.partial" / link
    place.parent.mkdir(parents=True, exist_ok=True)
    make(precious / place.name if not to_folder else precious, place)
    try:
        to(source, tmp_path / "m.gguf", quantize="q8_0", resume=resume)
    except lbrx.FormatError as error:
        problem = str(error)
    else:
        problem = ""
    if problem:
        assert problem.endswith("remove it")
        assert not (tmp_path / "m.gguf").exists()
    else:
        assert (tmp_path / "m.gguf").stat().st_nlink == 1
        assert not (tmp_path / ".m.gguf.partial").exists()


def test_links_within_the_files(folder, tmp_path, precious):
    source, _ = folder()
    inner = tmp_path / ".m.partial/files"
    inner.mkdir(parents=True)
    (inner / "config.json").symlink_to(precious / "notes.txt")
    (inner / "more").symlink_to(precious)
    (inner / "deep").mkdir()
    (inner / "deep/link").symlink_to(precious)
    to(source, tmp_path / "m", quantize="f16")
    names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(contents(tmp_path / "m")) == names


def test_a_folder_that_others_can_write_is_refused(folder, tmp_path):
    source, _ = folder()
    (tmp_path / ".m.gguf.partial").mkdir()
    (tmp_path / ".m.gguf.partial").chmod(0o777)
    with pytest.raises(lbrx.FormatError, match="others can write to it: remove it"):
        to(source, tmp_path / "m.gguf", quantize="q8_0")


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_private_until_finished(folder, tmp_path, mask, monkeypatch):
    """Unfinished files belong to their owner alone; finished ones have the usual permissions."""
    source, _ = folder()
    before = os.umask(mask)
    seen = []
    finished = PartialOutput.finished

    def look(self, piece, total):
        seen.extend(mode(path) for path in [self.folder, *self.folder.rglob("*")])
        finished(self, piece, total)

    monkeypatch.setattr(PartialOutput, "finished", look)
    try:
        to(source, tmp_path / "m.gguf", quantize="q8_0")
        to(source, tmp_path / "m", quantize="f16")
    finally:
        os.umask(before)
    assert set(seen) == {0o600, 0o700}
    files = [tmp_path / "m.gguf", *(tmp_path / "m").iterdir()]
    assert {mode(file) for file in files} == {0o666 & ~mask}
    assert mode(tmp_path / "m") == 0o777 & ~mask


@pytest.mark.parametrize("name", ["m.gguf", "m"])
def test_a_failed_verification_leaves_nothing(folder, tmp_path, monkeypatch, capsys, name):
    source, _ = folder()
    write = os.pwrite

    def flipped(handle, data, offset):
        return write(handle, bytes(b ^ 1 for b in data), offset)

    arguments = ["convert", str(source), str(tmp_path / name), "--quantize", "f16"]
    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", flipped)
        assert main([*arguments, "--verify", "--device", "cpu"]) == 1
    assert "differ from what was written" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["m.gguf", "m"])
def test_an_existing_output_needs_force(folder, tmp_path, capsys, name):
    source, _ = folder()
    target = tmp_path / name
    arguments = ["convert", str(source), str(target), "--device", "cpu", "--quantize"]
    assert main([*arguments, "f16"]) == 0
    before = contents(target)
    assert main([*arguments, "bf16"]) == 1
    assert "exists: add --force to replace it" in capsys.readouterr().err
    assert contents(target) == before
    assert main([*arguments, "bf16", "--force"]) == 0
    assert contents(target) != before


def test_an_empty_folder_and_one_with_other_files_need_no_force(folder, tmp_path):
    source, _ = folder()
    (tmp_path / "m").mkdir()
    (tmp_path / "m/notes.txt").write_text("x")
    to(source, tmp_path / "m", quantize="f16")
    assert (tmp_path / "m/notes.txt").exists()
    (tmp_path / "m/config.json").unlink()
    with pytest.raises(lbrx.FormatError, match=r"model.safetensors exists: .*force=True"):
        to(source, tmp_path / "m", quantize="f16")


def test_a_file_that_appears_meanwhile_is_kept(folder, tmp_path, monkeypatch):
    source, _ = folder()
    finished = PartialOutput.finished

    def meanwhile(self, piece, total):
        (tmp_path / "m.gguf").write_text("another's")
        finished(self, piece, total)

    monkeypatch.setattr(PartialOutput, "finished", meanwhile)
    with pytest.raises(FileExistsError):
        to(source, tmp_path / "m.gguf", quantize="q8_0")
    assert (tmp_path / "m.gguf").read_text() == "another's"
    result = to(source, tmp_path / "m.gguf", quantize="q8_0", resume=True, force=True)
    assert result.reused == result.plan.nbytes


def test_too_little_space(folder, tmp_path, monkeypatch):
    """It is found before anything is written, and an earlier part counts."""
    source, _ = folder()
    plan = make_plan(source, tmp_path / "m.gguf", Settings(quantize="q8_0"))
    real = os.statvfs

    def small(path):
        fields = list(real(path))
        fields[1], fields[4] = 1024, plan.nbytes // 1024 // 2
        return os.statvfs_result(fields)

    monkeypatch.setattr(os, "statvfs", small)
    with pytest.raises(lbrx.FormatError, match=r"needs [\d,]+ bytes, and [\d,]+ are free"):
        to(source, tmp_path / "m.gguf", quantize="q8_0")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["llama"]


@pytest.mark.parametrize("name", ["m.gguf", "m"])
@pytest.mark.parametrize(
    ("existing", "durable", "synced"),
    [
        (False, None, False),
        (True, None, True),
        (False, True, True),
        (True, False, False),
    ],
)
def test_durable(folder, tmp_path, monkeypatch, name, existing, durable, synced):
    """Files and folder are synced before the rename, by default where something is replaced."""
    source, _ = folder()
    target = tmp_path / name
    if existing:
        to(source, target, quantize="f16")
    events = []
    sync, replace = os.fsync, os.replace

    def note_sync(handle):
        events.append(("sync", os.readlink(f"/proc/self/fd/{handle}")))
        sync(handle)

    def note_replace(old, new, **places):
        events.append(("replace", str(new)))
        replace(old, new, **places)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", note_sync)
        patch.setattr(os, "replace", note_replace)
        to(source, target, quantize="bf16", force=True, durable=durable)
    kinds = [kind for kind, _ in events]
    written = {file.name for file in (target.iterdir() if target.is_dir() else [target])}
    before = events[: kinds.index("replace")]
    if synced:
        assert written | {"files"} <= {os.path.basename(path) for _, path in before}
        assert events[-1] == ("sync", str(tmp_path if name == "m.gguf" or not existing else target))
    else:
        assert "sync" not in kinds


@pytest.mark.parametrize("size", ["5", "999", "0.5KB", "5B", 5])
def test_tiny_shards_are_refused(folder, tmp_path, size):
    source, _ = folder()
    with pytest.raises(lbrx.FormatError, match="write it like '5GB'"):
        to(source, tmp_path / "m", max_shard_size=size)
    shutil.rmtree(source)
