"""OLMo 3: OLMo 2 with windows in three of four layers, whose RoPE is not scaled."""

from __future__ import annotations

from lbrx.models.architectures import olmo2
from lbrx.models.config import RopeSettings

FAR_LAYER_INTERVAL = 4  # layers from one without a window to the next


class Network(olmo2.Network):
    def has_window(self, index: int) -> bool:
        return (index + 1) % FAR_LAYER_INTERVAL != 0

    def rope(self, index: int) -> RopeSettings:
        rope = self.config.rope
        if not self.window(index):
            return rope
        return RopeSettings(self.config.number("rope_local_base_freq", rope.base), rope.dims)
