"""A prefetched iterator in a dead cycle, which another object of the cycle keeps."""

from __future__ import annotations

from itertools import count

from dead_cycles import collected

from lbrx_video.prefetch import Prefetched


def test_a_kept_iterator_goes_on():
    items = collected([Prefetched(lambda: iter(count()), 1)], True)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    items.close()
