"""Small video files for tests, made by FFmpeg's encoders and sources."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np

from lbrx_video.ffmpeg import plane_view
from lbrx_video.pixel_formats import find

HEIGHT, WIDTH, RATE = 48, 64, 24


def frame_of(planes, pixel_format, height=HEIGHT, width=WIDTH):
    """A frame with these code values; numbers fill a plane."""
    form = find(pixel_format)
    frame = av.VideoFrame(width, height, pixel_format)
    for i, (plane, values) in enumerate(zip(frame.planes, planes, strict=True)):
        room = np.broadcast_to(
            np.asarray(values, form.dtype.numpy), form.plane_shape(i, height, width)
        )
        np.copyto(plane_view(plane, room), room)
    return frame


def write_clip(
    path,
    codec,
    frames,
    pixel_format,
    *,
    options=None,
    audio=False,
    faststart=False,
    color=(1, 1, 1, 1),
    aspect=None,
):
    """A file of given frames. Audio is one second of a tone for each 24 frames. color: FFmpeg's
    codes of primaries, transfer, matrix and range, by default those of BT.709."""
    flags = {"movflags": "+faststart"} if faststart else {}
    with av.open(str(path), "w", options=flags) as file:
        stream = file.add_stream(codec, rate=RATE)
        stream.width, stream.height = frames[0].width, frames[0].height
        stream.pix_fmt = pixel_format
        stream.options = options or {}
        stream.codec_context.sample_aspect_ratio = aspect or 1
        tagged = [stream.codec_context, *frames]
        for one in tagged:
            one.color_primaries, one.color_trc, one.colorspace, one.color_range = color
        sound = file.add_stream("pcm_s16le", rate=8000, layout="mono") if audio else None
        for number, frame in enumerate(frames):
            frame.pts = number
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
        if sound is not None:
            for start in range(0, 8000 * len(frames) // RATE, 1000):
                tone = np.sin((np.arange(1000) + start) / 5) * 8000
                block = av.AudioFrame.from_ndarray(tone.astype(np.int16)[None], "s16", "mono")
                block.sample_rate, block.pts = 8000, start
                file.mux(sound.encode(block))
            file.mux(sound.encode())
    return Path(path)


def source_frames(count, pixel_format, source="testsrc2"):
    """Frames of one of FFmpeg's test sources."""
    graph = av.filter.Graph()
    made = graph.add(source, f"size={WIDTH}x{HEIGHT}:rate={RATE}:duration={count / RATE}")
    form = graph.add("format", f"pix_fmts={pixel_format}")
    sink = graph.add("buffersink")
    made.link_to(form)
    form.link_to(sink)
    graph.configure()
    return [graph.vpull() for _ in range(count)]


def decoded_planes(path):
    """All planes of all frames, by PyAV alone."""
    with av.open(str(path)) as file:
        return [
            [
                plane_view(
                    plane,
                    np.empty(
                        find(frame.format.name).plane_shape(i, frame.height, frame.width),
                        find(frame.format.name).dtype.numpy,
                    ),
                ).copy()
                for i, plane in enumerate(frame.planes)
            ]
            for frame in file.decode(video=0)
        ]
