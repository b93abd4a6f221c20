"""Streams of batches: in an order that a seed decides, and that can be resumed at any batch.

The batches of an epoch are a pure function of the seed, the number of the epoch and the lengths
of the examples. So a place in a stream is two numbers, and going there reads nothing before it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.data.sources import Arrays, Example, ImageFolder, JsonLines, Mapped, Parquet, Source
from lbrx.data.sources import PathLike as PathLike
from lbrx.errors import ShapeError
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor

Collate = Callable[[list[Example]], Any]
Numbers = list[int]


@dataclass(frozen=True)
class Place:
    """How far an iteration has come: the next batch and its epoch."""

    epoch: int = 0
    batch: int = 0


def collated(examples: list[Example]) -> Any:
    """Examples as one batch: numbers, arrays and tensors of one shape as a tensor with a first axis
    more, also in dictionaries and tuples; anything else as a list."""
    first = examples[0]
    if isinstance(first, Mapping):
        return {key: collated([each[key] for each in examples]) for key in first}
    if isinstance(first, tuple):
        return tuple(collated([each[i] for each in examples]) for i in range(len(first)))
    if isinstance(first, Tensor):
        examples, first = [each.numpy() for each in examples], first.numpy()
    if isinstance(first, np.ndarray | np.generic | int | float):
        shapes = sorted({np.shape(each) for each in examples})
        if len(shapes) > 1:
            raise ShapeError(
                f"examples of the shapes {shapes[0]} and {shapes[-1]} are no batch: "
                "pad them, as with lbrx.data.padded, in collate="
            )
        values = np.stack([np.asarray(each) for each in examples])
        return tensor(values, dt.float32 if values.dtype == np.float64 else None)
    return examples


def padded(rows: Sequence[Any], value: float = 0, multiple: int = 1) -> Tensor:
    """Rows of different lengths as a matrix, filled up with a value to the longest one, whose
    length is rounded up to a multiple.

    >>> lbrx.data.padded([[1, 2, 3], [4]], multiple=2).tolist()
    [[1, 2, 3, 0], [4, 0, 0, 0]]
    """
    arrays = [np.asarray(row) for row in rows]
    longest = max(len(array) for array in arrays)
    width = -(-longest // multiple) * multiple
    made = np.full((len(arrays), width), value, arrays[0].dtype)
    for i, array in enumerate(arrays):
        made[i, : len(array)] = array
    return tensor(made)


@dataclass(frozen=True)
class Stream:
    """Examples of a source, as batches in an order. Its methods return other streams.

    A loop over a stream is one epoch; `iterate` goes on over epochs, and from a place.

    >>> stream = lbrx.data.arrays(x=np.arange(6)).batch(4)
    >>> [batch["x"].tolist() for batch in stream]
    [[0, 1, 2, 3], [4, 5]]
    """

    source: Source
    size: int | None = None
    """Examples of a batch; None for one example at a time."""
    drop_last: bool = False
    seed: int | None = None
    """Of the order; None for that of the source."""
    length: Callable[[Example], int] | None = None
    """By which examples share batches."""
    collate: Collate = collated
    ahead: int = 0
    """Batches that are prepared meanwhile, by a thread."""
    part: tuple[int, int] = (0, 1)
    """Which of how many equal parts of each batch list this stream has."""

    def __len__(self) -> int:
        """The number of batches, or of examples, of an epoch."""
        return len(self.batches(0))

    def map(self, function: Callable[[Example], Example]) -> Self:
        """The stream with each example replaced by the result of a function."""
        return replace(self, source=Mapped(self.source, function))

    def shuffle(self, seed: int = 0) -> Self:
        """The stream in another order in each epoch, which depends on the seed only."""
        return replace(self, seed=seed)

    def batch(self, size: int, *, drop_last: bool = False, collate: Collate | None = None) -> Self:
        """The stream in batches; the last one may be smaller, or is left out with drop_last=True.

        collate makes a batch of a list of examples; by default arrays are stacked to tensors.
        """
        if size < 1:
            raise ValueError(f"size={size}: give 1 or more")
        made = replace(self, size=size, drop_last=drop_last)
        return made if collate is None else replace(made, collate=collate)

    def bucket(
        self,
        size: int,
        length: Callable[[Example], int],
        *,
        drop_last: bool = False,
        collate: Collate | None = None,
    ) -> Self:
        """The stream in batches of examples of similar lengths, so that little is padded. The order
        of the batches is shuffled."""
        return replace(self.batch(size, drop_last=drop_last, collate=collate), length=length)

    def prefetch(self, count: int = 2) -> Self:
        """The stream with so many batches prepared ahead, by a thread."""
        return replace(self, ahead=count)

    def shard(self, index: int, count: int) -> Self:
        """Every count-th batch of the stream, beginning with number index: for workers that share
        it."""
        if not 0 <= index < count:
            raise ValueError(f"shard {index} of {count}: give 0 to {count - 1}")
        return replace(self, part=(index, count))

    def batches(self, epoch: int) -> list[Numbers]:
        """The numbers of the examples of each batch of an epoch."""
        count = len(self.source)
        rng = None if self.seed is None else np.random.default_rng([self.seed, epoch])
        order = np.arange(count) if rng is None else rng.permutation(count)
        size = self.size or 1
        if self.length is not None:
            # Equal lengths keep the shuffled order, so that batches differ between epochs.
            order = order[np.argsort(self._lengths()[order], kind="stable")]
        whole = count // size * size if self.drop_last else count
        found = [order[i : i + size].tolist() for i in range(0, whole, size)]
        if self.length is not None and rng is not None:
            found = [found[i] for i in rng.permutation(len(found))]
        index, parts = self.part
        return found[index::parts]

    def _lengths(self) -> np.ndarray[Any, Any]:
        known = _lengths.get(id(self.source))
        if known is None or known[0] is not self.source or known[1] is not self.length:
            assert self.length is not None
            found = [self.length(self.source[i]) for i in range(len(self.source))]
            known = (self.source, self.length, np.array(found, np.int64))
            _lengths.clear()  # of one stream: the lengths of a data set are read once an epoch
            _lengths[id(self.source)] = known
        return known[2]

    def made(self, numbers: Numbers) -> Any:
        """The batch, or the example, of these numbers."""
        examples = [self.source[i] for i in numbers]
        return examples[0] if self.size is None else self.collate(examples)

    def __iter__(self) -> Iterator[Any]:
        return self.iterate(epochs=1)

    def iterate(self, epochs: int | None = None, start: Place | None = None) -> Batches:
        """An iterator over so many epochs (None for no end), from a place on. Its attribute `place`
        is where it is: another one that starts there goes on with the same batches."""
        return Batches(self, epochs, start or Place())


_lengths: dict[int, Any] = {}


class Batches:
    """An iteration over a stream."""

    def __init__(self, stream: Stream, epochs: int | None, start: Place) -> None:
        self.place = start
        """Of the batch that comes next."""
        self._stream = stream
        self._made = _made(stream, epochs, start)
        if stream.ahead:
            self._made = _Ahead(self._made, stream.ahead)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        self.place, batch = next(self._made)
        return batch


def _made(stream: Stream, epochs: int | None, start: Place) -> Iterator[tuple[Place, Any]]:
    """The batches from a place on, each with the place after it."""
    epoch, first = start.epoch, start.batch
    while epochs is None or epoch < epochs:
        found = stream.batches(epoch)
        if not found:
            return
        for i in range(first, len(found)):
            after = Place(epoch, i + 1) if i + 1 < len(found) else Place(epoch + 1)
            yield after, stream.made(found[i])
        epoch, first = epoch + 1, 0


class _Ahead(Iterator[tuple[Place, Any]]):
    """The items of an iterator, some of which a thread has ready. An error comes in its place."""

    def __init__(self, items: Iterator[tuple[Place, Any]], count: int) -> None:
        self._ready: queue.Queue[Any] = queue.Queue(count)
        self._stopped = threading.Event()
        work = (items, self._ready, self._stopped)
        threading.Thread(target=_fill, args=work, name="lbrx.data", daemon=True).start()

    def __next__(self) -> tuple[Place, Any]:
        item, problem = self._ready.get()
        if problem is not None:
            self._ready.put((None, problem))  # for a call after the end
            raise problem
        found: tuple[Place, Any] = item
        return found

    def __del__(self) -> None:
        self._stopped.set()


def _fill(items: Iterator[Any], ready: queue.Queue[Any], stopped: threading.Event) -> None:
    """Keep the queue full until the items end or nobody takes them any more."""
    while True:
        try:
            item: Any = (next(items), None)
        except BaseException as problem:  # also StopIteration, which ends the other side
            item = (None, problem)
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                break
            except queue.Full:
                continue
        if stopped.is_set() or item[1] is not None:
            return


# ---- streams of each source ----


def arrays(**named: Any) -> Stream:
    """A stream of rows of arrays: an example is a dictionary with a row of each."""
    return Stream(Arrays(named))


def examples(sequence: Sequence[Any]) -> Stream:
    """A stream of the items of a sequence."""
    return Stream(sequence)


def jsonl(path: PathLike) -> Stream:
    """A stream of the objects of a JSONL file. A damaged line raises FormatError with its number
    when it is read."""
    return Stream(JsonLines(path))


def parquet(path: PathLike) -> Stream:
    """A stream of the rows of a Parquet file, by pyarrow (the extra lbrx[data])."""
    return Stream(Parquet(path))


def images(path: PathLike, size: tuple[int, int] | None = None) -> Stream:
    """A stream of the images in the folders of a folder, the classes, by Pillow (the extra
    lbrx[data]): `image` (height, width, 3), uint8, and `label`. `size` is (height, width)."""
    return Stream(ImageFolder(path, size))
