"""lbrx bench: how it measures, what its report says, and how reports are compared."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from lbrx import cli, kernels
from lbrx.bench import comparison, kernel_cases, run, scaling
from lbrx.bench.ceilings import Ceiling, CeilingMaker, Limits, limits
from lbrx.bench.energy import find_meter
from lbrx.bench.kernel_suite import Tools, measure
from lbrx.bench.markdown import markdown
from lbrx.bench.page import page
from lbrx.bench.peers import NAMES, find
from lbrx.bench.peers.with_numpy import OPERATIONS
from lbrx.bench.report import Report, Row, read
from lbrx.bench.timing import Effort, Timing, interleaved
from lbrx.errors import FormatError, LbrxError
from lbrx.html_report.bars import Bar, bar_plot, ratio_plot
from lbrx.metal import context
from lbrx.scheduler.profiler import chip_roofline

ROW = Row(
    suite="kernels",
    name="softmax",
    dtype="float32",
    shape=[4, 8],
    variant="softmax:serial",
    seconds=0.002,
    spread=0.02,
    rounds=5,
    share_of_ceiling=0.5,
    nbytes=256.0,
    bandwidth=1e9,
    peers={"numpy": 0.004},
    error=1e-7,
    tolerance=1e-5,
)


def of(*rows: Row) -> Report:
    return Report(machine={"device": "a device", "threads": 2}, rows=list(rows))


def adds(made: run.Results) -> None:
    made.rows.append(ROW)


# ---- measuring ----


def test_a_run_of_one_case(tmp_path, capsys):
    """The command, from its arguments to its files."""
    arguments = ["bench", "--suite", "kernels", "--short", "--only", "sum_rows", "--out"]
    assert cli.main([*arguments, str(tmp_path)]) == 0
    assert "1 measurements" in capsys.readouterr().out
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["version"] == 1
    assert written["complete"]
    assert written["machine"]["device"] == context().info.name
    (row,) = written["rows"]
    assert row["variant"].startswith("sum:")
    assert row["seconds"] > 0
    assert row["share_of_ceiling"] > 0
    assert row["peers"].keys() == {"lbrx-cpu", "numpy"}
    assert row["error"] < row["tolerance"]
    assert read(tmp_path / "report.json").rows == [Row(**row)]
    assert "sum_rows" in (tmp_path / "report.html").read_text()
    assert "| sum_rows | float32 |" in (tmp_path / "report.md").read_text()
    assert cli.main([*arguments, str(tmp_path), "--compare", str(tmp_path / "report.json")]) == 0
    assert re.search("of 1 rows|slower|faster", capsys.readouterr().out)


@pytest.mark.full
@pytest.mark.parametrize(
    "case",
    [case for case in kernel_cases.cases(short=False) if case.nbytes <= 4 << 20],
    ids=lambda case: f"{case.name}-{case.dtype}-{'x'.join(map(str, case.shape))}",
)
def test_every_case_is_right(case):
    """Each case of a small size in the full suite, measured for a moment."""
    ceilings = CeilingMaker(context(), 2)
    row = measure(case, Tools([], ceilings, Effort(rounds=2, seconds=0)))
    ceilings.close()
    assert row.variant
    assert row.share_of_ceiling > 0
    assert row.right or case.random, row.error


def test_formats_beside_a_copy(tmp_path):
    arguments = ["bench", "--suite", "formats", "--short", "--only", "open,copy", "--out"]
    assert cli.main([*arguments, str(tmp_path)]) == 0
    opened, copied = read(tmp_path / "report.json").rows
    assert opened.name == "open a GGUF"
    assert opened.share_of_ceiling is None
    assert copied.share_of_ceiling > 0
    assert copied.nbytes == pytest.approx(2 * copied.shape[0], rel=0.01)


@pytest.mark.full
def test_every_suite(tmp_path):
    """Models, conversion, merging and threads in the short form; kernels have their own test."""
    arguments = ["bench", "--short", "--only", "model,q8_0,linear,sum_rows", "--out"]
    assert cli.main([*arguments, str(tmp_path)]) == 0
    report = read(tmp_path / "report.json")
    assert [note for note in report.notes if "machine" not in note] == []
    assert {row.suite for row in report.rows} == {"kernels", "models", "formats", "merge"}
    assert {row.name for row in report.rows} >= {"prefill", "decode", "linear", "sum_rows"}
    assert 0 < report.memory["model_peak"] <= report.memory["model_planned"]
    assert all(row.share_of_ceiling > 0 for row in report.rows)


@pytest.mark.full
def test_threads_are_those_of_the_device():
    rows = scaling.measure(1)
    assert {row["name"] for row in rows} == set(scaling.CASES)
    assert {row["threads"] for row in rows} == {1}


def test_counts_of_threads():
    assert [scaling.counts(n) for n in (1, 2, 3, 8, 12)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 8],
        [1, 2, 4, 8, 12],
    ]


@pytest.mark.parametrize("short", [False, True])
def test_cases_are_distinct(short):
    cases = kernel_cases.cases(short)
    keys = [(case.name, case.dtype, case.shape) for case in cases]
    assert len(set(keys)) == len(keys)
    assert all(case.nbytes > 0 for case in cases)


def test_every_family_of_kernels_has_a_case():
    """Masks of merge methods are measured by merging, experts and video by benchmarks of their
    own (lbrx/benchmarks/experts_speed.py, lbrx-video/benchmarks)."""
    covered = {case.family for case in kernel_cases.cases(short=False)}
    elsewhere = {"merge_masks", "expert_matmul", "video_frames", "video_planes"}
    assert covered == set(kernels.FAMILIES) - elsewhere
    assert {case.family for case in kernel_cases.cases(short=True)} == covered
    assert {case.operation for case in kernel_cases.cases(short=True)} - set(OPERATIONS) == {
        "quantize",
        "dequantize",
    }


class Clock:
    """Works that take a known time on a clock that they advance, and the order of their calls."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        self.order = ""
        monkeypatch.setattr("lbrx.bench.timing.time.perf_counter", lambda: self.now)

    def work(self, name: str, *seconds: float):
        """A work whose calls take these times in turn, the last one from then on."""
        left = list(seconds)

        def call() -> None:
            self.order += name
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_interleaved_takes_turns(monkeypatch):
    clock = Clock(monkeypatch)
    works = {"a": clock.work("a", 9, 1, 1, 4, 2), "b": clock.work("b", 0.5)}
    timings = interleaved(works, Effort(rounds=3, seconds=100))
    assert clock.order == "aabb" + "ab" + "ba" + "ab"
    # The first call, which may compile, and the estimate do not count.
    assert timings["a"] == Timing(median=2, best=1, spread=0.375, rounds=3)
    assert timings["b"] == Timing(median=0.5, best=0.5, spread=0, rounds=3)


