"""Folders with damaged JSON and templates: they are opened and used, or refused with an error of
lbrx's. Anything else that comes out is a failure."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from seeds import derived

import lbrx
from lbrx.convert import Settings, make_plan
from lbrx.convert.contents import contents

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 5, 0.5, 1e-30, 1e300, -0.5, 2**31, 2**63, 10**40),
    *(10**400, -(10**400), 1e-320, 1e-37),
    *(float("nan"), float("inf"), "", "x", "yarn", "llama3", "longrope", "a" * 300, "\ud800"),
    *({"type": "Replace", "pattern": {"String": ""}, "content": "a"}, {"type": "BPE"}),
    *({"type": "Precompiled", "precompiled_charsmap": "AAAA"}, {"type": "Sequence"}),
    *([], {}, [1], [None], ["a", "b"], [[1, 2]], {"a": 1}, {"content": 1}, [{"id": 1}]),
]
CHARACTERS = "{}[]()%\"'\\,:|=~*/.<># \n\x00é\ud800 09azAZ_-"
SNIPPETS = [
    *("{{ ", " }}", "{% for m in messages %}", "{% endfor %}", "{% if ", "{% endif %}", "{#", "#}"),
    *(
        "{% set ns = namespace(a=1) %}",
        "{{ messages }}",
        "m['content']",
        " | tojson",
        " | join(",
    ),
    *("loop.index", "raise_exception('no')", " ~ ", " ** ", " * ", "{% macro f(x) %}", "f(f)"),
    *("strftime_now('%Y')", "range(9)", ".format(1)", "'%d' % ", "[::2]", "bos_token", "[0]"),
]
SCALINGS = [
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    {"type": "linear", "factor": 2.0},
    {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    None,
]
KINDS = ("llama", "gemma2", "gemma3_text", "phi3", "qwen3", "smollm3")
JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
FILES = (*JSON_FILES, "chat_template.jinja")


@pytest.fixture(scope="module")
def folders(make_model, tmp_path_factory) -> list[Path]:
    made = []
    for index, kind in enumerate(KINDS):
        scaling = SCALINGS[index % len(SCALINGS)]
        folder = make_model(kind, rope_scaling=scaling) if scaling else make_model(kind)
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "chat_template.jinja").write_text(settings["chat_template"])
        (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2], "top_k": 5}')
        made.append(folder)
    return made


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a tree of JSON: a container and a key of it."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from places(inner)


def changed_json(rng: random.Random, text: str) -> str:
    """The same JSON with other values, fewer keys or repeated items."""
    tree = json.loads(text)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        top = [(tree, key) for key in tree]
        found = list(places(tree)) if rng.random() < 0.7 else top
        if not found:  # earlier changes dropped everything
            break
        container, key = rng.choice(found)
        match rng.choice(["set", "set", "set", "drop", "wrap", "other"]):
            case "set":
                container[key] = deepcopy(rng.choice(VALUES))  # later changes may go into it
            case "drop":
                del container[key]
            case "wrap":
                container[key] = rng.choice([[container[key]], {"x": container[key]}])
            case "other":
                other, name = rng.choice(found)
                with suppress(KeyError, IndexError):
                    container[key] = json.loads(json.dumps(other[name]))
    return json.dumps(tree)


def changed_text(rng: random.Random, text: str, pieces: list[str] | str) -> str:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        piece = rng.choice(pieces)
        match rng.choice(["insert", "replace", "cut", "drop", "copy"]):
            case "insert":
                text = text[:at] + piece + text[at:]
            case "replace":
                text = text[:at] + piece + text[at + len(piece) :]
            case "cut":
                text = text[:at]
            case "drop":
                text = text[:at] + text[at + rng.randint(1, 9) :]
            case "copy":
                text = text[:at] + text[max(at - 9, 0) :]
    return text


def mutant(rng: random.Random, name: str, text: str) -> bytes:
    if name.endswith(".jinja"):
        changed = changed_text(rng, text, rng.choice([SNIPPETS, CHARACTERS]))
    elif rng.random() < 0.8:
        changed = changed_json(rng, text)
    else:
        changed = changed_text(rng, text, CHARACTERS)
    return changed.encode("utf-8", "surrogatepass")


def use(folder: Path) -> None:
    """Everything that reads these files."""
    with suppress(lbrx.LbrxError):
        contents(lbrx.open_model(folder).files)
    with suppress(lbrx.LbrxError):
        make_plan(folder, folder.parent / "out.gguf", Settings())
    with suppress(lbrx.LbrxError):
        model = lbrx.language_model(folder, device="cpu")
        model.count_tokens("Hello, world 12!")
        with suppress(lbrx.LbrxError):
            model.generate("Hello", max_tokens=2, ignore_end=True)
        model.count_tokens([{"role": "user", "content": "Hi"}])


def fuzz(folders: list[Path], target: Path, key: str, count: int) -> None:
    for number in range(count):
        rng = random.Random(derived(f"{key} {number}"))
        source = rng.choice(folders)
        name = rng.choice(FILES)
        shutil.copytree(source, target)
        (target / name).write_bytes(mutant(rng, name, (source / name).read_text()))
        try:
            use(target)
        except BaseException as problem:
            kept = (target / name).read_bytes()[-2000:]
            problem.add_note(f"{key} {number}, {name} of {source.parent.name}: {kept!r}")
            raise
        shutil.rmtree(target)


def test_mutants(folders, tmp_path):
    fuzz(folders, tmp_path / "model", "short", 150)


@pytest.mark.full
def test_many_mutants(folders, tmp_path):
    fuzz(folders, tmp_path / "model", "full", 10_000)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("tokenizer.json", ["added_tokens"], 1),
        ("tokenizer.json", ["model", "vocab"], 3),
        ("tokenizer.json", ["model"], 3),
        ("config.json", ["rope_theta"], 1),
        ("config.json", ["rope_scaling", "original_max_position_embeddings"], 0.5),
        ("config.json", ["rope_scaling", "factor"], 1e-17),
        ("config.json", ["quantization"], 5),
        ("config.json", ["head_dim"], 0.5),
        ("config.json", ["hidden_size"], 2),
        ("generation_config.json", ["eos_token_id"], [[1]]),
    ],
    ids=str,
)
def test_values_that_were_not_refused(name, path, value, folders, tmp_path):
    """In a model with yarn."""
    target = tmp_path / "model"
    shutil.copytree(folders[0], target)
    tree = json.loads((target / name).read_text())
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (target / name).write_text(json.dumps(tree))
    use(target)
