"""Apple ProRes by kernels: packets as they lie in a file become planes on the device, and back."""

from lbrx.video.prores.decoder import decode
from lbrx.video.prores.encoder import encode
from lbrx.video.prores.frame_header import FieldOrder, FrameHeader, read_header

__all__ = ["FieldOrder", "FrameHeader", "decode", "encode", "read_header"]
