"""lbrx's dependencies: the distributions of one release need each other's same version. And what a
wheel for macOS has more than others."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReleaseDependencies(MetadataHookInterface):
    """Puts the version of the release in for {version} in the lines of pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        def filled(lines: list[str]) -> list[str]:
            return [line.replace("{version}", metadata["version"]) for line in lines]

        metadata["dependencies"] = filled(self.config["dependencies"])
        metadata["optional-dependencies"] = {
            extra: filled(lines) for extra, lines in self.config["optional-dependencies"].items()
        }


class EncoderLibrary(BuildHookInterface):
    """Makes a wheel for macOS of one that is built with LBRX_ENCODER: the path of the library that
    scripts/build_distributions.py builds of metal/encoder.c. Without it a wheel is for all systems.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = os.environ.get("LBRX_ENCODER")
        if library and self.target_name == "wheel" and version != "editable":
            build_data["force_include"][library] = "lbrx/metal/liblbrx_encoder.dylib"
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-macosx_14_0_arm64"
