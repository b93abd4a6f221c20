"""The pytest plugin, in separate test runs."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="checks are softmetal's own")

PROGRAM = '''
import pytest
import softmetal

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void past_end(device float* o [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  o[t + 1] = t;
}
kernel void racing(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = t;
  o[t] = s[63 - t];
}
kernel void clean(device float* o [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  o[t] = t;
}
"""


def run(name):
    device = softmetal.MTLCreateSystemDefaultDevice()
    library, _ = device.newLibraryWithSource_options_error_(SOURCE, None, None)
    function = library.newFunctionWithName_(name)
    pipeline, _ = device.newComputePipelineStateWithFunction_error_(function, None)
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(device.newBufferWithLength_options_(256, 0), 0, 0)
    encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (64, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    return commands

'''


@pytest.fixture
def outcome(pytester):
    """Run a test module that follows the program; the result."""

    def run(tests, *arguments):
        pytester.makepyfile(PROGRAM + tests)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    return run


def test_the_entry_point():
    (found,) = (e for e in metadata.entry_points(group="pytest11") if e.name == "softmetal")
    assert found.value == "softmetal.pytest_plugin"


def test_plain_runs_do_not_import_the_api():
    code = (
        "import sys, softmetal.pytest_plugin;"
        "assert not [m for m in sys.modules if m.startswith('softmetal.') and "
        "m not in ('softmetal.pytest_plugin', 'softmetal.errors')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_a_request_nothing_is_checked(outcome):
    result = outcome("def test_it(): assert run('past_end').error() is None")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("softmetal: checks*")


def test_the_fixture_fails_a_test_with_a_finding(outcome):
    result = outcome(
        """
def test_bounds(softmetal_check): run("past_end")
def test_race(softmetal_check): run("racing")
def test_clean(softmetal_check): run("clean")
"""
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "softmetal found (again with --softmetal-seed=*):",
            "bounds: kernel 'past_end' writes 4 bytes beyond buffer 0*",
            "race: kernel 'racing': threadgroup memory 's'*",
        ]
    )


def test_a_finding_that_was_looked_at_is_the_tests_own_business(outcome):
    result = outcome(
        """
def test_seen(softmetal_check):
    assert "bounds: " in run("past_end").error().localizedDescription()

def test_one_of_two(softmetal_check):
    run("past_end").error()
    run("past_end")

def test_findings(softmetal_check):
    run("past_end").error()
    assert len(softmetal_check.findings) == 1
"""
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*test_one_of_two*"])


def test_a_failing_test_shows_its_findings_too(outcome):
    result = outcome(
        """
def test_both(softmetal_check):
    run("past_end")
    assert 1 == 2
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*", "*softmetal*", "seed *", "bounds: *"])


def test_modes_and_seed_of_a_marker(outcome):
    result = outcome(
        """
@pytest.mark.softmetal_check("bounds", seed=7)
def test_bounds_only(): run("racing")

@pytest.mark.softmetal_check("race", seed=7)
def test_race_only(softmetal_check):
    assert softmetal_check.seed == 7
    assert softmetal_check.modes == {"race"}
    run("past_end")

@pytest.mark.softmetal_check(seed=8)
def test_all(): run("racing")
""",
        "--strict-markers",
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*--softmetal-seed=8*", "race: *seed 8"])


def test_modes_of_a_parameter(outcome):
    result = outcome(
        """
@pytest.mark.parametrize("softmetal_check", ["bounds", ("race", "uninit")], indirect=True)
def test_it(softmetal_check): run("racing")
"""
    )
    result.assert_outcomes(passed=1, failed=1)


def test_the_option_checks_a_whole_run(outcome):
    result = outcome(
        """
@pytest.fixture(scope="module")
def early(): return run("past_end")

def test_bounds(): run("past_end")
def test_race(): run("racing")
def test_clean(): run("clean")
def test_seen(): run("racing").error()
def test_fixture(early): pass
""",
        "--softmetal-check=bounds,race",
        "--softmetal-seed=11",
    )
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(["softmetal: checks bounds,race, seed 11", "*seed 11*"])


@pytest.mark.parametrize(("given", "printed"), [("", r"\d+"), ("97", "97")])
def test_a_seed_is_chosen_for_the_header(monkeypatch, outcome, given, printed):
    monkeypatch.setenv("SOFTMETAL_SEED", given)
    result = outcome("def test_it(): run('clean')", "--softmetal-check=race")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([f"softmetal: checks race, seed {printed}$"])


def test_workers_share_the_seed(outcome):
    result = outcome(
        """
@pytest.mark.parametrize("n", range(4))
def test_seed(n):
    from softmetal import checks
    assert checks.current().seed == 5
    assert checks.modes() == {"race"}
    run("clean")
""",
        "--softmetal-check=race",
        "--softmetal-seed=5",
        "-n2",
    )
    result.assert_outcomes(passed=4)


def test_an_unknown_mode_is_refused(outcome):
    result = outcome("def test_it(): pass", "--softmetal-check=bonds")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--softmetal-check: 'bonds' is not a mode: give all, or a list of bounds, race, uninit*"]
    )
