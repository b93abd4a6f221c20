"""Merges that use results of others: the documents of one YAML."""

from __future__ import annotations

import numpy as np
import pytest
from merge_checks import linear, mean, merged

import lbrx
from lbrx import FormatError
from lbrx.files.formats.recipe import computed_tensors, nesting_of
from lbrx.merging.stages import plan_documents

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def pair(model, tmp_path):
    """Two models of one architecture: their paths and tensors."""
    return (tmp_path / "a", model("a")), (tmp_path / "b", model("b"))


def test_stages_are_computed_together(pair, model, tmp_path):
    (a, ta), (b, tb) = pair
    tc = model("c")
    final = linear(("half", 1), (tmp_path / "c", 1))
    documents = [final, {**linear((a, 1), (b, 1)), "name": "half"}]
    found = merged(documents, tmp_path / "out")
    np.testing.assert_allclose(found[Q].numpy(), mean(mean(ta[Q], tb[Q]), tc[Q]), atol=1e-6)


def test_stages_that_cannot_be_ordered(pair):
    (a, _), (b, _) = pair
    one, two = linear(("two", 1), (a, 1), name="one"), linear(("one", 1), (b, 1), name="two")
    with pytest.raises(FormatError, match="no other uses are none"):
        lbrx.merge([one, two])
    with pytest.raises(FormatError, match=r"in a circle: two -> one -> two"):
        lbrx.merge([linear(("two", 1), (a, 1)), one, two])
    with pytest.raises(FormatError, match="no other uses are x, y"):
        lbrx.merge([linear((a, 1), name="x"), linear((b, 1), name="y")])
    with pytest.raises(FormatError, match="two documents have the name 'x'"):
        lbrx.merge([linear((a, 1), name="x"), linear((b, 1), name="x")])


def chain(count, first, following):
    """Merges, each of which uses the one before; the last has no name."""
    documents = [linear((first, 1), name="s0")]
    documents += [{**following(f"s{i - 1}"), "name": f"s{i}"} for i in range(1, count)]
    del documents[-1]["name"]
    return documents


def both_halves(name):
    source = {"model": name, "layer_range": [0, 2]}
    return {
        "merge_method": "slerp",
        "base_model": name,
        "slices": [{"sources": [source, source]}],
        "parameters": {"t": 0.5},
    }


CHAINS = {
    "each uses the one before twice": (
        lambda a: chain(40, a, lambda name: linear((name, 1), (name, 1))),
        r"the merge 's12': model\.embed_tokens\.weight would be computed from 8,190 others, more "
        "than 4,096: write one of the merges",
    ),
    "as base model and in slices": (
        lambda a: chain(40, a, both_halves),
        "the merge 's12': .* from 8,190 others",
    ),
    "fourteen times": (
        lambda a: chain(9, a, lambda name: linear(*[(name, 1)] * 14)),
        "the merge 's4': .* others, more than 4,096",
    ),
    "long": (
        lambda a: chain(1500, a, lambda name: linear((name, 1), (a, 1))),
        r"the merge 's100': more than 100 computations follow each other",
    ),
    "a long circle": (
        lambda a: chain(1500, "s1498", lambda name: linear((name, 1), (a, 1))),
        r"in a circle: s1498 -> s1497 -> .* -> s1487 -> \.\.\. -> s1498$",
    ),
    "unused": (
        lambda a: [linear((a, 1), name=f"s{i}") for i in range(1500)],
        r"no other uses are s0, s1, .*, s11, \.\.\.: leave out",
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_stages_that_are_too_many(pair, case):
    make, problem = CHAINS[case]
    with pytest.raises(FormatError, match=problem) as found:
        lbrx.merge(make(pair[0][0]))
    assert len(str(found.value)) < 600


@pytest.mark.parametrize("count", [1, 2, 7])
def test_computed_tensors_are_counted_as_they_are_walked(pair, count):
    plan = plan_documents(chain(count, pair[0][0], both_halves), "")
    for recipe in plan.model.recipes.values():
        walked = len(list(computed_tensors(recipe)))
        assert nesting_of(recipe) == (walked, count)
        assert walked == 2**count - 1


def test_the_longest_chain_is_computed(pair, tmp_path):
    (a, ta), _ = pair
    found = merged(chain(100, a, lambda name: linear((name, 1))), tmp_path / "out")
    np.testing.assert_array_equal(found[Q].numpy(), ta[Q])
