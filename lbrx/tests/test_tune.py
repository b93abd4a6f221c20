"""The autotuner: what it measures and stores, and which settings take precedence."""

from __future__ import annotations

import json
import struct
import time
from dataclasses import dataclass, replace

import pytest

import lbrx
from lbrx import cli, metal
from lbrx.command_lists.builder import Builder
from lbrx.device_info import Calibration
from lbrx.kernels import RUNNERS, choices, deterministic, forced, registry
from lbrx.kernels.registry import FAMILIES, TUNED, Call, KernelFamily, Sample
from lbrx.ops import Spec
from lbrx.scheduler import tune

DEVICE = "Test GPU"


@dataclass(frozen=True)
class Problem:
    size: int

    @property
    def shape_class(self) -> str:
        return f"size {self.size}"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty folder for choices, and no choices in force."""
    monkeypatch.setenv("LBRX_CACHE", str(tmp_path))
    monkeypatch.setattr(registry, "_read", set())
    before = dict(TUNED)
    TUNED.clear()
    yield tmp_path
    TUNED.clear()
    TUNED.update(before)


@pytest.fixture
def family(monkeypatch):
    """Three variants of `floor`: a slow one, a fast one, and one for small problems only."""
    made: KernelFamily[Problem] = KernelFamily("speed")

    def launch(name, seconds):
        def compute(values):
            time.sleep(seconds)
            return ()

        def run(b, problem):
            b.host(name, (), (), compute)

        return run

    made.variant("slow")(launch("slow", 0.02))
    made.variant("quick", cost=lambda i, p: 2)(launch("quick", 0.0))
    made.variant("small", can=lambda i, p: p.size < 10, cost=lambda i, p: 3)(launch("small", 0.01))
    made.variant("batchy", cost=lambda i, p: 4, batch_invariant=False)(launch("batchy", 0.01))

    def runner(call: Call):
        made.run(call.builder, Problem(call.outputs[0].shape[0]))
        return ()

    monkeypatch.setitem(RUNNERS, "floor", runner)
    yield made
    del FAMILIES["speed"]


def sample(size):
    return Sample("floor", (Spec((size,), lbrx.float32),))


def test_the_quickest_is_chosen_and_kept(cache, family):
    gpu = metal.context()
    family.samples += [sample(5), sample(50)]
    small, large = tune.tune(gpu, ["speed"], quick=True)
    assert {row.variant for row in small} == {"slow", "quick", "small", "batchy"}
    assert {row.variant for row in large} == {"slow", "quick", "batchy"}
    assert [row.variant for row in small + large if row.chosen] == ["quick", "quick"]
    assert all(row.seconds >= 0.02 for row in small if row.variant == "slow")
    assert family.choose(gpu.info, Problem(5)).name == "quick"
    assert family.choose(gpu.info, Problem(6)).name == "slow"  # not measured: by cost
    stored = json.loads(choices.path(gpu.info.name).read_text())
    assert stored["choices"] == {"speed": {"size 5": "quick", "size 50": "quick"}}
    assert [path.name for path in cache.iterdir()] == [choices.path(gpu.info.name).name]


def test_another_process_reads_them_at_its_first_choice(cache, family):
    info = metal.context().info
    choices.write(info.name, {("speed", "size 5"): "small", ("speed", "size 50"): "small"})
    assert not TUNED
    assert family.choose(info, Problem(5)).name == "small"
    assert family.choose(info, Problem(50)).name == "slow"  # small cannot take it
    choices.path(info.name).unlink()
    assert family.choose(info, Problem(5)).name == "small"  # read once


def test_a_part_is_measured_without_losing_the_rest(cache, family):
    gpu = metal.context()
    choices.write(gpu.info.name, {("other", "a"): "b", ("speed", "size 5"): "small"})
    family.samples += [sample(5)]
    list(tune.tune(gpu, ["speed"], quick=True))
    assert choices.read(gpu.info.name) == {("other", "a"): "b", ("speed", "size 5"): "quick"}


def test_orders_and_determinism_win(cache, family, monkeypatch):
    info = metal.context().info
    choices.write(info.name, {("speed", "size 5"): "batchy"})
    assert family.choose(info, Problem(5)).name == "batchy"
    with forced(speed="small"):
        assert family.choose(info, Problem(5)).name == "small"
    with deterministic():
        assert family.choose(info, Problem(5)).name == "slow"
    family.prefer("quick", info.name, "size 5")
    assert family.choose(info, Problem(5)).name == "quick"
    with deterministic():
        assert family.choose(info, Problem(5)).name == "slow"  # sizes must not decide
    monkeypatch.setenv("LBRX_KERNEL", "speed:small")
    assert family.choose(info, Problem(5)).name == "small"


GOOD = {"format": choices.FORMAT, "device": DEVICE, "choices": {"f": {"c": "v"}}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting"),
        ("", "Expecting"),
        ("[]", "not of format"),
        (json.dumps(GOOD | {"format": 99}), "not of format"),
        (json.dumps(GOOD | {"device": "Other"}), "about 'Other', not 'Test GPU'"),
        (json.dumps(GOOD | {"choices": []}), "not a table"),
        (json.dumps(GOOD | {"choices": {"f": ["c"]}}), "not a table"),
        (json.dumps(GOOD | {"choices": {"f": {"c": 1}}}), "not names of variants"),
        (struct.pack("4B", 0xFF, 0xFE, 0, 0x80), "can't decode"),
    ],
)
def test_a_file_that_means_nothing_is_ignored_aloud(cache, caplog, content, reason):
    file = choices.path(DEVICE)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert choices.read(DEVICE) == {}
    (record,) = caplog.records
    assert str(file) in record.getMessage()
    assert reason in record.getMessage()
    assert "run `lbrx tune` again or delete it" in record.getMessage()


def test_choices_go_round(cache, caplog):
    assert choices.read(DEVICE) == {}
    given = {("matmul", "a"): "mps", ("matmul", "b"): "serial", ("softmax", "a"): "rows"}
    assert choices.write(DEVICE, given).name == "tuning-test-gpu.json"
    assert choices.read(DEVICE) == given
    assert not caplog.records


def test_command_line(cache, family, capsys, monkeypatch):
    family.samples += [sample(5)]
    gpu = metal.context()
    known = Calibration("2026-01-02", 1e11, 1e12, 2e12, 1e-6, 1e-5, 32)
    monkeypatch.setattr(gpu, "info", replace(gpu.info, calibration=known))
    assert cli.main(["tune", "--family", "speed", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"device: {metal.context().info.name}"
    assert lines[1].split() == ["family", "shape", "class", "variant", "time"]
    assert lines[2].split()[:4] == ["speed", "size", "5", "quick"]
    assert lines[2].endswith("us  chosen")
    assert len(lines) == 7
    assert str(choices.path(metal.context().info.name)) in lines[-1]
    monkeypatch.setattr("lbrx.cli.tune.calibrate", lambda gpu: known)
    assert cli.main(["tune", "--family", "speed", "--quick", "--calibrate"]) == 0
    assert "memory bandwidth: 100 GB/s" in capsys.readouterr().out.splitlines()
    assert cli.main(["tune", "--family", "speeed"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, "no family 'speeed': it is one of" in printed.err) == ("", True)


def test_every_sample_can_be_prepared():
    """Sizes and dtypes of the samples fit their operations."""
    gpu = metal.context()
    for family in FAMILIES.values():
        for given in family.samples:
            b = Builder(gpu)
            results = tune.prepared(gpu, given)(b)
            assert results
            assert b.step_count


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_can_be_tuned(cache, name):
    for rows in tune.tune(metal.context(), [name], quick=True):
        assert sum(row.chosen for row in rows) == len({row.shape_class for row in rows})
