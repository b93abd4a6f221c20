"""Files that lbrx keeps, with content that lbrx did not write: refused or ignored, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lbrx import stored_json
from lbrx.bench import report as bench_report
from lbrx.convert import partial
from lbrx.errors import FormatError
from lbrx.kernels import choices
from lbrx.mac_report import report as mac_report
from lbrx.merging import evolve
from lbrx.metal import calibration_file
from lbrx.scheduler import roofline

HUGE = "9" * 400
CALIBRATION = {
    "format": calibration_file.FORMAT,
    "device": "chip",
    "date": "x",
    "simd_width": 32,
    **dict.fromkeys(("bandwidth", "fp32", "fp16", "dispatch", "encoding", "streaming"), 1.0),
    "products": {"a": 1.0},
}
ROOFLINE = {"version": roofline.VERSION, "device": "chip", "bandwidth": 1, "peak": 1, "date": ""}
TEXTS = {
    "empty": b"",
    "deep": b"[" * 100_000,
    "deep in a table": b'{"format": ' + b'{"a": ' * 100_000,
    "not UTF-8": b'{"format": "\xff"}',
    "a string": b'"x"',
    "a number": b"1",
    "a list": b"[[], [1]]",
    "a huge number": HUGE.encode(),
    "more digits than Python reads": b"9" * 5000,
    "a lone surrogate": rb'{"format": "\\ud800"}',
    **{
        f"a calibration with a huge {key}": json.dumps({**CALIBRATION, key: int(HUGE)}).encode()
        for key in ("format", "bandwidth", "streaming", "simd_width")
    },
    "a calibration with huge products": json.dumps(
        {**CALIBRATION, "products": {"a": int(HUGE)}}
    ).encode(),
    "a roofline with a huge peak": json.dumps({**ROOFLINE, "peak": int(HUGE)}).encode(),
    "a bench report": json.dumps({"version": bench_report.VERSION, "rows": [int(HUGE)]}).encode(),
    "a mac report": json.dumps({"format": mac_report.FORMAT, "version": 1, "day": 1, "steps": [
        {"name": "", "status": "ok", "seconds": int(HUGE), "entries": [], "text": ""}
    ]}).encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_other_content(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, file = TEXTS[name], tmp_path / "file.json"
    file.write_bytes(data)
    for module in (choices, calibration_file):
        monkeypatch.setattr(module, "path", lambda device: file)
    assert choices.read("chip") == {}
    assert calibration_file.read("chip") is None
    assert roofline._read(file, "chip") is None
    assert not any(isinstance(one, dict) and "score" in one for one in evolve._lines(file))
    assert mac_report.entries_of([data.decode(errors="replace")]) == []
    assert isinstance(partial._parsed(data), dict)
    for read in (bench_report.read, mac_report.load):
        with pytest.raises(FormatError):
            read(file)


def test_sound_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file.json"
    monkeypatch.setattr(calibration_file, "path", lambda device: file)
    file.write_text(json.dumps(CALIBRATION))
    assert calibration_file.read("chip") is not None
    file.write_text(json.dumps(ROOFLINE))
    assert roofline._read(file, "chip") is not None


def test_values_are_those_of_json() -> None:
    for text in ("1", "-7", "1.5", "[1, null, true]", '{"a": 18446744073709551616}', "NaN"):
        assert str(stored_json.parsed(text)) == str(json.loads(text))
    with pytest.raises(ValueError, match="too large"):
        stored_json.parsed(HUGE)
