"""Every reader of files from outside, with damaged files: it reads them or raises an LbrxError.

The default run is short; the full one reads a million damaged files.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attack_table import SOUND
from file_builders import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I32,
    STRING,
    U32,
    U64,
    array,
    field,
    gguf,
    pair,
    safetensors,
    tensor,
    text,
    varint,
)
from mutations import Mutator
from seeds import derived

import lbrx
from lbrx.convert import Settings, convert, make_plan, pieces
from lbrx.convert.contents import contents
from lbrx.convert.fingerprint import fingerprint
from lbrx.convert.partial import PartialOutput
from lbrx.files.formats import companions, imatrix, translate
from lbrx.files.formats.tokenizers import sentencepiece
from lbrx.files.stored.recipe_arrays import RecipeArrays

FULL = 1_000_000
# Python's reader of pickles warns about backslashes in names.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")


@dataclass(frozen=True)
class Case:
    """Files, those of them that are damaged, and what reads them."""

    files: dict[str, bytes]
    damaged: tuple[str, ...]
    read: Callable[[Path], object]
    mutate: Callable[[Mutator, bytes], bytes] = Mutator.damaged


def _read_model(path: Path) -> None:
    """What open_model, inspect and the plan of a conversion read."""
    model = lbrx.open_model(path)
    for stored in model.values():
        assert stored.numpy().shape == stored.shape
    repr(dict(model.metadata))
    contents(model.files)
    for recipe in translate.to_huggingface(model.files).values():
        assert RecipeArrays().array(recipe).layout.shape == recipe.shape
    companions.folder_files(model.files, model.config)


def _read_folder(path: Path) -> None:
    with suppress(lbrx.LbrxError):
        _read_model(path)
    for target in ("m.gguf", "m.safetensors", "m"):
        with suppress(lbrx.LbrxError):
            to = "mlx" if target == "m" else None
            make_plan(path, path.parent / "to" / target, Settings(to=to))


def _resume(path: Path) -> None:
    """Continue a conversion whose journal and files are damaged."""
    source, target = path.parent / "source.npz", path.parent / "target.npz"
    np.savez(source, w=np.arange(64, dtype=np.float32))
    target.unlink(missing_ok=True)
    partial = path.parent / ".target.npz.partial"
    shutil.rmtree(partial, ignore_errors=True)
    plan = make_plan(source, target, Settings())
    PartialOutput(plan.output, False, "").close()
    journal = (path / "journal.jsonl").read_bytes()
    own = fingerprint(plan, "cpu", pieces.PIECE).encode()
    (partial / "journal.jsonl").write_bytes(journal.replace(b"FINGERPRINT", own))
    convert(source, target, resume=True, device="cpu")
    with np.load(target) as found:
        np.testing.assert_array_equal(found["w"], np.arange(64, dtype=np.float32))


def _piece(text: str, score: float, kind: int) -> bytes:
    body = field(1, text) + varint(2 << 3 | 5) + struct.pack("<f", score) + field(3, kind)
    return field(1, body)


SENTENCEPIECE = b"".join(
    [
        *(_piece("<unk>", 0, 2), _piece("<s>", 0, 3), _piece("</s>", 0, 3)),
        *(_piece(f"<0x{byte:02X}>", 0, 6) for byte in (0x20, 0x41)),
        *(_piece("a", -1, 1), _piece("b", -2, 1), _piece("ab", -3, 1), _piece("\u2581", -4, 1)),
        *(field(2, field(40, 0) + field(41, 1) + field(42, 2)), field(3, field(3, 1))),
    ]
)
RECORDS = struct.pack("<ii", 1, 1) + b"w" + struct.pack("<2i4f", 2, 4, 1, 2, 3, 4)
CONFIG = {
    "model_type": "gemma3_text",
    "hidden_size": 4,
    "num_attention_heads": 2,
    "head_dim": 2,
    "num_hidden_layers": 2,
    "vocab_size": 4,
    "sliding_window": 8,
    "rope_theta": 10000.0,
    "sliding_window_pattern": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8},
}
LONGROPE = {
    "model_type": "phi3",
    "hidden_size": 4,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 16,
    "original_max_position_embeddings": 8,
    "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
}
TOKENIZER = {
    "added_tokens": [{"id": 3, "content": "<s>", "special": True}],
    "pre_tokenizer": {"type": "ByteLevel", "use_regex": True},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
}
TOKENS = {"bos_token": {"content": "<s>"}, "chat_template": [{"name": "x", "template": "y"}]}
PACKING = {"quantization": {"group_size": 32, "bits": 4, "mode": "affine", "a": {"bits": 8}}}


SETTINGS = {
    "block_count": 2,
    "embedding_length": 4,
    "feed_forward_length": 4,
    "context_length": 8,
    "attention.head_count": 2,
    "attention.head_count_kv": 2,
    "attention.key_length": 2,
    "rope.dimension_count": 2,
    "attention.sliding_window": 8,
    "vocab_size": 2,
    "rope.scaling.original_context_length": 8,
    "attention.sliding_window_pattern": 2,
}
REALS = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4, "rope.scaling.factor": 2}
TOKENS_IN_GGUF = {
    "tokenizer.ggml.model": (STRING, "gpt2"),
    "tokenizer.ggml.pre": (STRING, "llama-bpe"),
    "tokenizer.ggml.tokens": (ARRAY, array(STRING, 2, text("a") + text("b"))),
    "tokenizer.ggml.token_type": (ARRAY, array(I32, 2, struct.pack("<2i", 1, 1))),
    "tokenizer.ggml.merges": (ARRAY, array(STRING, 1, text("a b"))),
    "tokenizer.ggml.scores": (ARRAY, array(F32, 2, struct.pack("<2f", 0, -1))),
    "tokenizer.ggml.bos_token_id": (U32, 1),
    "tokenizer.ggml.add_bos_token": (BOOL, True),
    "tokenizer.chat_template": (STRING, "x"),
    "general.file_type": (U32, 0),
}
TYPED = (
    *((U32, 0), (U32, 1), (U32, 5), (U32, (1 << 32) - 1), (I32, -1), (U64, (1 << 64) - 1)),
    *((F32, 0.0), (F32, float("nan")), (F64, float("inf")), (F64, -1e300), (BOOL, False)),
    *((STRING, ""), (STRING, "llama"), (STRING, "x" * 300), (STRING, "yarn"), (STRING, "a b c")),
    *((ARRAY, array(STRING, 1, text("x"))), (ARRAY, array(STRING, 0, b""))),
    *((ARRAY, array(I32, 2, bytes(8))), (ARRAY, array(F32, 3, bytes(12)))),
    *((ARRAY, array(BOOL, 2, b"\0\1")), (ARRAY, array(U64, 1, b"\xff" * 8))),
)


def _typed_gguf(mutator: Mutator, _: bytes) -> bytes:
    """A GGUF whose metadata has values of other types and sizes."""
    kind = mutator.one_of(["llama", "gemma3", "gemma2", "phi3", "qwen2", "smollm3"])
    values: dict[str, tuple[int, Any]] = {"general.architecture": (STRING, kind)}
    values |= {f"{kind}.{key}": (U32, number) for key, number in SETTINGS.items()}
    values |= {f"{kind}.{key}": (F32, number) for key, number in REALS.items()}
    values |= TOKENS_IN_GGUF | {f"{kind}.rope.scaling.type": (STRING, mutator.one_of(ROPE_KINDS))}
    for _ in range(mutator.below(5)):
        values[mutator.one_of(list(values))] = mutator.one_of(TYPED)
    names = ["token_embd", "output_norm", "rope_freqs", "rope_factors_long", "rope_factors_short"]
    tensors = [
        tensor(f"{name}.weight", (2, 2) if name == "token_embd" else (2,), 0, 32 * i)
        for i, name in enumerate(names)
        if name == "token_embd" or mutator.below(2)
    ]
    return gguf([pair(key, *value) for key, value in values.items()], tensors, bytes(160))


ROPE_KINDS = ("none", "linear", "yarn", "longrope")


def _text(value: object) -> bytes:
    return json.dumps(value).encode()


def _weights(**tensors: tuple[str, list[int], int]) -> bytes:
    header, at = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    return safetensors(header, bytes(at))


NORM = _weights(**{"model.norm.weight": ("F32", [4], 16)})
WORDS = _weights(
    **{
        "a.weight": ("U32", [2, 4], 32),
        "a.scales": ("F32", [2, 1], 8),
        "a.biases": ("F32", [2, 1], 8),
    }
)
INDEX = _text({"weight_map": {"w": "b.safetensors"}})
CASES = {
    **{name: Case({name: data}, (name,), _read_model) for name, data in SOUND.items()},
    "metadata": Case({"a.gguf": b""}, ("a.gguf",), _read_folder, _typed_gguf),
    "config": Case(
        {"config.json": _text(CONFIG), "model.safetensors": NORM},
        ("config.json",),
        _read_folder,
    ),
    "longrope": Case(
        {"config.json": _text(LONGROPE), "model.safetensors": NORM},
        ("config.json",),
        _read_folder,
    ),
    "mlx": Case(
        {"config.json": _text(PACKING), "model.safetensors": WORDS},
        ("config.json", "model.safetensors"),
        _read_folder,
    ),
    "tokenizer": Case(
        {
            "config.json": _text({**CONFIG, "model_type": "llama"}),
            "model.safetensors": NORM,
            "tokenizer.json": _text(TOKENIZER),
            "tokenizer_config.json": _text(TOKENS),
        },
        ("tokenizer.json", "tokenizer_config.json"),
        _read_folder,
    ),
    "index": Case(
        {"a.index.json": INDEX, "b.safetensors": SOUND["a.safetensors"]},
        ("a.index.json",),
        _read_model,
    ),
    "sentencepiece": Case(
        {"tokenizer.model": SENTENCEPIECE},
        ("tokenizer.model",),
        lambda path: (
            sentencepiece.read(path / "tokenizer.model"),
            sentencepiece.read_rules(path / "tokenizer.model"),
        ),
    ),
    "importance": Case({"i.dat": RECORDS}, ("i.dat",), lambda path: imatrix.read(path / "i.dat")),
    "journal": Case(
        {"journal.jsonl": b'{"fingerprint": "FINGERPRINT"}\n\n{"piece": 0, "sum": 1}\n'},
        ("journal.jsonl",),
        _resume,
    ),
}


def _run(name: str, count: int, tmp_path: Path) -> None:
    case, seed = CASES[name], derived(f"mutations of {name}")
    folder = tmp_path / "in"
    folder.mkdir()
    for file, data in case.files.items():
        (folder / file).write_bytes(data)
    # A single file is opened by its own path.
    path = folder / next(iter(case.files)) if case.read is _read_model else folder
    mutator = Mutator(seed)
    for number in range(count):
        file = mutator.one_of(case.damaged)
        data = case.mutate(mutator, case.files[file])
        (folder / file).write_bytes(data)
        try:
            case.read(path)
        except lbrx.LbrxError:
            pass
        except BaseException as error:
            error.add_note(f"{name}, number {number} of seed {seed}: {file} = {data!r}")
            raise
        (folder / file).write_bytes(case.files[file])


@pytest.mark.parametrize("name", CASES)
def test_damaged_files_are_read_or_refused(name, tmp_path):
    _run(name, 60 if name == "journal" else 250, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_a_million_damaged_files(name, tmp_path):
    _run(name, FULL // len(CASES), tmp_path)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"metadata"}))
def test_the_undamaged_files_are_read(name, tmp_path):
    case = CASES[name]
    for file, data in case.files.items():
        (tmp_path / file).write_bytes(data)
    case.read(tmp_path / next(iter(case.files)) if case.read is _read_model else tmp_path)
