"""The models of a server, by the names that requests give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbrx.serve.problems import RequestError
from lbrx.serve.service import Service


class Models:
    """Services with names of their own. A request that names no model means the first one."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = {service.name: service for service in services}

    def __iter__(self) -> Iterator[Service]:
        return iter(self._services.values())

    def named(self, wanted: object) -> Service:
        """The service of a name, to which Ollama's clients may add `:latest`. Raises RequestError
        if there is none."""
        if wanted is None:
            return next(iter(self))
        name = wanted if isinstance(wanted, str) else ""
        service = self._services.get(name) or self._services.get(name.removesuffix(":latest"))
        if service is None:
            names = ", ".join(self._services)
            raise RequestError(404, f"{wanted!r:.200} is not a model here: use {names}", "model")
        return service

    def close(self) -> None:
        """Wait until all texts of all models have ended."""
        for service in self:
            service.close()
