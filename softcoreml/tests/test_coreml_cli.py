"""The command line: run, inspect, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coreml_models import HALF, RNG, WEIGHT, built, counter, dense, mb, written

from softcoreml.__main__ import main
from softcoreml.operations import registry

X = RNG.standard_normal((3, 12)).astype(np.float32)


def test_run_writes_the_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dense(tmp_path / "m.mlpackage", HALF)
    np.savez(tmp_path / "x.npz", x=X)
    results = {}
    for precision in ("declared", "float32"):
        out = str(tmp_path / "y.npz")
        command = ["run", str(path), "--inputs", str(tmp_path / "x.npz"), "--out", out]
        assert main([*command, "--precision", precision]) == 0
        results[precision] = np.load(out)["out"]
    assert "out: float32 (3, 16)" in capsys.readouterr().out
    exact = np.maximum(X.astype(np.float64) @ WEIGHT.astype(np.float16).astype(np.float64).T, 0)
    near, far = (np.abs(results[name] - exact).max() for name in ("float32", "declared"))
    assert near < 1e-5 < far < 1e-2


def test_run_keeps_states(tmp_path: Path) -> None:
    path = counter(tmp_path / "m.mlpackage")
    x, out = tmp_path / "x.npz", tmp_path / "y.npz"
    np.savez(x, x=np.ones((2, 32), np.float16))
    assert main(["run", str(path), "--inputs", str(x), "--out", str(out)]) == 0
    kept = np.load(out)
    assert (kept["total"].max(), kept["new"].max()) == (1, 1)
    np.savez(x, x=np.ones((2, 32), np.float16), total=kept["total"])
    assert main(["run", str(path), "--inputs", str(x), "--out", str(out)]) == 0
    assert np.load(out)["total"].max() == 2


def test_inspect_names_operations_bytes_and_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def main_function(x: Any) -> Any:
        return mb.cumsum(x=mb.relu(x=mb.linear(x=x, weight=WEIGHT)), axis=1, name="out")

    path = written(built(main_function, (3, 12)), tmp_path / "m.mlpackage", precision=HALF)
    assert main(["inspect", str(path)]) == 0
    page = capsys.readouterr().out
    (linear,) = (line for line in page.splitlines() if line.startswith("  linear"))
    (cumsum,) = (line for line in page.splitlines() if line.startswith("  cumsum"))
    assert linear.split()[1:4] == ["416", "B", "neural-engine"]
    assert "tensor<fp16, [3, 16]>" in linear
    assert "cpu" in cumsum
    assert "[the Neural Engine does not have it]" in cumsum
    assert "modelled" in page
    assert "so little work" in page
    assert "input   x: fp32, 3 x 12" in page
    assert main(["inspect", str(path), "--units", "cpu-only"]) == 0
    assert "neural-engine" not in capsys.readouterr().out.split("not on")[0]


def test_inspect_names_operations_that_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dense(tmp_path / "m.mlpackage")
    monkeypatch.delitem(registry._DEFINITIONS, "relu")
    assert main(["inspect", str(path)]) == 0
    assert "softcoreml does not have: relu" in capsys.readouterr().out


def test_inspect_shows_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(counter(tmp_path / "m.mlpackage"))]) == 0
    page = capsys.readouterr().out
    assert "state   total" in page
    assert "read_state" in page


def test_compare_finds_the_operation_that_loses_precision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """(x + 1000) - 1000 loses in the sum; exp(x + 12) overflows."""

    def main_function(x: Any) -> Any:
        high = mb.add(x=x, y=np.float32(1000), name="high")
        hot = mb.exp(x=mb.add(x=x, y=np.float32(12)), name="hot")
        return mb.sub(x=high, y=np.float32(1000), name="low"), mb.relu(x=hot, name="out")

    path = written(built(main_function, (2, 3)), tmp_path / "m.mlpackage", precision=HALF)
    np.savez(tmp_path / "x.npz", x=np.full((2, 3), 0.3, np.float32))
    command = ["compare", str(path), "--against", "float32", "--inputs", str(tmp_path / "x.npz")]
    assert main(command) == 0
    page = capsys.readouterr().out
    rows = {line.split()[-1]: line.split() for line in page.splitlines()[1:-1]}
    own = {name: float(row[1]) for name, row in rows.items()}
    total = {name: float(row[2]) for name, row in rows.items()}
    high, low = "high_cast_fp16", "low_cast_fp16"
    assert own[high] > 1e-4
    assert own[low] == 0
    assert total[low] > 0.1
    assert rows["hot_cast_fp16"][3] == "6"
    assert main([*command, "--worst", "1"]) == 0
    assert "hot" not in capsys.readouterr().out or own["hot_cast_fp16"] > own[high]
    assert main(["compare", str(path)]) == 0


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["inspect", "none.mlpackage"], "there is no model at none.mlpackage"),
        (["run", "{model}", "--inputs", "none.npz"], "cannot read none.npz"),
        (["inspect", "a" * 5000], f"there is no model at {'a' * 300}\n"),
        (["inspect", "\x1b[31m\n"], r"there is no model at \x1b[31m\n"),
        (["run", "{model}", "--inputs", "a" * 5000], f"cannot read {'a' * 300} as .npz: File name"),
        (["run", "{model}", "--inputs", "{wrong}"], "'z' is not an input of main"),
        (["inspect", "{model}", "--function", "f"], "no function 'f'"),
    ],
)
def test_mistakes_are_errors_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], says: str
) -> None:
    places = {"model": dense(tmp_path / "m.mlpackage"), "wrong": tmp_path / "z.npz"}
    np.savez(places["wrong"], z=X)
    assert main([part.format(**places) for part in command]) == 1
    assert says in capsys.readouterr().err
