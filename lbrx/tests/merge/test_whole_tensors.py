"""How many whole tensors are computed at a time."""

from __future__ import annotations

import threading
import time

from lbrx.files.stored.computed_arrays import IN_FLIGHT, _Gate


def test_large_tensors_pass_one_at_a_time():
    gate, lock = _Gate(), threading.Lock()
    inside, seen = [], []
    sizes = [IN_FLIGHT // 4, IN_FLIGHT // 2, 3 * IN_FLIGHT, IN_FLIGHT // 4, IN_FLIGHT] * 4

    def work(size):
        with gate.passing(size), gate.passing(size):  # a source of its own is computed inside
            with lock:
                inside.append(size)
                seen.append(list(inside))
            time.sleep(0.002)
            with lock:
                inside.remove(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(sizes)
    assert all(len(together) == 1 or sum(together) <= IN_FLIGHT for together in seen)
    assert max(map(len, seen)) > 1


def test_an_error_opens_the_gate():
    gate = _Gate()
    for _ in range(2):
        try:
            with gate.passing(2 * IN_FLIGHT):
                raise ValueError
        except ValueError:
            pass
    with gate.passing(1):
        pass
