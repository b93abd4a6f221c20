"""lbrx-video's dependencies: the distributions of one release need each other's same version."""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReleaseDependencies(MetadataHookInterface):
    """Puts the version of the release in for {version} in the lines of pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        lines = self.config["dependencies"]
        metadata["dependencies"] = [line.format(version=metadata["version"]) for line in lines]
