"""Video as tensors: frames are decoded, converted and encoded without RGB images on the host.

This package is `lbrx.video` too, and its command is `lbrx video`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lbrx_video.clip import Clip, open
    from lbrx_video.clip_facts import AudioFacts, ClipFacts
    from lbrx_video.clip_writer import ClipWriter, writer
    from lbrx_video.color import Color
    from lbrx_video.planes import Planes

__all__ = [
    "AudioFacts",
    "Clip",
    "ClipFacts",
    "ClipWriter",
    "Color",
    "Planes",
    "open",
    "writer",
]

if not TYPE_CHECKING:  # a type checker sees the imports above; this would let any name pass

    def __getattr__(name: str) -> Any:
        """Import what needs PyAV when it is first used."""
        match name:
            case "Clip" | "open":
                from lbrx_video import clip as module
            case "AudioFacts" | "ClipFacts":
                from lbrx_video import clip_facts as module
            case "ClipWriter" | "writer":
                from lbrx_video import clip_writer as module
            case "Color":
                from lbrx_video import color as module
            case "Planes":
                from lbrx_video import planes as module
            case _:
                raise AttributeError(f"module 'lbrx_video' has no attribute {name!r}")
        return getattr(module, name)
