"""A binary archive of pipelines on disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from lbrx.metal.binding import NSURL, Metal

SAVE_EVERY = 32  # new pipelines, so that a killed process loses few


class PipelineArchive:
    """The archive of a file, which need not be there yet. Some devices have no archives."""

    def __init__(self, device: Any, path: Path) -> None:
        self.path = path
        self._device = device
        self._lock = threading.Lock()
        self._archive: Any = None
        self._new: list[Any] = []  # descriptors of pipelines that are not in the archive yet

    def opened(self) -> Any:
        """The archive of the file if it can be loaded, else an empty one; None if the device has
        none."""
        with self._lock:
            if self._archive is None and os.path.exists(self.path):
                self._archive = self._new_archive(NSURL.fileURLWithPath_(str(self.path)))
            if self._archive is None:
                self._archive = self._new_archive(None)
            return self._archive

    def _new_archive(self, url: Any) -> Any:
        descriptor = Metal.MTLBinaryArchiveDescriptor.alloc().init()
        descriptor.setUrl_(url)
        archive, _ = self._device.newBinaryArchiveWithDescriptor_error_(descriptor, None)
        return archive

    def keep(self, descriptor: Any) -> None:
        """Let the archive be filled later: adding a pipeline compiles it once more."""
        with self._lock:
            self._new.append(descriptor)
            full = len(self._new) >= SAVE_EVERY
        if full:
            self.save()

    def save(self) -> None:
        """Write the archive to a temporary file and rename it, so that no process sees a part.

        If two processes save at once, the last one wins. If the file cannot be written, the next
        process only has to compile again.
        """
        with self._lock, contextlib.suppress(OSError):
            kept, self._new = self._new, []
            if not [each for each in kept if self._added(each)]:
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.path.parent) as folder:
                aside = Path(folder) / "archive"
                url = NSURL.fileURLWithPath_(str(aside))
                written, _ = self._archive.serializeToURL_error_(url, None)
                if written:
                    os.replace(aside, self.path)

    def _added(self, descriptor: Any) -> bool:
        make = self._archive.addComputePipelineFunctionsWithDescriptor_error_
        added, _ = make(descriptor, None)
        return bool(added)
