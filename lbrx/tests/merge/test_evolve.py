"""The search of merge parameters: its ranges, strategies, journal and command."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import lbrx
from lbrx.cli import main
from lbrx.errors import FormatError, LbrxError
from lbrx.merging.evolve import CmaStrategy, evolve, load_evolve, parse_evolve
from lbrx.merging.search_space import read_space

VOCABULARY = 620
SCORE = """
def score(model):
    # The norm of one model is 0 and of the other 1, so this is the second one's weight.
    weight = float(model.engine.network.norm.weight.numpy().mean())
    return -(weight - 0.3) ** 2

def never(model):
    return float("nan")
"""


@pytest.fixture
def pair(model, tmp_path, with_tokenizer, tokenizer):
    """Two models and a text."""
    for name, norm in (("a", 0.0), ("b", 1.0)):
        tensors = model(name, vocab=VOCABULARY, scale=4)
        tensors["model.norm.weight"][:] = norm
        lbrx.save(tmp_path / name / "model.safetensors", tensors)
        with_tokenizer(name, tokenizer)
    (tmp_path / "judge.py").write_text(SCORE)
    (tmp_path / "text.txt").write_text("One, two, three, four, five.")
    return tmp_path


def document(folder, **settings):
    models = [
        {"model": str(folder / "a"), "parameters": {"weight": 1.0}},
        {"model": str(folder / "b"), "parameters": {"weight": {"search": [0, 1]}}},
    ]
    given = {"score": "judge.py:score", "strategy": "random", "evaluations": 8, **settings}
    return {
        "merge_method": "linear",
        "models": models,
        "parameters": {"normalize": False},
        "evolve": {key: value for key, value in given.items() if value is not None},
    }


def test_open_parameters_anywhere():
    space = read_space(
        {
            "models": [
                {"parameters": {"weight": [{"filter": "mlp", "value": {"search": [1, 3]}}]}}
            ],
            "parameters": {"t": [0, {"search": [0.0, 0.5], "start": 0.1}, 1]},
        }
    )
    assert [gene.name for gene in space.genes] == ["models.0.weight.0", "t.1"]
    assert [gene.start_share for gene in space.genes] == [0.5, 0.2]
    filled = space.filled([0.25, 1.0])
    assert filled["models"][0]["parameters"]["weight"][0] == {"filter": "mlp", "value": 1.5}
    assert filled["parameters"]["t"] == [0, 0.5, 1]


def written(folder):
    """The files of a folder, but for Python's own of the judge."""
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_random_search_in_memory(pair):
    config = parse_evolve(document(pair), pair)
    before = written(pair)
    seen = []
    best = evolve(config, pair / "journal", device="cpu", progress=seen.append)
    assert written(pair) == {*before, pair / "journal"}
    weights = [one.shares[0] for one in seen]
    assert weights[0] == 0.5
    assert len(set(weights)) == 8
    np.testing.assert_allclose(
        [one.score for one in seen], [-((w - 0.3) ** 2) for w in weights], atol=1e-6
    )
    nearest = min(weights, key=lambda w: abs(w - 0.3))
    assert best.document["models"][1]["parameters"]["weight"] == nearest
    assert "evolve" not in best.document


def test_an_interrupted_search_continues(pair):
    whole = evolve(parse_evolve(document(pair), pair), pair / "whole", device="cpu")
    part = parse_evolve(document(pair, evaluations=3), pair)
    evolve(part, pair / "part", device="cpu")
    with (pair / "part").open("a") as file:
        file.write('{"number": 3, "sha')
    seen = []
    config = parse_evolve(document(pair), pair)
    again = evolve(config, pair / "part", resume=True, device="cpu", progress=seen.append)
    assert [one.reused for one in seen] == [True] * 3 + [False] * 5
    assert again.document == whole.document
    other = parse_evolve(document(pair, seed=1), pair)
    with pytest.raises(FormatError, match="another search"):
        evolve(other, pair / "part", resume=True, device="cpu")