def test_short_works_are_repeated_and_slow_ones_are_not(monkeypatch):
    clock = Clock(monkeypatch)
    works = {"a": clock.work("a", 0.0005), "b": clock.work("b", 3.0)}
    timings = interleaved(works, Effort(rounds=4, seconds=2.0))
    sample = "a" + 20 * "a"  # the first one is not timed
    assert clock.order == "aab" + sample + "b" + "b" + sample + sample
    assert timings["a"].median == pytest.approx(0.0005)
    assert (timings["a"].rounds, timings["b"].rounds) == (3, 2)


def test_a_work_waits_for_threads_that_spin(monkeypatch):
    """A clock of the process that advances through the first 4 pauses, as threads that spin do."""
    pauses, computed = [], [0.0]
    monkeypatch.setattr("lbrx.bench.timing.time.process_time", lambda: computed[0])

    def sleep(seconds):
        pauses.append(seconds)
        computed[0] += seconds if len(pauses) <= 4 else 0.0

    monkeypatch.setattr("lbrx.bench.timing.time.sleep", sleep)
    interleaved({"a": lambda: None}, Effort(rounds=2, seconds=1.0))
    assert len(pauses) == 5 + 1


def test_ceilings_do_what_they_count():
    maker = CeilingMaker(context(), 2)
    made = maker.of(nbytes=3 << 20, operations=1.0, reads=True, dtype="float32", side=64)
    maker.close()
    copies = [one for one in made.values() if one.kind == "copy"]
    assert copies
    assert all(one.amount == pytest.approx(3 << 20) for one in copies)
    products = [one for one in made.values() if one.kind == "product"]
    assert products
    assert all(one.amount == 2 * 64**3 for one in products)


def test_limits_are_the_best_of_each_kind():
    def ceiling(kind: str, amount: float) -> Ceiling:
        return Ceiling(kind, lambda: None, amount)

    timing = Timing(median=4.0, best=2.0, spread=0.0, rounds=3)
    made = {"a": ceiling("copy", 10), "b": ceiling("read", 30), "c": ceiling("product", 8)}
    assert limits(made, dict.fromkeys(made, timing)) == Limits(15.0, 4.0)
    assert Limits(15.0, 4.0).seconds(30.0, 40.0) == 10.0
    assert Limits(15.0, None).seconds(30.0, 40.0) == 2.0


def test_energy_of_packages(tmp_path):
    """Counters of parts are not counted twice; a counter wraps around."""
    assert find_meter(tmp_path) is None
    for name, value in {"intel-rapl:0": 900, "intel-rapl:0:0": 5, "intel-rapl:1": 50}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{value}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("1000\n")
    meter = find_meter(tmp_path)
    assert meter.joules() == 0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("250\n")
    assert meter.joules() == pytest.approx(400e-6)


