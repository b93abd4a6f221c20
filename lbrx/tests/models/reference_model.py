"""Decoders in float64 numpy, independent of lbrx: a whole text at once, without a cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray
GEMMA = ("gemma2", "gemma3_text")


def logits(config: Mapping[str, Any], weights: Mapping[str, Array], tokens: list[int]) -> Array:
    """After every token: (tokens, vocabulary)."""
    model = Reference(config, {k: np.asarray(v, np.float64) for k, v in weights.items()})
    return model(np.array(tokens))


def rope(
    x: Array, base: float, dims: int, factors: Array | float = 1.0, amplitude: float = 1.0
) -> Array:
    """x is (heads, tokens, size); feature i is rotated with feature i + dims / 2."""
    speeds = base ** (-np.arange(0, dims, 2) / dims) / factors
    angles = np.arange(x.shape[1])[:, None] * speeds
    a, b, rest = x[..., : dims // 2], x[..., dims // 2 : dims], x[..., dims:]
    cos, sin = np.cos(angles) * amplitude, np.sin(angles) * amplitude
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Reference:
    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
        self.c, self.w = config, weights
        self.kind = config["model_type"]

    def __call__(self, tokens: Array) -> Array:
        x = self.w["model.embed_tokens.weight"][tokens]
        if self.kind in GEMMA:
            x = x * math.sqrt(self.c["hidden_size"])
        for n in range(self.c["num_hidden_layers"]):
            x = self.layer(x, n)
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        out = self.norm(x, "model.norm") @ head.T
        cap = self.c.get("final_logit_softcapping")
        return np.tanh(out / cap) * cap if cap else out

    def norm(self, x: Array, name: str) -> Array:
        weight = self.w[f"{name}.weight"] + (1 if self.kind in GEMMA else 0)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * weight

    def layer(self, x: Array, n: int) -> Array:
        at = f"model.layers.{n}."
        attended = self.attention(self.norm(x, at + "input_layernorm"), at + "self_attn.", n)
        if self.kind in GEMMA:
            x = x + self.norm(attended, at + "post_attention_layernorm")
            fed = self.mlp(self.norm(x, at + "pre_feedforward_layernorm"), at + "mlp.")
            return x + self.norm(fed, at + "post_feedforward_layernorm")
        x = x + attended
        normed = self.norm(x, at + "post_attention_layernorm")
        if self.kind == "mixtral":
            return x + self.experts(normed, at + "block_sparse_moe.", ("w1", "w3", "w2"))
        if self.kind.endswith("_moe"):
            return x + self.experts(normed, at + "mlp.", ("gate_proj", "up_proj", "down_proj"))
        return x + self.mlp(normed, at + "mlp.")

    def experts(self, x: Array, at: str, names: tuple[str, str, str]) -> Array:
        def fed(rows: Array, name: str) -> Array:
            gate, up = (self.linear(rows, f"{at}{name}.{part}") for part in names[:2])
            return self.linear(gate / (1 + np.exp(-gate)) * up, f"{at}{name}.{names[2]}")

        scores = np.exp(self.linear(x, at + "gate"))
        scores /= scores.sum(-1, keepdims=True)
        result = np.zeros_like(x)
        for token, row in enumerate(scores):
            best = np.argsort(-row)[: self.c["num_experts_per_tok"]]
            whole = self.kind == "mixtral" or self.c.get("norm_topk_prob")
            total = row[best].sum() if whole else 1.0
            for e in best:
                result[token] += row[e] / total * fed(x[token : token + 1], f"experts.{e}")[0]
        if self.kind == "qwen2_moe":
            opened = 1 / (1 + np.exp(-self.linear(x, at + "shared_expert_gate")))
            result += opened * fed(x, "shared_expert")
        return result

    def linear(self, x: Array, name: str) -> Array:
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0)

    def attention(self, x: Array, at: str, n: int) -> Array:
        heads, keys, size = (
            self.c[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        if self.kind == "phi3":
            joined = self.linear(x, at + "qkv_proj")
            parts = np.split(joined, [heads * size, (heads + keys) * size], -1)
        else:
            parts = [self.linear(x, f"{at}{name}_proj") for name in "qkv"]
        q, k, v = (p.reshape(len(x), -1, size).swapaxes(0, 1) for p in parts)
        if self.kind in ("qwen3", "qwen3_moe", "gemma3_text"):
            q, k = self.norm(q, at + "q_norm"), self.norm(k, at + "k_norm")
        if self.turns(n):
            q, k = (self.turned(h, n) for h in (q, k))
        stored = self.c.get("_stored", lambda h: h)
        k, v = (np.repeat(stored(h), heads // keys, 0) for h in (k, v))
        scores = q @ k.swapaxes(1, 2) * self.scale()
        cap = self.c.get("attn_logit_softcapping")
        scores = np.tanh(scores / cap) * cap if cap else scores
        distance = np.arange(len(x))[:, None] - np.arange(len(x))
        window = self.window(n)
        hidden = (distance < 0) | ((distance >= window) if window else False)
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        seen = weights / weights.sum(-1, keepdims=True) @ v
        return self.linear(seen.swapaxes(0, 1).reshape(len(x), -1), at + "o_proj")

    def turns(self, n: int) -> bool:
        return self.kind != "smollm3" or (n + 1) % self.c.get("no_rope_layer_interval", 4) != 0

    def turned(self, heads: Array, n: int) -> Array:
        near = self.kind == "gemma3_text" and self.window(n)
        base = self.c["rope_local_base_freq"] if near else self.c["rope_theta"]
        dims = int(heads.shape[-1] * self.c["partial_rotary_factor"])
        if near:
            return rope(heads, base, dims)
        factors = np.asarray(self.c.get("_factors", 1.0))
        return rope(heads, base, dims, factors, self.c.get("_amplitude", 1.0))

    def scale(self) -> float:
        return float(self.c.get("query_pre_attn_scalar") or self.c["head_dim"]) ** -0.5

    def window(self, n: int) -> int:
        window = int(self.c.get("sliding_window") or 0)
        if "layer_types" in self.c:
            return window if self.c["layer_types"][n] == "sliding_attention" else 0
        if self.c.get("use_sliding_window"):
            return window if n >= self.c["max_window_layers"] else 0
        if self.kind == "gemma2":
            return 0 if n % 2 else window
        if self.kind == "gemma3_text":
            return 0 if (n + 1) % self.c.get("sliding_window_pattern", 6) == 0 else window
        return window if self.kind in ("mistral", "mixtral", "phi3") else 0

    def mlp(self, x: Array, at: str) -> Array:
        if self.kind == "phi3":
            gate, up = np.split(self.linear(x, at + "gate_up_proj"), 2, -1)
        else:
            gate, up = (self.linear(x, f"{at}{name}_proj") for name in ("gate", "up"))
        if self.kind in GEMMA:
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            return self.linear(0.5 * gate * (1 + np.tanh(inner)) * up, at + "down_proj")
        return self.linear(gate / (1 + np.exp(-gate)) * up, at + "down_proj")
