"""docs/howto/quantization.md: its table is fresh and its examples do what they say."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import numpy as np

import lbrx
from lbrx import quant

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = (ROOT / "docs" / "howto" / "quantization.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_is_fresh():
    spec = importlib.util.spec_from_file_location(
        "table", ROOT / "lbrx" / "scripts" / "quant_table.py"
    )
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.page(PAGE) == PAGE, "run lbrx/scripts/quant_table.py"


def test_the_examples_run(rng):
    weights = rng.standard_normal((32, 512)).astype(np.float32)
    raw_bytes = quant.quantize(weights, "q4_k").data.tobytes()
    names = {"weights": weights, "raw_bytes": raw_bytes}
    exec(BLOCKS[0].replace("(4096, 14336)", "(32, 512)"), names)
    assert names["rows"].scales.shape == (10, 8)


def test_the_examples_on_a_device_run(rng):
    names = {
        "lbrx": lbrx,
        "weights": lbrx.tensor(rng.standard_normal((32, 512)).astype(np.float32)),
        "x": lbrx.ones((2, 512)),
        "bias": lbrx.zeros(32),
        "indices": lbrx.tensor([3, 4]),
    }
    exec(BLOCKS[1], names)
    assert names["w"].quantization.scheme == "q4_k"


def test_the_mixture_example_says_what_comes_out():
    names = {"quant": quant}
    checked = 0
    for line in BLOCKS[-1].splitlines():
        code, _, comment = line.partition("#")
        if comment:
            expected = ast.literal_eval(comment.partition(":")[0].strip())
            assert eval(code, names) == expected, line
            checked += 1
        else:
            exec(code, names)
    assert checked == 4


def test_the_codec_is_the_one_that_is_tested():
    (codec,) = re.findall(r"```cpp\n(.*?)```", PAGE, re.DOTALL)
    assert codec in Path(__file__).with_name("test_scheme_from_outside.py").read_text()
