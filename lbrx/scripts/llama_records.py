"""Record llama.cpp's quantization errors and choices of types, for the default tests.

python lbrx/scripts/llama_records.py     # where `llama_cpp` and `gguf` are installed
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from lbrx import quant

TESTS = Path(__file__).parent.parent / "tests"
RECORDS = TESTS / "quant"
sys.path += [str(RECORDS), str(TESTS / "peers")]
import llama_models  # noqa: E402
from quant_data import make, rmse  # noqa: E402

VERSION = {"made with": f"llama-cpp-python {llama_cpp.__version__}"}
SEED = 20
SHAPE = (48, 1024)
DATA = ("gaussian", "weights", "outliers", "laplace")
SCHEMES = "q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs".split()


def error(quantize: llama_models.Quantizer, scheme: str, data: str, weighted: bool) -> Any:
    rng = np.random.default_rng(SEED)
    values = make(data, rng, SHAPE)
    importance = rng.standard_normal(SHAPE[-1]).astype(np.float32) ** 2
    stored = quantize(values, scheme, importance if weighted else None)
    back = quant.dequantize(stored, scheme, SHAPE)
    found = rmse(values, back, importance if weighted else 1.0)
    return {"scheme": scheme, "data": data, "importance": weighted, "rmse": float(f"{found:.6g}")}


def general(name: str) -> str:
    """A tensor's name for every layer."""
    return re.sub(r"^blk\.\d+\.", "blk.*.", name)


def shapes(facts: quant.ModelFacts, columns: int) -> dict[str, tuple[int, ...]]:
    """The tensors with two axes; others are never quantized."""
    every = llama_models.tensors(facts, columns).items()
    return {general(name): shape for name, shape in every if len(shape) > 1}


def choices(folder: Path, model: str, mixture: str) -> dict[str, Any]:
    """Types along the layers, like `q6_k*2 q4_k*5 ...`: the most frequent one, and the others."""
    kinds: dict[str, list[str | None]] = {name: [] for name in shapes(*llama_models.MODELS[model])}
    for name, kind in llama_models.llama_types(llama_cpp, folder, model, mixture).items():
        if general(name) in kinds:
            kinds[general(name)].append(kind)
    runs = {
        name: " ".join(f"{kind}*{len(list(run))}" for kind, run in groupby(along))
        for name, along in kinds.items()
    }
    most = Counter(runs.values()).most_common(1)[0][0]
    others = {name: run for name, run in runs.items() if run != most}
    return {"model": model, "mixture": mixture, "most": most, "others": others}


def write(name: str, head: dict[str, Any], cases: Sequence[Any]) -> None:
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = f'{json.dumps(VERSION | head)[:-1]}, "cases": [\n{lines}\n]}}\n'
    (RECORDS / name).write_text(text)


def main() -> None:
    quantize = llama_models.ggml_quantizer(llama_cpp)
    errors = [error(quantize, scheme, data, False) for scheme in SCHEMES for data in DATA]
    errors += [error(quantize, scheme, "gaussian", True) for scheme in SCHEMES]
    write("llama_errors.json", {"seed": SEED, "shape": SHAPE}, errors)
    with tempfile.TemporaryDirectory() as folder:
        chosen = [
            choices(Path(folder), model, mixture)
            for model in llama_models.MODELS
            for mixture in llama_models.mixtures_of(model)
        ]
    models = {
        name: {"facts": asdict(facts), "shapes": shapes(facts, columns)}
        for name, (facts, columns) in llama_models.MODELS.items()
    }
    write("llama_choices.json", {"models": models}, chosen)


if __name__ == "__main__":
    main()
