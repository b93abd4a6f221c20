"""Makes the pictures of docs/video.md: what the video kernels do.

python lbrx-video/scripts/video_pictures.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import lbrx
from lbrx_video.pictures import save_picture

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
GAP = 4  # pixels between the parts of a picture


def beside(parts: list[lbrx.Tensor]) -> lbrx.Tensor:
    """Frames (3, height, width) in a row, on white."""
    space = lbrx.ones((3, parts[0].shape[1], GAP))
    row = [parts[0]]
    for part in parts[1:]:
        row += [space, part]
    return lbrx.concat(row, axis=2)


def enlarged(frame: lbrx.Tensor, times: int) -> lbrx.Tensor:
    """Pixels as squares."""
    channels, height, width = frame.shape
    shape = (channels, height, times, width, times)
    spread = frame.reshape(channels, height, 1, width, 1) + lbrx.zeros(shape)
    return spread.reshape(channels, height * times, width * times)


def written(folder: Path, frames: np.ndarray, **given: object) -> Path:
    path = folder / ("clip.mov" if given.get("codec") == "prores" else "clip.mkv")
    with lbrx.video.writer(path, **{"codec": "ffv1", "rate": 24, **given}) as out:
        out.write(lbrx.tensor(frames.astype(np.float32)))
    return path


def siting(folder: Path, temporary: Path) -> None:
    """Thin color bars in 4:2:2: chroma repeated, at the wrong place, and where it belongs."""
    frame = np.full((3, 12, 40), 0.1)
    for i, color in enumerate([(0.9, 0.1, 0.1), (0.1, 0.8, 0.2), (0.2, 0.3, 1.0), (0.9, 0.8, 0.1)]):
        frame[:, 2:10, 4 + 9 * i : 9 + 9 * i] = np.array(color)[:, None, None]
    path = written(temporary, frame, codec="h264", profile="high422", options={"crf": "4"})
    with lbrx.video.open(path) as clip:
        parts = [clip.frame(0, filter="nearest")]
        for name in ("center", "left"):
            color = lbrx.video.Color(1, 1, 1, False, name)
            parts.append(clip.frame(0, color=color))
        save_picture(folder / "video_siting.png", beside([enlarged(x, 6) for x in parts]))


def resizing(folder: Path, temporary: Path) -> None:
    """A zone plate, whose rings become finer towards the edge, at a fifth of its size."""
    y, x = np.mgrid[-1:1:640j, -1:1:640j]
    rings = 0.5 + 0.5 * np.cos(260 * (x * x + y * y))
    path = written(temporary, np.stack([rings] * 3))
    with lbrx.video.open(path) as clip:
        size = {"size": (128, 128)}
        parts = [
            clip.frame(0, filter="nearest", **size),
            clip.frame(0, filter="bilinear", antialias=False, **size),
            clip.frame(0, filter="bilinear", **size),
            clip.frame(0, filter="lanczos", **size),
        ]
        save_picture(folder / "video_resizing.png", beside(parts))


def ranges(folder: Path, temporary: Path) -> None:
    """A ramp from below black to above white: clipped, and scaled so that nothing is lost."""
    ramp = np.linspace(-0.07, 1.09, 256)
    frame = np.stack([np.tile(ramp, (48, 1))] * 3)
    path = written(temporary, frame, profile="4444", codec="prores")
    with lbrx.video.open(path) as clip:
        frames = clip.frame(0)
        parts = [frames.clip(0.0, 1.0), (frames + 0.07) / 1.16]
        save_picture(folder / "video_range.png", beside(parts))


def transfers(folder: Path, temporary: Path) -> None:
    """A sphere in HLG: as it is coded, as linear light, and as sRGB."""
    y, x = np.mgrid[-1:1:160j, -1:1:160j]
    height = np.sqrt(np.clip(1 - x * x - y * y, 0, None))
    light = np.clip(0.5 * x - 0.5 * y + 0.7 * height, 0, None) * (height > 0) * 0.5
    frame = np.stack([light, light * 0.8, light * 0.5])
    color = lbrx.video.Color(9, 18, 9)
    path = written(temporary, frame, transfer="linear", color=color)
    with lbrx.video.open(path) as clip:
        parts = [clip.frame(0), *(clip.frame(0, transfer=name) for name in ("linear", "srgb"))]
        save_picture(folder / "video_transfer.png", beside(parts))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for make in (siting, resizing, ranges, transfers):
            make(folder, Path(temporary))
    print(
        "\n".join(f"{path}: {path.stat().st_size:,} bytes" for path in folder.glob("video_*.png"))
    )


if __name__ == "__main__":
    main()