def test_peers_that_are_missing_or_unknown(monkeypatch):
    monkeypatch.setattr("lbrx.bench.peers.find_spec", lambda name: None)
    assert find(NAMES, 2) == ([], list(NAMES))
    with pytest.raises(LbrxError, match="caffe is not a known peer: give some of numpy, torch"):
        find(["caffe"], 2)


def test_what_fails_becomes_a_note():
    made = run.Results()

    def fails(made: run.Results) -> None:
        raise LbrxError("no memory")

    tasks = [run.Task("first", fails), run.Task("second", adds)]
    run._measure(tasks, made, lambda *_: None)
    assert made.rows == [ROW]
    assert made.notes == ["first: no memory"]
    assert made.complete


def test_an_interrupt_keeps_what_was_measured(tmp_path, monkeypatch, capsys):
    def interrupted(made: run.Results) -> None:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not interrupted")

    tasks = [run.Task("first", adds), run.Task("second", interrupted)]
    monkeypatch.setattr(run, "_tasks", lambda *_: iter(tasks))
    assert cli.main(["bench", "--out", str(tmp_path)]) == 130
    report = read(tmp_path / "report.json")
    assert report.rows == [ROW]
    assert not report.complete
    assert report.notes[-1] == "interrupted after 1 of 2 measurements"
    assert "interrupted" in capsys.readouterr().err


def test_nothing_to_measure(tmp_path, capsys):
    assert cli.main(["bench", "--only", "no such case", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        "lbrx: no case of kernels, models, formats, merge has no such case in its name: "
        "give another part\n"
    )


# ---- the report ----


class _Page(HTMLParser):
    """Checks that elements are closed in order, and collects what would be loaded."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.kinds: set[str] = set()

    def handle_starttag(self, tag, attributes):
        self.kinds.add(tag)
        given = dict(attributes)
        self.ids.add(given.get("id") or "")
        self.loaded += [given[name] for name in ("src", "href") if given.get(name)]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.kinds.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_whole_and_offline():
    product = replace(
        ROW, name="<matmul>", operations=1e6, peak=1e9, peak_memory=1 << 20, joules=0.5
    )
    scaling = [{"name": "softmax", "threads": n, "seconds": 1 / n} for n in (1, 2)]
    report = replace(of(ROW, product), scaling=scaling, memory={"pool_hits": 3, "pool_misses": 1})
    text = page(report, comparison.compare(report, of(replace(ROW, seconds=0.001))))
    seen = _Page()
    seen.feed(text)
    assert seen.open == []
    assert {"svg", "table", "nav"} <= seen.kinds
    assert seen.loaded
    assert all(link[1:] in seen.ids for link in seen.loaded)
    assert "script" not in seen.kinds
    assert "&lt;matmul&gt;" in text
    assert "<matmul>" not in text
    assert "prefers-color-scheme: dark" in text
    for title in ("Changes", "Performance", "Peers", "Correctness", "Memory", "Scaling", "Energy"):
        assert f">{title}</h2>" in text
    assert "nan" not in text
    assert "75.0%" in text


def test_apple_figures_are_modelled_and_say_so():
    """256 MB at the M1's 68 GB/s."""
    text = page(of(replace(ROW, nbytes=256e6)))
    assert "Modelled, not measured" in text
    assert "<th>M1 (modelled)</th>" in text
    least = chip_roofline("M1").time(256e6, 0)
    assert f"<td>{least * 1e3:.3g} ms</td>" in text
    assert 3e-3 < least < 4e-3


def test_ratio_bars_meet_at_one():
    """A ratio and its inverse have bars of the same length on the two sides of the line."""
    text = ratio_plot("ratios", [Bar("twice", 2.0), Bar("half", 0.5)])
    bars = re.findall(r'<rect class="c0" x="([\d.]+)" y="\d+" width="([\d.]+)"', text)
    (first, width), (second, other) = [(float(x), float(w)) for x, w in bars]
    line = float(re.search(r'class="roof" d="M([\d.]+)', text)[1])
    assert first == pytest.approx(line, abs=0.2)
    assert second + other == pytest.approx(line, abs=0.2)
    assert width == pytest.approx(other, abs=0.2)
    assert bar_plot("none", []) == ratio_plot("none", []) == ""


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.full
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [360, 1200])
def test_page_in_a_browser(tmp_path, width):
    """It is not wider than a phone, and says nothing on the console."""
    path = tmp_path / "report.html"
    script = "<script>document.title = document.documentElement.scrollWidth</script>"
    path.write_text(page(of(ROW, replace(ROW, name="sum", peers={"torch": 0.001}))) + script)
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--enable-logging=stderr", f"--window-size={width},900", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") >= 3
    # Chromium without a screen is at least 500 pixels wide.
    assert int(re.search("<title>(.*)</title>", done.stdout)[1]) <= max(width, 500)


