"""What Apple's compiler refuses is refused under strict checking, and accepted twins are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rule_cases import RULES, Rule, text, together
from space_cases import CASES, LOCALS, PARAMETERS, PRELUDE

from softmetal import compiler
from softmetal.errors import CompileError
from softmetal.types import CompileOptions

STRICT = CompileOptions(strict=True)


def kernels(bodies: list[str]) -> str:
    """One kernel a line, after the prelude."""
    lines = [
        f"kernel void k{n}({PARAMETERS}) {{ {LOCALS} {body} }}" for n, body in enumerate(bodies)
    ]
    return PRELUDE + "\n".join(line.replace("{n}", str(n)) for n, line in enumerate(lines)) + "\n"


def errors(source: str, options: CompileOptions = STRICT) -> list[tuple[int, int, str]]:
    """(line, column, message) of each error."""
    try:
        compiler.compile_library(source, options)
    except CompileError as error:
        found = re.findall(r"^program_source:(\d+):(\d+): (?:fatal )?error: (.*)$",
                           error.diagnostics, re.MULTILINE)  # fmt: skip
        return [(int(line), int(column), message) for line, column, message in found]
    return []


def test_address_spaces_refused():
    first = PRELUDE.count("\n") + 1
    found = errors(kernels([case.refused for case in CASES]))
    said = {line - first: (column, message) for line, column, message in reversed(found)}
    assert not [case.refused for number, case in enumerate(CASES) if number not in said]
    for number, case in enumerate(CASES):
        column, message = said[number]
        assert case.error in message, (case.refused, message)
        assert column > len(f"kernel void k{number}({PARAMETERS}) {{ {LOCALS}")
        assert not re.search(r"__(private|local|global|generic|constant)\b", message), message


def test_address_spaces_accepted():
    assert errors(kernels([case.accepted for case in CASES])) == []


def test_a_program_that_is_accepted():
    assert errors((Path(__file__).parent / "accepted.metal").read_text()) == []


def test_operators_are_not_template_lists():
    """The `>` of an operator closes no template list: no `<` is before it in this source."""
    source = """struct P {
  float a;
  bool operator>(P b) const { return a > b.a; }
  P operator>>(int n) const { return {a / (1 << n)}; }
};
inline bool operator>(P a, float b) { return a.a > b; }
kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  P a{x[i]}, b{1};
  x[i] = (a > b) + (a > 2.0f) + (a >> 1).a;
}
"""
    assert errors(source) == []


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.error[:40])
def test_rules(case: Rule):
    options = CompileOptions(strict=True, limits=True, language_version=case.version)
    found = errors(text(case.refused), options)
    assert found
    assert found[0][2].startswith(case.error), found
    assert found[0][0] >= 3


@pytest.mark.parametrize("version", sorted({case.version for case in RULES}))
def test_accepted_twins(version: int):
    options = CompileOptions(strict=True, limits=True, language_version=version)
    accepted = [case.accepted for case in RULES if case.version == version]
    assert errors(together(accepted), options) == []


@pytest.mark.full
@pytest.mark.parametrize("case", RULES, ids=lambda case: case.error[:40])
def test_each_accepted_twin(case: Rule):
    options = CompileOptions(strict=True, limits=True, language_version=case.version)
    assert errors(text(case.accepted), options) == []


def test_there_are_enough():
    assert len(CASES) + len(RULES) >= 80
