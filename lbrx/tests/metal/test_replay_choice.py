"""How recorded commands run again, by what the device can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lbrx
from lbrx.errors import SettingError
from lbrx.metal import context
from lbrx.metal.binding import Metal
from lbrx.metal.packed_commands import PackedCommands
from lbrx.metal.replay_choice import replay_choice
from lbrx.scheduler import replay

GPU = {"soft": False, "simd_hardware": True}
ROWS = [
    ({**GPU, "name": "Apple M1", "chip": "M1", "family": 7}, "encode", "before Apple9"),
    ({**GPU, "name": "Apple M2 Max", "chip": "M2 Max", "family": 8}, "encode", "before Apple9"),
    ({**GPU, "name": "Apple M3", "chip": "M3", "family": 9}, "icb", "Apple9 and later"),
    ({**GPU, "name": "Apple M7", "chip": None, "family": 12}, "icb", "Apple9 and later"),
    ({**GPU, "name": "Apple Paravirtual device", "chip": None, "family": 9}, "encode", "virtual"),
    ({"soft": True, "name": "Apple M1", "chip": "M1", "family": 7}, "encode", "before Apple9"),
    ({"soft": True, "name": "softmetal cpu", "chip": None, "family": 8}, "icb", "softmetal"),
]


@pytest.mark.parametrize(("facts", "kind", "reason"), ROWS, ids=lambda row: str(row)[:30])
def test_by_device(facts, kind, reason, monkeypatch):
    monkeypatch.delenv("LBRX_REPLAY", raising=False)
    info = replace(context().info, **facts)
    assert replay_choice(info).kind == kind
    assert reason in replay_choice(info).reason
    monkeypatch.setenv("LBRX_REPLAY", "encode")
    assert replay_choice(info) == ("encode", "LBRX_REPLAY=encode")
    monkeypatch.setenv("LBRX_REPLAY", "icb")
    if kind == "icb":
        assert replay_choice(info) == ("icb", "LBRX_REPLAY=icb")
    else:
        with pytest.raises(SettingError, match=f"LBRX_REPLAY=icb: .*{reason}.*: give auto or enc"):
            replay_choice(info)


def test_an_unknown_way_is_an_error(monkeypatch):
    monkeypatch.setenv("LBRX_REPLAY", "replay")
    with pytest.raises(SettingError, match="LBRX_REPLAY='replay' is not a way: give auto, icb or"):
        replay_choice(context().info)


def executed(monkeypatch):
    """Counts executions of indirect command buffers."""
    commands = context().device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.endEncoding()
    counted, run = [], type(encoder).executeCommandsInBuffer_withRange_
    monkeypatch.setattr(
        type(encoder),
        "executeCommandsInBuffer_withRange_",
        lambda *given: (counted.append(1), run(*given))[1],
    )
    return counted


def traced():
    return lbrx.compile(lambda x: [x.softmax(axis=-1) + i for i in range(10)])


@pytest.mark.parametrize("way", ["icb", "encode"])
@pytest.mark.skipif(not hasattr(Metal, "checking"), reason="counts softmetal's calls")
def test_both_ways_give_the_same(way, replay_by, monkeypatch):
    replay_by(way)
    counted, step = executed(monkeypatch), traced()
    x = lbrx.tensor(np.random.default_rng(1).standard_normal((4, 8)).astype("f4"), device="metal")
    for _ in range(3):
        got = [y.numpy() for y in step(x)]
    want = [(x.softmax(axis=-1) + i).numpy() for i in range(10)]
    np.testing.assert_array_equal(got, want)
    assert bool(counted) == (way == "icb")


@pytest.mark.parametrize("way", ["icb", "encode"])
def test_work_goes_on_after_a_replay_that_cannot_be_encoded(way, replay_by, monkeypatch):
    """Its encoder is ended: the command buffer would refuse every other one."""
    replay_by(way)
    step, x = traced(), lbrx.ones((4, 8), device="metal")
    want = [y.numpy() for y in step(x)]

    def refuse(*given):
        raise MemoryError("no memory for an encoder's commands")

    with monkeypatch.context() as patch:
        patch.setattr(PackedCommands, "encode", refuse)
        patch.setattr(replay._Resources, "announce", refuse)
        with pytest.raises(MemoryError, match="no memory for an encoder's"):
            step(x)
    np.testing.assert_array_equal((x + 1).numpy(), 2)
    np.testing.assert_array_equal([y.numpy() for y in step(x)], want)


@pytest.mark.skipif(not hasattr(Metal, "checking"), reason="counts softmetal's calls")
def test_offsets_that_indirect_commands_cannot_hold_are_encoded(replay_by, monkeypatch):
    replay_by("icb")
    step, weight = traced(), lbrx.ones((4, 8), device="metal")
    lbrx.eval(weight)
    counted = executed(monkeypatch)
    lbrx.eval(*step(weight))
    listed = len(counted)
    assert listed
    monkeypatch.setattr(replay, "OFFSET_LIMIT", 1)
    lbrx.eval(*step(weight), *traced()(weight))
    assert len(counted) == listed
