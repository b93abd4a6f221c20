"""Streams over files that pyarrow and Pillow write."""

from __future__ import annotations

import numpy as np
import pytest

from lbrx import data
from lbrx.errors import FormatError

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is installed for the peers alone")
image_module = pytest.importorskip("PIL.Image", reason="Pillow is installed for the peers alone")


def test_parquet(tmp_path):
    from pyarrow import parquet

    table = pyarrow.table({"n": list(range(25)), "text": [f"line {i}" for i in range(25)]})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=10)
    stream = data.parquet(tmp_path / "rows.parquet")
    assert [each["text"] for each in stream] == [f"line {i}" for i in range(25)]
    shuffled = stream.shuffle(1).batch(4)
    found = [n for batch in shuffled for n in batch["n"].tolist()]
    assert sorted(found) == list(range(25))
    assert found != sorted(found)
    with pytest.raises(IndexError, match="row 25 of 25"):
        stream.source[25]


def test_image_folders(tmp_path, rng):
    pixels = rng.integers(0, 256, (2, 3, 6, 5, 3), dtype=np.uint8)
    for name, images in zip(("cat", "dog"), pixels, strict=True):
        (tmp_path / name).mkdir()
        for i, image in enumerate(images):
            image_module.fromarray(image).save(tmp_path / name / f"{i}.png")
        (tmp_path / name / "notes.txt").write_text("no image")
    (batch,) = data.images(tmp_path).batch(6)
    assert batch["label"].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(batch["image"].numpy(), pixels.reshape(6, 6, 5, 3))
    assert next(iter(data.images(tmp_path, size=(4, 8))))["image"].shape == (4, 8, 3)
    (tmp_path / "cat" / "0.png").write_bytes(b"damaged")
    with pytest.raises(FormatError, match=r"0\.png: not an image"):
        list(data.images(tmp_path))
    with pytest.raises(FormatError, match="no images in folders"):
        data.images(tmp_path / "cat")
