"""docs/explanation/reliability.md: its tests exist, and its numbers are those of the tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
for folder in ("attacks", "models", "kernels"):
    sys.path.append(str(ROOT / "lbrx" / "tests" / folder))
sys.path.append(str(ROOT / "softmetal" / "tests" / "compiler"))

PAGE = (ROOT / "docs" / "explanation" / "reliability.md").read_text("utf-8")
ROWS = re.findall(r"^\| (.+?) \| ([\d,-]+) \| ([\d,-]+) \|.* `(\S+)` \|$", PAGE, re.M)


def counted() -> dict[str, int]:
    """Numbers that are sizes of tables, by the start of their row."""
    import attack_table
    import test_cache_damage
    import test_chat_templates
    import test_dtype_pairs
    import test_limits
    import test_mutations
    import test_quantized_checkpoints

    dtypes = len(test_dtype_pairs.ON_METAL)
    compared = len(test_dtype_pairs.COMPARED + test_dtype_pairs.LOGICAL)
    files = len(test_cache_damage.FILE_DAMAGE)
    return {
        "one hostile file": len(attack_table.ATTACKS),
        f"{files} kinds of damage to each of 3": 3 * files,
        "damaged folders of the cache": len(test_cache_damage.FOLDER_DAMAGE),
        "hostile chat templates": len(test_chat_templates.HOSTILE),
        "quantized checkpoints": 2 * len(test_quantized_checkpoints.KINDS),
        "shapes beyond 64 bits": 2 * len(test_limits.UNREPRESENTABLE),
        "more memory than there is": 2 * len(test_limits.TOO_LONG),
        f"casts between the {dtypes} dtypes": dtypes**2,
        "the same pairs under 9": compared * dtypes**2,
        "safetensors, GGUF": test_mutations.FULL // len(test_mutations.CASES),
        "journals of conversions": test_mutations.FULL // len(test_mutations.CASES),
        "pairs of dtypes under 12": len(test_dtype_pairs.NAMES) * dtypes * (dtypes + 1) // 2,
    }


def test_rows_name_tests_that_exist():
    assert len(ROWS) == PAGE.count("/test_")
    for what, *_, path in ROWS:
        assert (ROOT / path).is_file(), what


def test_sizes_of_tables():
    for start, number in counted().items():
        (row,) = [row for row in ROWS if row[0].startswith(start)]
        assert f"{number:,}" in row[1:3], (row[0], number)


@pytest.mark.parametrize(
    ("start", "literals"),
    [
        ("safetensors, GGUF", ["250"]),
        ("the same seven files: changes", ["60", "12_000"]),
        ("the same seven files, converted", ["2_000"]),
        ("noise after", ["1_000"]),
        ("journals of conversions", ["60"]),
        ("JSON settings", ["150", "2_000"]),
        ("folders of models", ["150", "10_000"]),
        ("random graphs of operations", ["=6", "=300"]),
        ("random graphs, computed", ["=4", "=150"]),
        ("the same with sums", ["=2", "=60"]),
        ("plans of random graphs", ["100"]),
        ("crashes in 3 threads", ["90"]),
    ],
)
def test_numbers_in_the_tests(start, literals):
    (row,) = [row for row in ROWS if row[0].startswith(start)]
    text = (ROOT / row[3]).read_text("utf-8")
    for literal in literals:
        assert re.search(rf"(?<![\d_]){literal}(?![\d_])", text), literal
        assert f"{int(literal.strip('=').replace('_', '')):,}" in row[1:3], literal
