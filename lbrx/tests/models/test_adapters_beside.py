"""Adapters beside the weights: as a model whose weights they have changed, which stay packed."""

from __future__ import annotations

import json

import device_memory
import numpy as np
import pytest
import reference_model

import lbrx
from lbrx.cli import main
from lbrx.merging.lora import applied

TOKENS = np.random.default_rng(4).integers(2, 600, 17).tolist()
Q, DOWN = "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"
EVERY = [f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"]
EVERY += [f"model.layers.1.mlp.{name}_proj" for name in ("gate", "up", "down")]


def write(folder, base, modules, seed=1, alpha=6, rank=3, **settings):
    """An adapter of some modules in PEFT's layout."""
    rng, model, tensors = np.random.default_rng(seed), lbrx.open_model(base), {}
    for module in modules:
        rows, columns = model[f"{module}.weight"].shape
        for part, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            values = (rng.standard_normal(shape) * 0.2).astype(np.float32)
            tensors[f"base_model.model.{module}.lora_{part}.weight"] = values
    folder.mkdir()
    lbrx.save(folder / "adapter_model.safetensors", tensors)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def logits(model, **options):
    opened = lbrx.language_model(model, cache_dtype="float32", **options)
    return opened.engine.all_logits(TOKENS).numpy()


def close(given, wanted, tolerance=1e-4):
    tolerance = max(tolerance, device_memory.tolerance(0, 2e-2))
    assert np.abs(given - wanted).max() < tolerance * np.abs(wanted).max()


@pytest.fixture
def base(make_model):
    return make_model("llama", tie_word_embeddings=False)


@pytest.mark.parametrize("modules", [[Q], [DOWN], EVERY], ids=["q", "down", "every"])
def test_as_changed_weights(base, tmp_path, modules):
    lora = write(tmp_path / "lora", base, modules)
    wanted = logits(lbrx.merge(applied(str(base), str(lora))))
    assert np.abs(wanted - logits(base)).max() > 0.1
    close(logits(base, adapters=[lora]), wanted)


def test_on_rows_in_pairs(base, tmp_path):
    """A GGUF has the rows of queries and keys in another order than the adapter."""
    from tiny_models import to_gguf_file

    lora = write(tmp_path / "lora", base, EVERY)
    to_gguf_file(base, tmp_path / "m.gguf")
    wanted = logits(lbrx.merge(applied(str(base), str(lora))))
    close(logits(tmp_path / "m.gguf", adapters=[lora]), wanted)


def test_packed_weights_stay_packed(base, tmp_path):
    from lbrx.convert import Settings, convert

    lora = write(tmp_path / "lora", base, EVERY)
    convert(base, tmp_path / "q.gguf", Settings(quantize="q8_0"))
    model = lbrx.language_model(tmp_path / "q.gguf", cache_dtype="float32", adapters=[lora])
    stored, added = lbrx.open_model(tmp_path / "q.gguf").canonical(), lbrx.open_model(lora)
    weights = {name: stored[name].astype("float32").numpy() for name in stored}
    for module in EVERY:
        a, b = (added[f"base_model.model.{module}.lora_{part}.weight"].numpy() for part in "AB")
        weights[f"{module}.weight"] = weights[f"{module}.weight"] + 2 * b @ a
    wanted = reference_model.logits({**lbrx.open_model(base).config}, weights, TOKENS)
    close(model.engine.all_logits(TOKENS).numpy(), wanted, 1e-3)
    assert model.engine.network.layers[0].attention.query.weight.metadata.quantization == "q8_0"


def test_several_with_scales(base, tmp_path):
    first, second = (
        write(tmp_path / name, base, [Q, DOWN], seed) for name, seed in (("a", 1), ("b", 2))
    )
    halved = write(tmp_path / "half", base, [Q, DOWN], 1, alpha=3)
    negative = write(tmp_path / "negative", base, [Q, DOWN], 2, alpha=-12)
    beside = logits(base, adapters=[f"{first}:0.5", f"{second}:-2"])
    close(beside, logits(base, adapters=[halved, negative]))
    both = lbrx.merge(applied(str(base), str(halved)))
    lbrx.save(tmp_path / "half-model", both, format="safetensors", config=dict(both.config))
    for file in base.glob("tokenizer*"):
        (tmp_path / "half-model" / file.name).write_bytes(file.read_bytes())
    close(beside, logits(lbrx.merge(applied(str(tmp_path / "half-model"), str(negative)))))


def test_in_mlx_layout(base, tmp_path):
    peft = write(tmp_path / "peft", base, [Q, DOWN])
    stored, tensors = lbrx.open_model(peft / "adapter_model.safetensors"), {}
    for name in stored:
        module, part = (
            name.removeprefix("base_model.model.").removesuffix(".weight").split(".lora_")
        )
        tensors[f"{module}.lora_{part.lower()}"] = np.ascontiguousarray(stored[name].numpy().T)
    (tmp_path / "mlx").mkdir()
    lbrx.save(tmp_path / "mlx/adapters.safetensors", tensors)
    config = {"fine_tune_type": "lora", "lora_parameters": {"rank": 3, "scale": 2.0}}
    (tmp_path / "mlx/adapter_config.json").write_text(json.dumps(config))
    wanted = logits(base, adapters=[peft])  # alpha 6, rank 3
    close(logits(base, adapters=[tmp_path / "mlx"]), wanted)
    close(logits(lbrx.merge(applied(str(base), str(tmp_path / "mlx")))), wanted)


def test_tokens_are_decoded_with_it(base, tmp_path):
    lora = write(tmp_path / "lora", base, EVERY)
    wanted = logits(base, adapters=[lora])
    model = lbrx.language_model(base, cache_dtype="float32", adapters=[lora])
    state = model.engine.prefill([TOKENS[:9]], 8)
    for place in range(9, 17):
        close(state.logits.numpy()[0], wanted[place - 1])
        state = model.engine.decode(lbrx.tensor([[TOKENS[place]]]), state.positions)


def test_the_command_line(base, tmp_path, capsys):
    lora = write(tmp_path / "lora", base, EVERY, alpha=60)
    common = [str(base), "-p", "Hello", "-n", "8", "--quiet", "--ignore-end"]
    texts = []
    for more in ([], ["--adapter", f"{lora}:0"], ["--adapter", str(lora)]):
        assert main(["generate", *common, *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_a_prompt_cache_is_of_its_adapters(base, tmp_path):
    lora = write(tmp_path / "lora", base, [Q])
    model = lbrx.language_model(base, adapters=[lora])
    model.generate(TOKENS[:5], max_tokens=2)
    model.save_prompt(tmp_path / "kept")
    with pytest.raises(lbrx.FormatError, match="another model"):
        lbrx.language_model(base).restore_prompt(tmp_path / "kept")


def test_what_cannot_be_added(base, make_model, tmp_path):
    small = tmp_path / "small"
    tensors = {
        f"base_model.model.{Q}.lora_{part}.weight": np.ones(shape, np.float32)
        for part, shape in (("A", (2, 48)), ("B", (64, 2)))
    }
    small.mkdir()
    lbrx.save(small / "adapter_model.safetensors", tensors)
    (small / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 1}))
    with pytest.raises(lbrx.FormatError, match="belongs to another model"):
        lbrx.language_model(base, adapters=[small])
    experts = make_model("mixtral")
    name = "model.layers.0.block_sparse_moe.experts.1.w1"
    with pytest.raises(lbrx.FormatError, match="not a linear map of this network"):
        lbrx.language_model(experts, adapters=[write(tmp_path / "e", experts, [name])])
    with pytest.raises(lbrx.FormatError, match=r"has no adapter_config\.json"):
        lbrx.language_model(base, adapters=[tmp_path / "missing"])
    turned = write(tmp_path / "turned", base, [Q], fan_in_fan_out=True)
    with pytest.raises(lbrx.LbrxError, match="inputs first"):
        lbrx.language_model(base, adapters=[turned])
