"""llama.cpp through llama-cpp-python: its quantizer, and the types it chooses in tiny models."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.quant import ModelFacts

Floats = NDArray[np.float32]
Quantizer = Callable[[Floats, str, Floats | None], NDArray[np.uint8]]

# Models for every branch of llama.cpp's choice of types: numbers of layers, shared keys, experts, importance.
MODELS = {
    "dense": (ModelFacts(16), 256),
    "tied": (ModelFacts(16, tied_embeddings=True), 256),
    "shared keys": (ModelFacts(9, queries_per_key=4), 256),
    "experts": (ModelFacts(8, queries_per_key=4, experts=8), 256),
    "importance": (ModelFacts(24, importance=True), 256),
    "eighty layers": (ModelFacts(80, queries_per_key=8), 256),
    "narrow": (ModelFacts(8), 288),
    "very narrow": (ModelFacts(4), 40),
}
_IN_LAYER = "attn_norm attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_up ffn_down".split()
_EXPERTS = {"ffn_gate": "ffn_gate_exps", "ffn_up": "ffn_up_exps", "ffn_down": "ffn_down_exps"}


def ggml_quantizer(llama_cpp: Any) -> Quantizer:
    """(values, scheme, importance) to bytes."""
    library = next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.*"))
    function = ctypes.CDLL(str(library)).ggml_quantize_chunk
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [ctypes.c_int, pointer, pointer, size, size, size, pointer]
    function.restype = ctypes.c_size_t

    def quantize(values: Floats, name: str, importance: Floats | None) -> NDArray[np.uint8]:
        scheme = quant.find(name)
        data = np.zeros(scheme.nbytes(values.shape), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        pointers = values.ctypes.data, data.ctypes.data
        assert function(scheme.gguf_id, *pointers, 0, *values.shape, weights) == data.size
        return data

    return quantize


def tensors(facts: ModelFacts, columns: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes; two rows are enough for a choice of types."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (2, columns)}
    for layer in range(facts.layers):
        for name in _IN_LAYER:
            shape: tuple[int, ...] = (columns,) if name.endswith("norm") else (2, columns)
            if facts.experts and name in _EXPERTS:
                name, shape = _EXPERTS[name], (facts.experts, 2, columns)
            shapes[f"blk.{layer}.{name}.weight"] = shape
        if facts.experts:
            shapes[f"blk.{layer}.ffn_gate_inp.weight"] = (facts.experts, columns)
    shapes["output_norm.weight"] = (columns,)
    if not facts.tied_embeddings:
        shapes["output.weight"] = (2, columns)
    return shapes


def write_model(path: Path, facts: ModelFacts, columns: int) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(facts.layers)
    writer.add_context_length(64)
    writer.add_embedding_length(columns)
    writer.add_feed_forward_length(columns)
    writer.add_head_count(8)
    writer.add_head_count_kv(8 // facts.queries_per_key)
    writer.add_layer_norm_rms_eps(1e-5)
    if facts.experts:
        writer.add_expert_count(facts.experts)
        writer.add_expert_used_count(2)
    rng = np.random.default_rng(0)
    for name, shape in tensors(facts, columns).items():
        writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_types(llama_cpp: Any, folder: Path, model: str, mixture: str) -> dict[str, str | None]:
    """The type of each tensor after llama.cpp quantized the model; None for one left as it was."""
    facts, columns = MODELS[model]
    source, target = folder / f"{model}.gguf", folder / "quantized.gguf"
    if not source.exists():
        write_model(source, facts, columns)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = quant.find_mixture(mixture).file_type
    params.nthread = 1
    if facts.importance:
        ones = (ctypes.c_float * (columns * max(facts.experts, 1)))(*[1.0] * columns)
        entry = llama_cpp.llama_model_imatrix_data
        rows = [entry(name.encode(), ones, len(ones)) for name in tensors(facts, columns)]
        params.imatrix = (entry * (len(rows) + 1))(*rows)
    status = llama_cpp.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(params)
    )
    assert status == 0, f"llama.cpp cannot make {mixture} of the model {model!r}"
    types = {t.name: t.tensor_type.name.lower() for t in gguf.GGUFReader(target).tensors}
    return {name: None if kind == "f32" else kind for name, kind in types.items()}


def mixtures_of(model: str) -> list[str]:
    """Q2_K_S needs importance."""
    return [name for name in quant.MIXTURES if name != "q2_k_s" or MODELS[model][0].importance]
