"""Zip files of our writer, read by Python's zipfile."""

from __future__ import annotations

import zipfile
import zlib

import pytest

from lbrx.files.formats.containers import zip_writer


@pytest.mark.parametrize("alignment", [1, 64])
@pytest.mark.parametrize("names", [[], ["a"], ["a", "dir/b.npy", "ü" * 50]])
def test_members(tmp_path, names, alignment):
    contents = {name: name.encode() * (7 * i) for i, name in enumerate(names)}
    parts, members, at = [], [], 0
    for name, content in contents.items():
        member = zip_writer.place(name, at, len(content), alignment)
        assert member.content % alignment == 0
        parts += [zip_writer.local_header(member, zlib.crc32(content)), content]
        members.append(member)
        at = member.end
    crcs = [zlib.crc32(content) for content in contents.values()]
    end = zip_writer.directory(members, crcs, at)
    assert len(end) == zip_writer.directory_size(members)
    (tmp_path / "a.zip").write_bytes(b"".join(parts) + end)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == contents


def test_beyond_four_gibibytes(tmp_path):
    """64-bit sizes and offsets, in a sparse file."""
    first = zip_writer.place("large", 0, 5 << 30, 64)
    second = zip_writer.place("late", first.end, 3, 64)
    with (tmp_path / "a.zip").open("wb") as file:
        file.write(zip_writer.local_header(first, 0))
        file.seek(second.start)
        file.write(zip_writer.local_header(second, zlib.crc32(b"end")) + b"end")
        file.write(zip_writer.directory([first, second], [0, zlib.crc32(b"end")], second.end))
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.getinfo("large").file_size == 5 << 30
        assert archive.read("late") == b"end"
