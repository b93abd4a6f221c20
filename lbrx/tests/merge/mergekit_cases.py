"""Configurations of every merge method on tiny models, for comparisons with mergekit.

`data/make_mergekit_cases.py` stores what mergekit makes of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

HIDDEN, WIDE, VOCABULARY = 12, 16, 20
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
    **{f"{LAYER}.self_attn.{p}_proj.weight": (HIDDEN, HIDDEN) for p in "qkvo"},
    **{f"{LAYER}.mlp.{p}_proj.weight": (WIDE, HIDDEN) for p in ("gate", "up")},
    f"{LAYER}.mlp.down_proj.weight": (HIDDEN, WIDE),
    f"{LAYER}.input_layernorm.weight": (HIDDEN,),
    f"{LAYER}.post_attention_layernorm.weight": (HIDDEN,),
    "model.norm.weight": (HIDDEN,),
    "lm_head.weight": (VOCABULARY, HIDDEN),
}
MODELS = "base", "one", "two", "three"
Tensors = Mapping[str, NDArray[Any]]


def inputs() -> dict[str, dict[str, NDArray[np.float32]]]:
    """A base and three models near it, with a part that no model changes."""
    rng = np.random.default_rng(11)
    result: dict[str, dict[str, NDArray[np.float32]]] = {name: {} for name in MODELS}
    for tensor, shape in SHAPES.items():
        base = rng.standard_normal(shape).astype(np.float32)
        for name in MODELS:
            change = 0.1 * rng.standard_normal(shape) * (rng.random(shape) < 0.8)
            near = base if name == "base" else (base + change).astype(np.float32)
            result[name][tensor] = near
    return result


def write(folder: Path, models: Mapping[str, Tensors], dtype: Any = np.float32) -> None:
    """The models as checkpoints."""
    for name, tensors in models.items():
        path = folder / name
        path.mkdir()
        save_file({n: t.astype(dtype) for n, t in tensors.items()}, path / "model.safetensors")
        names = {np.float32: "float32", ml_dtypes.bfloat16: "bfloat16"}
        (path / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": names[dtype]}))


def _case(method: str, *own: dict[str, float], base: bool = True, **parameters: Any) -> Any:
    """The first models, each with parameters of its own."""
    given = dict(zip(MODELS[1:], own, strict=False))
    models = [{"model": name, **({"parameters": p} if p else {})} for name, p in given.items()]
    whole: dict[str, Any] = {"merge_method": method, "models": models}
    if base:
        whole["base_model"] = "base"
    if parameters:
        whole["parameters"] = {key.rstrip("_"): value for key, value in parameters.items()}
    return whole


W3, W9, W5 = {"weight": 0.3}, {"weight": 0.9}, {"weight": 0.5}
D3, D9, D5 = ({**w, "density": d} for w, d in ((W3, 0.4), (W9, 0.7), (W5, 0.55)))
FULL = {"weight": 0.6, "density": 1.0}
CASES: dict[str, Any] = {
    "linear": _case("linear", W3, W9, W5, base=False),
    "linear sum": _case("linear", W3, {"weight": -0.9}, base=False, normalize=False),
    "slerp": _case("slerp", {}, t=0.3),
    "nuslerp": _case("nuslerp", W3, W9, base=False),
    "nuslerp base": _case("nuslerp", W3, W9),
    "nuslerp rows": _case("nuslerp", W3, W9, base=False, nuslerp_flatten=False),
    "nuslerp columns": _case("nuslerp", W3, W9, nuslerp_flatten=False, nuslerp_row_wise=True),
    "multislerp": _case("multislerp", W3, W9, W5, base=False),
    "multislerp base": _case("multislerp", W3, W9, W5),
    "karcher": _case("karcher", {}, {}, {}, base=False),
    "task_arithmetic": _case("task_arithmetic", W3, W9, lambda_=0.7),
    "task_arithmetic mean": _case("task_arithmetic", W3, W9, W5, normalize=True),
    "ties": _case("ties", D3, D9),
    "ties sum": _case("ties", D3, D9, D5, normalize=False, rescale=True, lambda_=1.3),
    "dare_ties": _case("dare_ties", FULL, W3),
    "dare_linear": _case("dare_linear", FULL, W3, normalize=True),
    "della": _case("della", FULL, W3),
    "della_linear": _case("della_linear", FULL, W9),
    "breadcrumbs": _case("breadcrumbs", {**D3, "gamma": 0.1}, D9),
    "breadcrumbs_ties": _case("breadcrumbs_ties", {**D3, "gamma": 0.5}, D9, rescale=True),
    "sce": _case("sce", {}, {}, {}),
    "sce selected": _case("sce", {}, {}, {}, select_topk=0.4),
    "model_stock": _case("model_stock", {}, {}, {}),
    "model_stock rows": _case("model_stock", {}, {}, filter_wise=True),
    "nearswap": _case("nearswap", {}, t=0.01),
    "arcee_fusion": _case("arcee_fusion", {}),
    "ram": _case("ram", {}, {}, {}),
    "ramplus_tl": _case("ramplus_tl", {}, {}, {}, r=0.3, alpha=3.0),
    "passthrough": _case("passthrough", {"scale": 0.5}, base=False),
}
HALVES = ("linear", "slerp", "ties")
"""Cases that are stored for bfloat16 too."""


def placed(case: Any, folder: Path) -> Any:
    """A case whose models are folders."""
    models = [{**m, "model": str(folder / m["model"])} for m in case["models"]]
    base = {"base_model": str(folder / case["base_model"])} if "base_model" in case else {}
    if case["merge_method"] in ("slerp", "nearswap", "arcee_fusion"):
        models = [{"model": base["base_model"]}, *models]  # mergekit wants both listed
    return {**case, **base, "models": models}


def by_mergekit(case: Any, target: Path) -> dict[str, NDArray[Any]]:
    """The tensors that mergekit makes, which must be installed."""
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    shutil.rmtree(target, ignore_errors=True)
    options = MergeOptions(copy_tokenizer=False, quiet=True)
    run_merge(MergeConfiguration.model_validate(case), str(target), options)
    return load_file(target / "model.safetensors")


def check(got: Tensors, expected: Tensors, case: str, dtype: str) -> None:
    """Whether two merges agree: to some units in the last place, but for elements where rounding
    decides a comparison. In bfloat16 mergekit rounds differences before it ranks and adds them."""
    assert set(got) == set(expected)
    near = 1e-5 if dtype == "float32" else 2e-2
    few = {"nearswap": 0.01, "ram": 0.01, "ramplus_tl": 0.01, "arcee_fusion": 0.03}.get(case, 0.0)
    if dtype == "bfloat16" and case == "ties":
        few = 0.1
    bad = total = 0
    for name, values in expected.items():
        wide = values.astype(np.float64)
        error = np.abs(got[name].astype(np.float64) - wide)
        bad += int((error > near * np.maximum(np.abs(wide), 1)).sum())
        total += values.size
    assert bad <= few * total, f"{bad} of {total} elements differ"
