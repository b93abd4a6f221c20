"""Items produced by a thread while earlier ones are used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

from lbrx.extension.lifetime import AtDeallocation

T = TypeVar("T")
PATIENCE = 0.1  # seconds between looks at whether the consumer has stopped


class Prefetched(Generic[T]):
    """An iterator over what a producer yields, at most `depth` items ahead of the consumer.

    An error of the producer is raised after the items before it. `close` ends the thread; so does
    collecting the iterator.
    """

    def __init__(self, produce: Callable[[], Iterator[T]], depth: int) -> None:
        self._queue: Queue[tuple[T | None, BaseException | None]] = Queue(depth)
        self._stopped = threading.Event()
        self._over = False
        self._end = AtDeallocation(self._stopped.set)
        self._thread = threading.Thread(
            target=_fill, args=(produce, self._queue, self._stopped), daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Prefetched[T]:
        return self

    def __next__(self) -> T:
        if self._over:
            raise StopIteration
        item, problem = self._queue.get()
        if item is not None:
            return item
        self._over = True
        self._thread.join()
        if problem is not None:
            raise problem
        raise StopIteration

    def close(self) -> None:
        """Stop producing and wait for the thread."""
        self._over = True
        self._stopped.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=PATIENCE)
            except Empty:
                continue


def _fill(
    produce: Callable[[], Iterator[T]],
    queue: Queue[tuple[T | None, BaseException | None]],
    stopped: threading.Event,
) -> None:
    """Runs in the thread, which holds no reference to the iterator, so that it can be collected."""
    problem: BaseException | None = None
    items = produce()
    try:
        for item in items:
            if not _put(queue, (item, None), stopped):
                break
    except BaseException as error:  # raised again where the items are consumed
        problem = error
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()
    _put(queue, (None, problem), stopped)


def _put(
    queue: Queue[tuple[T | None, BaseException | None]],
    item: tuple[T | None, BaseException | None],
    stopped: threading.Event,
) -> bool:
    """False if the consumer has stopped."""
    while not stopped.is_set():
        try:
            queue.put(item, timeout=PATIENCE)
        except Full:
            continue
        return True
    return False
