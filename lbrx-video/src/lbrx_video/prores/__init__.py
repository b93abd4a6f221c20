"""Apple ProRes by kernels: packets as they lie in a file become planes on the device, and back."""

from lbrx_video.prores.decoder import decode
from lbrx_video.prores.encoder import encode
from lbrx_video.prores.frame_header import FieldOrder, FrameHeader, read_header

__all__ = ["FieldOrder", "FrameHeader", "decode", "encode", "read_header"]