def test_perplexity(pair, capsys):
    settings = {"score": None, "perplexity": "text.txt", "evaluations": 3}
    (pair / "c.yml").write_text(json.dumps(document(pair, **settings)))
    assert main(["evolve", str(pair / "c.yml"), "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("perplexity") == 3
    best = pair / "c.best.yml"
    merged = lbrx.language_model(lbrx.merge(best), device="cpu")
    expected = merged.perplexity((pair / "text.txt").read_text())
    assert f"perplexity {expected:.4f}, the best of 3" in printed.out
    assert main(["evolve", str(pair / "c.yml"), "--device", "cpu"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["evolve", str(pair / "c.yml"), "--device", "cpu", "--resume", "--quiet"]) == 0
    assert main(["evolve", str(pair / "c.yml"), "--evaluations", "0", "--force"]) == 1


def test_cma_finds_the_optimum(pair):
    pytest.importorskip("cma", reason="cma is not installed: pip install cma")
    config = parse_evolve(document(pair, strategy="cma", evaluations=40), pair)
    best = evolve(config, pair / "journal", device="cpu")
    assert best.document["models"][1]["parameters"]["weight"] == pytest.approx(0.3, abs=0.02)
    seen = []
    evolve(config, pair / "journal", resume=True, device="cpu", progress=seen.append)
    assert all(one.reused for one in seen)


def test_cma_is_asked_again_for_the_same(pair):
    pytest.importorskip("cma", reason="cma is not installed: pip install cma")
    config = parse_evolve(document(pair, strategy="cma", population=5), pair)
    first, second = CmaStrategy(config), CmaStrategy(config)
    for _ in range(3):
        asked = first.ask()
        assert asked == second.ask()
        assert len(asked) == 5
        assert all(0 <= share <= 1 for one in asked for share in one)
        for strategy in (first, second):
            strategy.tell([None, *(-((one[0] - 0.3) ** 2) for one in asked[1:])])


MISTAKES = {
    "no section": ({"evolve": None}, "evolve is missing"),
    "both": ({"perplexity": "text.txt"}, "perplexity and score, or neither"),
    "strategy": ({"strategy": "cmaes"}, "one of cma, random"),
    "evaluations": ({"evaluations": 0}, "1 or more"),
    "sigma": ({"sigma": 2}, "at most 1"),
    "key": ({"sigmas": 2}, "did you mean sigma"),
    "function": ({"score": "judge.py:other"}, "has no function other"),
    "file": ({"score": "nowhere.py:score"}, "does not exist"),
    "module": ({"score": "no_such_module:score"}, "no_such_module"),
    "place": ({"score": "judge"}, "give module:function"),
    "text": ({"score": None, "perplexity": "nowhere.txt"}, "give a text"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, pair):
    settings, message = MISTAKES[name]
    given = document(pair, **settings)
    if "evolve" in settings:
        del given["evolve"]
    (pair / "c.yml").write_text(json.dumps(given))
    with pytest.raises(FormatError, match=message):
        evolve(load_evolve(pair / "c.yml"), pair / "journal", device="cpu")
    assert not (pair / "journal").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.5, "no parameter is open"),
        ({"search": [1, 0]}, "a range like"),
        ({"search": [0, math.inf]}, "a range like"),
        ({"search": [0, 1], "start": 2}, "a number from 0 to 1"),
        ({"search": [0, 1], "begin": 2}, "begin"),
    ],
)
def test_wrong_ranges(value, message):
    with pytest.raises(FormatError, match=message):
        read_space({"parameters": {"t": value}})


def test_scores_that_are_not_finite(pair):
    config = parse_evolve(document(pair, score="judge.py:never", evaluations=2), pair)
    with pytest.raises(LbrxError, match="none of 2 candidates"):
        evolve(config, pair / "journal", device="cpu")
