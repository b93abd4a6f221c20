"""Streams of examples: order, batches, buckets, prefetching, and resuming at an exact place."""

from __future__ import annotations

import json
import threading
from itertools import chain

import numpy as np
import pytest

import lbrx
from lbrx import data
from lbrx.errors import FormatError, ShapeError


def ids(batches):
    return [batch["x"].tolist() for batch in batches]


def test_a_loop_is_one_epoch():
    stream = data.arrays(x=np.arange(7), y=np.ones((7, 2))).batch(3)
    assert ids(stream) == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(stream) == 3
    assert next(iter(stream))["y"].dtype is lbrx.float32
    assert ids(data.arrays(x=np.arange(7)).batch(3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    assert [each["x"] for each in data.arrays(x=np.arange(3))] == [0, 1, 2]
    with pytest.raises(ShapeError, match="same number of each"):
        data.arrays(x=np.arange(3), y=np.arange(4))


def test_the_order_depends_on_seed_and_epoch_alone():
    stream = data.arrays(x=np.arange(50)).shuffle(3).batch(7)
    first, again = stream.iterate(epochs=2), stream.iterate(epochs=2)
    found = ids(first)
    assert found == ids(again)
    one, two = found[: len(stream)], found[len(stream) :]
    assert one != two
    assert sorted(chain(*one)) == sorted(chain(*two)) == list(range(50))
    assert ids(data.arrays(x=np.arange(50)).shuffle(4).batch(7)) != one


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("stop", [0, 1, 5, 8, 11])
def test_resuming_goes_on_with_the_same_batches(ahead, stop):
    stream = data.arrays(x=np.arange(31)).shuffle(1).batch(4)
    stream = stream.prefetch(ahead) if ahead else stream
    whole = ids(stream.iterate(epochs=3))
    begun = stream.iterate(epochs=3)
    for _ in range(stop):
        next(begun)
    assert ids(stream.iterate(epochs=3, start=begun.place)) == whole[stop:]
    assert list(stream.iterate(epochs=3, start=data.Place(3))) == []


def test_buckets_have_similar_lengths(rng):
    rows = [np.full(n, i) for i, n in enumerate(rng.integers(1, 100, 64))]
    stream = data.examples(rows).shuffle(2)
    stream = stream.bucket(8, len, collate=lambda rows: data.padded(rows, -1, multiple=4))
    seen, waste = [], 0
    for batch in stream:
        assert batch.shape[1] % 4 == 0
        values = batch.numpy()
        waste += (values == -1).sum()
        seen += values[:, 0].tolist()
    assert sorted(seen) == list(range(64))
    assert waste < 0.2 * sum(map(len, rows))
    widths = [batch.shape[1] for batch in stream]
    assert widths != sorted(widths)


def test_shards_are_the_whole(rng):
    stream = data.arrays(x=np.arange(40)).shuffle(5).batch(4)
    parts = [ids(stream.shard(i, 3)) for i in range(3)]
    assert sorted(chain(*parts)) == sorted(ids(stream))
    assert parts[1] == ids(stream)[1::3]
    with pytest.raises(ValueError, match="shard 3 of 3"):
        stream.shard(3, 3)


def test_examples_of_other_shapes_are_no_batch():
    with pytest.raises(ShapeError, match="pad them"):
        list(data.examples([np.ones(2), np.ones(3)]).batch(2))
    (batch,) = data.examples([("a", 1, lbrx.ones(2)), ("b", 2, lbrx.ones(2))]).batch(2)
    assert batch[0] == ["a", "b"]
    assert batch[1].tolist() == [1, 2]
    assert batch[2].shape == (2, 2)


def test_jsonl(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join(json.dumps({"n": i, "text": "é" * i}) for i in range(5)) + "\n\n \n")
    stream = data.jsonl(file)
    assert [each["n"] for each in stream] == list(range(5))
    assert [len(x) for x in stream.map(lambda x: x["text"])] == list(range(5))
    assert [each["n"] for each in stream.batch(2).prefetch()][1].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{broken}", "not JSON"),
        ("[1, 2]", "list instead of an object"),
        ("[" * 100_000, "not JSON"),
        ('{"a": "\\ud800', "not JSON"),
    ],
)
def test_a_damaged_line_is_named(line, text, tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(f'{{"n": 1}}\n\n{line}\n')
    with pytest.raises(FormatError, match=f"train.jsonl:3: {text}"):
        list(data.jsonl(file))
    with pytest.raises(FormatError, match=r"train\.jsonl:3"):  # in the thread that reads ahead too
        list(data.jsonl(file).prefetch())


def test_a_thread_that_nobody_needs_ends():
    before = set(threading.enumerate())  # threads of earlier tests may end meanwhile
    batches = data.arrays(x=np.arange(1000)).batch(1).prefetch(2).iterate()
    next(batches)
    started = set(threading.enumerate()) - before
    assert [thread.name for thread in started] == ["lbrx.data"]
    del batches
    for thread in started:
        thread.join(60)
        assert not thread.is_alive(), "the thread of a dropped iteration goes on"


def test_prefetched_errors_and_ends_come_again():
    batches = data.arrays(x=np.arange(4)).batch(2).prefetch(1).iterate(epochs=1)
    assert len(list(batches)) == 2
    assert list(batches) == []
