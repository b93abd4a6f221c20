"""The tensors of tiny models with recurrent layers, of the sizes in tiny_models."""

from __future__ import annotations

Shapes = dict[str, tuple[int, ...]]
LAYERS, EXPERTS = 2, 3


def shapes(kind: str, scale: int, vocab: int) -> Shapes:
    """Under Hugging Face's names."""
    hidden = 16 * scale
    root, embedding, last = {
        "mamba2": ("backbone", "embeddings", "norm_f"),
        "lfm2": ("model", "embed_tokens", "embedding_norm"),
        "falcon_h1": ("model", "embed_tokens", "final_layernorm"),
    }.get(kind, ("model", "embed_tokens", "norm"))
    result: Shapes = {
        f"{root}.{embedding}.weight": (vocab, hidden),
        f"{root}.{last}.weight": (hidden,),
    }
    if kind != "lfm2":
        result["lm_head.weight"] = (vocab, hidden)
    for n in range(LAYERS):
        parts = _LAYERS[kind](n, scale)
        result |= {f"{root}.layers.{n}.{name}": shape for name, shape in parts.items()}
    return result


def _norms(scale: int, *names: str) -> Shapes:
    return {f"{name}.weight": (16 * scale,) for name in names}


def _attention(scale: int, output: str = "o_proj", norms: str = "", gated: bool = False) -> Shapes:
    hidden = 16 * scale
    rows = {"q_proj": hidden * (2 if gated else 1), "k_proj": 8 * scale, "v_proj": 8 * scale}
    result: Shapes = {f"self_attn.{name}.weight": (n, hidden) for name, n in rows.items()}
    result[f"self_attn.{output}.weight"] = (hidden, hidden)
    if norms:
        result |= {f"self_attn.{head}_{norms}.weight": (4 * scale,) for head in "qk"}
    return result


def _mamba(at: str, scale: int, heads: int, size: int, norm: bool = True) -> Shapes:
    inner, convolved = heads * size, heads * size + 2 * 2 * 12
    result: Shapes = {
        f"{at}.in_proj.weight": (inner + convolved + heads, 16 * scale),
        f"{at}.conv1d.weight": (convolved, 1, 4),
        f"{at}.conv1d.bias": (convolved,),
        f"{at}.out_proj.weight": (16 * scale, inner),
        **{f"{at}.{name}": (heads,) for name in ("A_log", "D", "dt_bias")},
    }
    return {**result, f"{at}.norm.weight": (inner,)} if norm else result


def _lfm2(n: int, scale: int) -> Shapes:
    hidden, wide = 16 * scale, 16 * scale  # two thirds of the setting, rounded up
    own: Shapes = {
        "conv.in_proj.weight": (3 * hidden, hidden),
        "conv.conv.weight": (hidden, 1, 3),
        "conv.out_proj.weight": (hidden, hidden),
    }
    mixer = _attention(scale, "out_proj", "layernorm") if n else own
    inner: Shapes = {f"feed_forward.{name}.weight": (wide, hidden) for name in ("w1", "w3")}
    inner["feed_forward.w2.weight"] = (hidden, wide)
    return {**_norms(scale, "operator_norm", "ffn_norm"), **mixer, **inner}


def _mamba2(n: int, scale: int) -> Shapes:
    return {**_norms(scale, "norm"), **_mamba("mixer", scale, 8, 4 * scale)}


def _granite(n: int, scale: int) -> Shapes:
    hidden, wide = 16 * scale, 1024
    mixer = _attention(scale) if n else _mamba("mamba", scale, 4, 8 * scale)
    mlp: Shapes = {
        "shared_mlp.input_linear.weight": (2 * wide, hidden),
        "shared_mlp.output_linear.weight": (hidden, wide),
    }
    return {**_norms(scale, "input_layernorm", "post_attention_layernorm"), **mixer, **mlp}


def _falcon(n: int, scale: int) -> Shapes:
    hidden, wide = 16 * scale, 24 * scale
    names = {"gate_proj": (wide, hidden), "up_proj": (wide, hidden), "down_proj": (hidden, wide)}
    return {
        **_norms(scale, "input_layernorm", "pre_ff_layernorm"),
        **_attention(scale),
        **_mamba("mamba", scale, 4, 8 * scale, norm=n > 0),
        **{f"feed_forward.{name}.weight": shape for name, shape in names.items()},
    }


def _qwen(n: int, scale: int) -> Shapes:
    hidden, wide = 16 * scale, 24 * scale
    keys, values = 2 * 3 * scale, 4 * 4 * scale
    own: Shapes = {
        "linear_attn.in_proj_qkvz.weight": (2 * keys + 2 * values, hidden),
        "linear_attn.in_proj_ba.weight": (8, hidden),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, 4),
        "linear_attn.out_proj.weight": (hidden, values),
        "linear_attn.norm.weight": (4 * scale,),
        "linear_attn.A_log": (4,),
        "linear_attn.dt_bias": (4,),
    }
    result = {
        **_norms(scale, "input_layernorm", "post_attention_layernorm"),
        **(_attention(scale, norms="norm", gated=True) if n else own),
        "mlp.gate.weight": (EXPERTS, hidden),
        "mlp.shared_expert_gate.weight": (1, hidden),
    }
    for name in (*(f"experts.{e}" for e in range(EXPERTS)), "shared_expert"):
        result |= {f"mlp.{name}.{part}_proj.weight": (wide, hidden) for part in ("gate", "up")}
        result[f"mlp.{name}.down_proj.weight"] = (hidden, wide)
    return result


_LAYERS = {
    "lfm2": _lfm2,
    "mamba2": _mamba2,
    "granitemoehybrid": _granite,
    "falcon_h1": _falcon,
    "qwen3_next": _qwen,
}
