"""Objects in a dead cycle that a finaliser keeps."""

from __future__ import annotations

import gc


def collected(item, first):
    """An item that was in a dead cycle and that a finaliser has kept."""
    kept = []

    class Holder:
        def __init__(self, item):
            if first:
                self.me = self
            self.item = item.pop()
            self.me = self

        def __del__(self):
            kept.append(self.item)

    Holder(item)
    gc.collect()
    return kept.pop()