def test_page_of_nothing_but_one_plain_row():
    row = Row("models", "decode", "q8_0", [1], "replay", 0.01, 0.1, 3)
    text = page(of(row))
    assert "decode" in text
    assert ">Performance<" not in text
    assert ">Energy<" not in text


def test_markdown_has_a_cell_for_each_column():
    other = replace(ROW, name="sum", peers={"torch": 0.001}, share_of_ceiling=None)
    rows = [line for line in markdown(of(ROW, other)).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {9}
    assert "| 2 ms ±2% |" in rows[2]
    assert rows[2].endswith("| 50% | 2.00 |  |")
    assert rows[3].endswith("|  |  | 0.50 |")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "has no rows"),
        ('{"version": 1}', "has no rows"),
        ('{"version": 99, "rows": []}', "version 99"),
        ('{"version": 1, "rows": []}', "machine"),
        ('{"version": 1, "machine": {}, "rows": [{"name": "x"}]}', "suite"),
        ('{"version": 1, "machine": {}, "rows": [3]}', "give a report.json"),
    ],
)
def test_files_that_are_not_reports(tmp_path, content, problem):
    path = tmp_path / "old.json"
    path.write_text(content)
    with pytest.raises(FormatError, match=problem):
        read(path)


@pytest.mark.parametrize("seconds", [0, -1.0, "fast", None])
def test_rows_without_a_time(tmp_path, seconds):
    path = tmp_path / "old.json"
    path.write_text(of(replace(ROW, seconds=seconds)).json())
    with pytest.raises(FormatError, match="softmax took"):
        read(path)


def test_a_report_survives_its_file(tmp_path):
    path = tmp_path / "report.json"
    report = replace(of(ROW), notes=["a note"], peers={"numpy": "2"})
    path.write_text(report.json())
    assert read(path) == report


# ---- comparing ----


@pytest.mark.parametrize(
    ("seconds", "spread", "change"),
    [
        (0.0020, 0.00, "same"),
        (0.0021, 0.00, "same"),  # clocks
        (0.0022, 0.00, "slower"),
        (0.0022, 0.04, "same"),  # within the spreads of both
        (0.0030, 0.04, "slower"),
        (0.0018, 0.00, "faster"),
        (0.0018, 0.10, "same"),
    ],
)
def test_changes_beyond_the_spread(seconds, spread, change):
    old, new = replace(ROW, spread=0.02), replace(ROW, seconds=seconds, spread=spread)
    (one,) = comparison.compare(of(new), of(old))
    assert one.change == change
    assert math.isclose(one.ratio, seconds / 0.002)


def test_lines_of_a_comparison():
    slow = replace(ROW, seconds=0.01, variant="softmax:simd")
    other = replace(ROW, name="sum")
    new = replace(of(slow, other), machine={"device": "another", "threads": 2})
    lines = list(comparison.lines(new, of(ROW, other)))
    assert lines[0] == "device differs: a device before, another now"
    assert lines[1].startswith("slower: softmax float32 4x8: 2.000 ms before, 10.000 ms now")
    assert lines[1].endswith("softmax:serial before, softmax:simd now")
    assert lines[2] == "1 of 2 rows are the same within their spread"
    assert "no row is in both" in next(comparison.lines(of(ROW), of(other)))


def test_numpy_operations_agree_with_the_table_of_operations():
    """The reference of the report against another formula."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 5))
    assert np.allclose(OPERATIONS["softmax"](x).sum(-1), 1)
    assert np.allclose(OPERATIONS["layer_norm"](x).std(-1), 1, atol=1e-4)
    image, weight = rng.standard_normal((1, 2, 4, 5)), rng.standard_normal((3, 2, 3, 3))
    direct = sum(
        weight[:, c, i, j, None, None] * image[0, c, i : i + 2, j : j + 3]
        for c in range(2)
        for i in range(3)
        for j in range(3)
    )
    assert np.allclose(OPERATIONS["conv2d"](image, weight)[0], direct)
    q, k = rng.standard_normal((1, 2, 3, 4)), rng.standard_normal((1, 1, 3, 4))
    first = OPERATIONS["attention"](q, k, k, causal=True)[:, :, 0]
    assert np.allclose(first, k[:, :, 0])  # the first query sees the first key alone
    assert OPERATIONS["topk"](np.array([[1.0, 9, 4, 7]]), 2).tolist() == [[9, 7]]
    total = OPERATIONS["scatter"](np.zeros((1, 3)), np.array([[0, 0]]), np.array([[1.0, 2]]))
    assert total.tolist() == [[3, 0, 0]]
