"""Conversions on a Ray cluster: the same bytes as in one process, also when a worker is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from interruptions import interrupted

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.convert import RunOptions, Settings, make_plan, perform
from lbrx.convert.partial import PartialOutput
from lbrx.convert.pieces import TensorPiece, pieces_of
from lbrx.convert.ray_engine import SharedFiles, _groups, ray_engine
from lbrx.errors import LbrxError
from lbrx.files import formats
from lbrx.files.formats import plain
from lbrx.files.formats.recipe import ComputedModel, ComputedTensor
from lbrx.files.formats.remote_files import mirrored
from lbrx.files.stored.notes import note

ROWS, COLUMNS, TENSORS = 64, 32, 12


@dataclass(frozen=True)
class KillOnce:
    """The sum of its sources. The first process that computes it dies."""

    marker: str
    name: str
    is_elementwise: bool = False

    def __call__(self, sources: Sequence[lbrx.Tensor]) -> lbrx.Tensor:
        if self.marker:
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        note({"tensor": self.name})
        return sources[0].astype("float32") + sources[1].astype("float32")


@dataclass(frozen=True)
class Fails:
    is_elementwise: bool = True

    def __call__(self, sources: Sequence[lbrx.Tensor]) -> lbrx.Tensor:
        raise LbrxError("this cannot be computed")


def model_of(tmp_path: Path, marker: str = "") -> ComputedModel:
    rng = np.random.default_rng(5)
    values = {
        f"{i}{n}": rng.standard_normal((ROWS, COLUMNS)).astype("f4")
        for i in range(TENSORS)
        for n in "xy"
    }
    if not (tmp_path / "in.safetensors").exists():
        lbrx.save(tmp_path / "in.safetensors", values)
    infos = formats.read(tmp_path / "in.safetensors").tensors
    recipes = {
        f"t{i}": ComputedTensor(
            f"t{i}",
            (infos[f"{i}x"], infos[f"{i}y"]),
            plain(dt.bfloat16),
            (ROWS, COLUMNS),
            KillOnce(marker if i == TENSORS // 2 else "", f"t{i}"),
        )
        for i in range(TENSORS)
    }
    return ComputedModel(tmp_path / "merged", "safetensors", infos, recipes=recipes)


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install ray")
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.parametrize("shared", [True, False])
def test_a_killed_worker_does_not_matter(shared, cluster, tmp_path, monkeypatch):
    """Workers write themselves, or send the bytes where they do not see the folder."""
    monkeypatch.setattr("lbrx.convert.pieces.PIECE", 8 * COLUMNS)
    monkeypatch.setattr("lbrx.convert.ray_engine._GROUP", ROWS * COLUMNS)
    settings = Settings(max_shard_size=6 * ROWS * COLUMNS)
    alone = perform(make_plan(model_of(tmp_path), tmp_path / "alone", settings), device="cpu")
    marker = tmp_path / "killed"
    plan = make_plan(model_of(tmp_path, str(marker)), tmp_path / "out", settings)
    if not shared:
        from lbrx.convert import ray_engine as engine

        hidden = lambda partial, pieces: SharedFiles(Path("/nowhere"), "", {})  # noqa: E731
        monkeypatch.setattr(engine, "_shared_files", hidden)
    seen = []
    result = perform(plan, device="cpu", engine=ray_engine(), progress=seen.append)
    assert marker.exists()
    assert sum(seen) == plan.nbytes
    assert result.checksums == alone.checksums
    assert result.notes == alone.notes
    names = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert len(names) > 4
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_errors_of_workers_are_those_of_one_process(cluster, tmp_path):
    model = model_of(tmp_path)
    recipes = {**model.recipes, "t3": replace(model.recipes["t3"], function=Fails())}
    plan = make_plan(replace(model, recipes=recipes), tmp_path / "out", Settings())
    with pytest.raises(LbrxError, match=r"^this cannot be computed$"):
        perform(plan, device="cpu", engine=ray_engine())
    assert not (tmp_path / "out").exists()


def test_an_interrupted_conversion_continues_on_a_cluster(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("lbrx.convert.pieces.PIECE", 8 * COLUMNS)
    plan = make_plan(model_of(tmp_path), tmp_path / "out", Settings())
    with interrupted(after=9):
        perform(plan, device="cpu")
    result = perform(plan, RunOptions(resume=True), device="cpu", engine=ray_engine())
    assert 0 < result.reused < plan.nbytes
    assert len(result.checksums) == TENSORS * 8


def test_workers_fetch_what_they_need(cluster, tmp_path):
    """A source at a URL: the driver has read its header only."""
    model_of(tmp_path)
    source = mirrored((tmp_path / "in.safetensors").as_uri())
    plan = make_plan(source, tmp_path / "out.safetensors", Settings(quantize="f16"))
    perform(plan, device="cpu", engine=ray_engine())
    wanted = make_plan(
        tmp_path / "in.safetensors", tmp_path / "own.safetensors", Settings(quantize="f16")
    )
    perform(wanted, device="cpu")
    assert (tmp_path / "out.safetensors").read_bytes() == (
        tmp_path / "own.safetensors"
    ).read_bytes()


def test_groups_keep_tensors_together(tmp_path, monkeypatch):
    monkeypatch.setattr("lbrx.convert.pieces.PIECE", 8 * COLUMNS)
    monkeypatch.setattr("lbrx.convert.ray_engine._GROUP", 3 * ROWS * COLUMNS)
    pieces = pieces_of(make_plan(model_of(tmp_path), tmp_path / "out", Settings()).items)
    groups = list(_groups(list(enumerate(pieces))))
    assert [number for group in groups for number, _ in group] == list(range(len(pieces)))
    assert [len(group) for group in groups] == [24] * 4
    for group in groups:
        last = group[-1][1]
        assert isinstance(last, TensorPiece)
        assert last.stop == last.item.rows


def test_files_of_another_output_are_not_written(tmp_path):
    plan = make_plan(model_of(tmp_path), tmp_path / "out", Settings())
    partial = PartialOutput(plan.output, False, "this one")
    try:
        assert SharedFiles(partial.folder, "this one", {}).is_seen()
        assert not SharedFiles(partial.folder, "another", {}).is_seen()
        assert not SharedFiles(tmp_path / "nowhere", "this one", {}).is_seen()
    finally:
        partial.remove()


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LbrxError, match="pip install"):
        ray_engine()
