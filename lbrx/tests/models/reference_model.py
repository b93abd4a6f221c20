"""Decoders in float64 numpy, independent of lbrx: a whole text at once, without a cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import reference_recurrent as recurrent

Array = np.ndarray
GEMMA = ("gemma", "gemma2", "gemma3_text")
LAYER_NORMS = ("gpt2", "starcoder2", "cohere", "cohere2")
NEIGHBOURS = ("glm", "glm4", "cohere", "cohere2", "ernie4_5", "deepseek_v2", "deepseek_v3")
# The norms of a layer: before and after attention, before and after the MLP.
USUAL = ("input_layernorm", None, "post_attention_layernorm", None)
SANDWICH = ("input_layernorm", "post_attention_layernorm")
SANDWICH += ("pre_feedforward_layernorm", "post_feedforward_layernorm")
AFTER = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
NORMS = {"gemma2": SANDWICH, "gemma3_text": SANDWICH, "olmo2": AFTER, "olmo3": AFTER}
NORMS |= {"exaone4": AFTER, "lfm2": ("operator_norm", None, "ffn_norm", None)}
NORMS |= {"falcon_h1": ("input_layernorm", None, "pre_ff_layernorm", None)}
LAST_NORMS = {"lfm2": "embedding_norm", "falcon_h1": "final_layernorm"}
NORMS |= {
    "glm4": (
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    )
}


def logits(config: Mapping[str, Any], weights: Mapping[str, Array], tokens: list[int]) -> Array:
    """After every token: (tokens, vocabulary)."""
    wide = {k: np.asarray(v, np.float64) for k, v in weights.items()}
    if config["model_type"] == "gpt2":
        wide = _under_usual_names(wide, config["hidden_size"])
    if config["model_type"] == "mamba2":
        names = {"backbone.": "model.", "norm_f": "norm", "embeddings": "embed_tokens"}
        for old, new in names.items():
            wide = {name.replace(old, new): value for name, value in wide.items()}
    model = Reference(config, wide)
    return model(np.array(tokens))


def rope(
    x: Array,
    base: float,
    dims: int,
    factors: Array | float = 1.0,
    amplitude: float = 1.0,
    neighbours: bool = False,
) -> Array:
    """x is (heads, tokens, size); feature i is rotated with feature i + dims / 2, or i + 1."""
    if neighbours:
        turned, rest = x[..., :dims], x[..., dims:]
        split = np.concatenate([turned[..., ::2], turned[..., 1::2]], -1)
        both = rope(split, base, dims, factors, amplitude)
        pairs = np.stack([both[..., : dims // 2], both[..., dims // 2 :]], -1)
        return np.concatenate([pairs.reshape(turned.shape), rest], -1)
    speeds = base ** (-np.arange(0, dims, 2) / dims) / factors
    angles = np.arange(x.shape[1])[:, None] * speeds
    a, b, rest = x[..., : dims // 2], x[..., dims // 2 : dims], x[..., dims:]
    cos, sin = np.cos(angles) * amplitude, np.sin(angles) * amplitude
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def _under_usual_names(weights: Mapping[str, Array], hidden: int) -> dict[str, Array]:
    """GPT-2's weights as those of a model with StarCoder's names: outputs first, not joined."""
    names = {"ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "h": "layers"}
    names |= {"attn": "self_attn", "transformer": "model", "wte": "embed_tokens", "ln_f": "norm"}
    result = {}
    for name, value in weights.items():
        own = ".".join(names.get(part, part) for part in name.split("."))
        if own.endswith("self_attn.c_proj.weight"):
            own = own.replace("c_proj", "o_proj")
        own = own.replace("self_attn.c_proj.", "self_attn.o_proj.")
        turned = value.T if "_attn.weight" in own or "proj.weight" in own or "fc" in own else value
        if "c_attn" not in own:
            result[own] = turned
            continue
        for i, head in enumerate("qkv"):
            part = turned[i * hidden : (i + 1) * hidden]
            result[own.replace("c_attn", f"{head}_proj")] = part
    return result


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Reference:
    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
        self.c, self.w = config, weights
        self.kind = config["model_type"]

    def __call__(self, tokens: Array) -> Array:
        x = self.w["model.embed_tokens.weight"][tokens]
        if "model.wpe.weight" in self.w:
            x = x + self.w["model.wpe.weight"][: len(tokens)]
        if self.kind in GEMMA:
            x = x * math.sqrt(self.c["hidden_size"])
        x = x * self.c.get("embedding_multiplier", 1)
        for n in range(self.c["num_hidden_layers"]):
            x = self.layer(x, n)
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        out = self.norm(x, f"model.{LAST_NORMS.get(self.kind, 'norm')}") @ head.T
        out = (
            out
            * self.c.get("logit_scale", 1)
            * self.c.get("lm_head_multiplier", 1)
            / self.c.get("logits_scaling", 1)
        )
        cap = self.c.get("final_logit_softcapping")
        return np.tanh(out / cap) * cap if cap else out

    def norm(self, x: Array, name: str) -> Array:
        if self.kind in LAYER_NORMS:
            x = x - x.mean(-1, keepdims=True)
        plus_one = self.kind in (*GEMMA, "qwen3_next")
        weight = self.w[f"{name}.weight"] + (1 if plus_one else 0)
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps(name)) * weight
        return scaled + self.w.get(f"{name}.bias", 0)

    def eps(self, name: str) -> float:
        return (
            1e-6 if name.endswith(("q_a_layernorm", "kv_a_layernorm")) else self.c["rms_norm_eps"]
        )

    def layer(self, x: Array, n: int) -> Array:
        at = f"model.layers.{n}."

        def maybe(part: Array, name: str | None) -> Array:
            return part if name is None else self.norm(part, at + name)

        if self.kind == "mamba2":
            normed = self.norm(x, at + "norm")
            return x + recurrent.mamba2(normed, at + "mixer.", self.w, self.linear, self.mamba())
        if self.kind.startswith("cohere"):
            normed = self.norm(x, at + "input_layernorm")
            return x + self.attended(normed, at, n) + self.fed(normed, at, n)
        before, after, before_mlp, after_mlp = NORMS.get(self.kind, USUAL)
        scale = self.c.get("residual_multiplier", 1)
        x = x + scale * maybe(self.attended(maybe(x, before), at, n), after)
        return x + scale * maybe(self.fed(maybe(x, before_mlp), at, n), after_mlp)

    def mamba(self) -> dict[str, Any]:
        """The sizes of Mamba 2."""
        c = self.c
        if self.kind == "mamba2":
            sizes = (c["num_heads"], c["head_dim"], c["n_groups"], c["state_size"])
        else:
            inner = c.get("mamba_d_ssm") or c["mamba_expand"] * c["hidden_size"]
            heads = c["mamba_n_heads"]
            sizes = (heads, inner // heads, c["mamba_n_groups"], c["mamba_d_state"])
        first = bool(c.get("mamba_norm_before_gate"))
        return {
            **dict(zip(("heads", "size", "groups", "state"), sizes, strict=True)),
            "eps": c["rms_norm_eps"],
            "norm_first": first,
            "norm_groups": sizes[2] if self.kind == "falcon_h1" else 1,
            "factors": c.get("ssm_multipliers", [1] * 5),
        }

    def attended(self, x: Array, at: str, n: int) -> Array:
        if self.kind == "falcon_h1":
            c = self.c
            own = recurrent.mamba2(
                x * c["ssm_in_multiplier"], at + "mamba.", self.w, self.linear, self.mamba()
            )
            seen = self.attention(x * c["attention_in_multiplier"], at + "self_attn.", n)
            return own * c["ssm_out_multiplier"] + seen * c["attention_out_multiplier"]
        if at + "mamba.in_proj.weight" in self.w:
            return recurrent.mamba2(x, at + "mamba.", self.w, self.linear, self.mamba())
        if at + "conv.in_proj.weight" in self.w:
            return recurrent.short_convolution(x, at + "conv.", self.w, self.linear)
        if at + "linear_attn.in_proj_qkvz.weight" in self.w:
            return recurrent.delta_net(x, at + "linear_attn.", self.w, self.linear, self.c)
        if at + "self_attn.kv_b_proj.weight" in self.w:
            return self.latent_attention(x, at + "self_attn.")
        return self.attention(x, at + "self_attn.", n)

    def fed(self, x: Array, at: str, n: int) -> Array:
        if self.kind == "lfm2":
            return self.gated(x, at + "feed_forward.", ("w1", "w3", "w2"))
        if self.kind == "falcon_h1":
            names = ("gate_proj", "up_proj", "down_proj")
            first, last = self.c["mlp_multipliers"]
            return self.gated(x, at + "feed_forward.", names, first) * last
        if self.kind == "granitemoehybrid":
            gate, up = np.split(self.linear(x, at + "shared_mlp.input_linear"), 2, -1)
            return self.linear(recurrent.silu(gate) * up, at + "shared_mlp.output_linear")
        if self.kind == "mixtral":
            return self.experts(x, at + "block_sparse_moe.", ("w1", "w3", "w2"))
        if at + "mlp.shared_experts.up_proj.weight" in self.w:
            return self.grouped_experts(x, at + "mlp.")
        if at + "mlp.router.weight" in self.w:
            return self.clamped_experts(x, at + "mlp.")
        if at + "mlp.gate.weight" in self.w:
            return self.experts(x, at + "mlp.", ("gate_proj", "up_proj", "down_proj"))
        return self.mlp(x, at + "mlp.")

    def gated(self, x: Array, at: str, names: tuple[str, str, str], factor: float = 1) -> Array:
        gate, up, down = (at + name for name in names)
        inner = recurrent.silu(self.linear(x, gate) * factor) * self.linear(x, up)
        return self.linear(inner, down)

    def clamped_experts(self, x: Array, at: str) -> Array:
        """Those of gpt-oss."""
        logits, limit = self.linear(x, at + "router"), self.c["swiglu_limit"]
        result = np.zeros_like(x)
        w = {name: self.w[f"{at}experts.{name}"] for name in ("gate_up_proj", "down_proj")}
        w |= {name + "_bias": self.w[f"{at}experts.{name}_bias"] for name in tuple(w)}
        for token, row in enumerate(logits):
            best = np.argsort(-row)[: self.c["num_experts_per_tok"]]
            shares = np.exp(row[best]) / np.exp(row[best]).sum()
            for e, share in zip(best, shares, strict=True):
                both = x[token] @ w["gate_up_proj"][e] + w["gate_up_proj_bias"][e]
                gate, up = np.minimum(both[::2], limit), np.clip(both[1::2], -limit, limit)
                inner = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
                result[token] += share * (inner @ w["down_proj"][e] + w["down_proj_bias"][e])
        return result

    def grouped_experts(self, x: Array, at: str) -> Array:
        """DeepSeek's: groups by their best experts, experts of the best groups by their scores."""
        v2 = self.kind == "deepseek_v2"
        logits, groups = self.linear(x, at + "gate"), self.c["n_group"]
        result = self.mlp(x, at + "shared_experts.")
        for token, row in enumerate(logits):
            scores = np.exp(row) / np.exp(row).sum() if v2 else 1 / (1 + np.exp(-row))
            wanted = scores + self.w.get(at + "gate.e_score_correction_bias", 0)
            each = np.sort(wanted.reshape(groups, -1), -1)
            of_group = each[:, -1] if v2 else each[:, -2:].sum(-1)
            best = np.argsort(-of_group)[: self.c["topk_group"]]
            allowed = np.isin(np.arange(len(row)) // each.shape[1], best)
            chosen = np.argsort(-np.where(allowed, wanted, -np.inf))
            chosen = chosen[: self.c["num_experts_per_tok"]]
            total = 1.0 if v2 else scores[chosen].sum()
            for e in chosen:
                share = scores[e] / total * self.c["routed_scaling_factor"]
                result[token] += share * self.mlp(x[token : token + 1], f"{at}experts.{e}.")[0]
        return result

    def latent_attention(self, x: Array, at: str) -> Array:
        """Keys and values of every head, written out."""
        c, heads = self.c, self.c["num_attention_heads"]
        plain, turned, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        q = self.linear(
            self.norm(self.linear(x, at + "q_a_proj"), at + "q_a_layernorm"), at + "q_b_proj"
        )
        q = q.reshape(len(x), heads, -1).swapaxes(0, 1)
        both = self.linear(x, at + "kv_a_proj_with_mqa")
        latent = self.norm(both[:, :rank], at + "kv_a_layernorm")
        kv = self.linear(latent, at + "kv_b_proj").reshape(len(x), heads, -1).swapaxes(0, 1)
        base = c["rope_theta"]
        shared = rope(both[None, :, rank:], base, turned, neighbours=True)
        keys = np.concatenate([kv[..., :plain], np.repeat(shared, heads, 0)], -1)
        q = np.concatenate(
            [q[..., :plain], rope(q[..., plain:], base, turned, neighbours=True)], -1
        )
        scores = q @ keys.swapaxes(1, 2) / math.sqrt(plain + turned)
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        seen = weights / weights.sum(-1, keepdims=True) @ kv[..., plain:]
        return self.linear(seen.swapaxes(0, 1).reshape(len(x), -1), at + "o_proj")

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
        if at + "shared_expert_gate.weight" in self.w:
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
        opened: Array | float = 1.0
        if self.kind == "qwen3_next":  # each head's queries, then its gate
            both = parts[0].reshape(len(x), heads, 2 * size)
            parts[0] = both[..., :size]
            opened = 1 / (1 + np.exp(-both[..., size:].reshape(len(x), -1)))
        parts[1] = parts[1] * self.c.get("key_multiplier", 1)
        if self.kind.startswith("olmo"):
            parts[:2] = (self.norm(p, f"{at}{h}_norm") for p, h in zip(parts, "qk", strict=False))
        q, k, v = (p.reshape(len(x), -1, size).swapaxes(0, 1) for p in parts)
        if self.kind in ("qwen3", "qwen3_moe", "qwen3_next", "gemma3_text", "exaone4"):
            q, k = self.norm(q, at + "q_norm"), self.norm(k, at + "k_norm")
        if self.kind == "lfm2":
            q, k = self.norm(q, at + "q_layernorm"), self.norm(k, at + "k_layernorm")
        if self.kind == "cohere":
            q, k = (
                self.norm(h.swapaxes(0, 1), f"{at}{name}_norm").swapaxes(0, 1)
                for h, name in ((q, "q"), (k, "k"))
            )
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
        if at + "sinks" in self.w:  # a key without a value
            sink = np.broadcast_to(self.w[at + "sinks"][:, None, None], (heads, len(x), 1))
            scores = np.concatenate([scores, sink], -1)
            v = np.concatenate([v, np.zeros((heads, 1, size))], 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        seen = weights / weights.sum(-1, keepdims=True) @ v
        output = "out_proj" if self.kind == "lfm2" else "o_proj"
        return self.linear(seen.swapaxes(0, 1).reshape(len(x), -1) * opened, at + output)

    def turns(self, n: int) -> bool:
        if self.kind in ("gpt2", "granitemoehybrid"):
            return False
        if self.kind == "cohere2" or (self.kind == "exaone4" and self.c.get("sliding_window")):
            return self.window(n) > 0
        return self.kind != "smollm3" or (n + 1) % self.c.get("no_rope_layer_interval", 4) != 0

    def turned(self, heads: Array, n: int) -> Array:
        near = self.kind in ("gemma3_text", "olmo3") and self.window(n)
        theta = self.c["rope_theta"]
        base = self.c.get("rope_local_base_freq", theta) if near else theta
        dims = int(heads.shape[-1] * self.c["partial_rotary_factor"])
        if near:
            return rope(heads, base, dims)
        factors = np.asarray(self.c.get("_factors", 1.0))
        neighbours = self.kind in NEIGHBOURS
        return rope(heads, base, dims, factors, self.c.get("_amplitude", 1.0), neighbours)

    def scale(self) -> float:
        if self.kind in ("granite", "granitemoehybrid"):
            return float(self.c["attention_multiplier"])
        return float(self.c.get("query_pre_attn_scalar") or self.c["head_dim"]) ** -0.5

    def window(self, n: int) -> int:
        window = int(self.c.get("sliding_window") or 0)
        if "layer_types" in self.c:
            return window if self.c["layer_types"][n] == "sliding_attention" else 0
        if self.c.get("use_sliding_window"):
            return window if n >= self.c["max_window_layers"] else 0
        if self.kind in ("gemma2", "gpt_oss"):
            return 0 if n % 2 else window
        if self.kind == "gemma3_text":
            return 0 if (n + 1) % self.c.get("sliding_window_pattern", 6) == 0 else window
        if self.kind in ("olmo3", "cohere2", "exaone4"):
            return 0 if (n + 1) % 4 == 0 else window
        return window if self.kind in ("mistral", "starcoder2", "mixtral", "phi3") else 0

    def mlp(self, x: Array, at: str) -> Array:
        if self.kind in ("gpt2", "starcoder2"):
            return self.linear(_gelu_tanh(self.linear(x, at + "c_fc")), at + "c_proj")
        if self.kind in ("phi3", "glm", "glm4"):
            gate, up = np.split(self.linear(x, at + "gate_up_proj"), 2, -1)
        else:
            gate, up = (self.linear(x, f"{at}{name}_proj") for name in ("gate", "up"))
        if self.kind in GEMMA:
            return self.linear(_gelu_tanh(gate) * up, at + "down_proj")
        return self.linear(gate / (1 + np.exp(-gate)) * up, at + "down_proj")
