"""The file of a binary archive: its permissions, and that it appears whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest
from metal_programs import Program

from softmetal.api.archive import MTLBinaryArchiveDescriptor
from softmetal.api.pipeline import MTLComputePipelineDescriptor


@pytest.fixture(scope="module")
def program(metal, device):
    return Program(metal, device)


@pytest.fixture
def archive(program, device):
    made, _ = device.newBinaryArchiveWithDescriptor_error_(MTLBinaryArchiveDescriptor.new(), None)
    descriptor = MTLComputePipelineDescriptor.new()
    descriptor.setComputeFunction_(program.library.newFunctionWithName_("add_one"))
    assert made.addComputePipelineFunctionsWithDescriptor_error_(descriptor, None)[0]
    return made


# Archives hold native code: one that others can write would not be loaded.
@pytest.mark.parametrize(
    ("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640), (0o002, 0o644), (0, 0o644)]
)
def test_the_mode_is_that_of_the_umask(archive, device, tmp_path, mask, mode):
    path = tmp_path / "kernels.archive"
    before = os.umask(mask)
    try:
        assert archive.serializeToURL_error_(path, None) == (True, None)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert os.listdir(tmp_path) == [path.name]
    stored = MTLBinaryArchiveDescriptor.new()
    stored.setUrl_(path)
    found, error = device.newBinaryArchiveWithDescriptor_error_(stored, None)
    assert found is not None, error


def test_a_failed_write_leaves_what_was_there(archive, tmp_path, monkeypatch):
    path = tmp_path / "kernels.archive"
    path.write_bytes(b"before")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    done, error = archive.serializeToURL_error_(path, None)
    assert not done
    assert "No space left" in error.localizedDescription()
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == [path.name]
