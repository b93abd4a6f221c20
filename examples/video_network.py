"""Feeds the frames of a clip to a small vision network, which tells the color of a moving square.

    python examples/video_network.py [CLIP]

Without an argument a small clip is made.
Needs lbrx-video: pip install ./softmetal ./lbrx ./lbrx-video
"""

import argparse
import tempfile

import numpy as np

import lbrx

COLORS = {"red": (0.8, 0.1, 0.1), "green": (0.1, 0.7, 0.2), "blue": (0.1, 0.2, 0.9)}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as many networks expect frames


def made_clip(path):
    """A square on gray that moves to the right and changes its color every 8 frames."""
    with lbrx.video.writer(path, profile="hq", rate=24) as out:
        for number, color in enumerate(c for c in COLORS.values() for _ in range(8)):
            frame = np.full((3, 120, 160), 0.5, np.float32)
            left = 10 + 4 * number
            frame[:, 40:80, left : left + 40] = np.array(color, np.float32)[:, None, None]
            out.write(lbrx.tensor(frame))


class Network:
    """Three layers: how much a channel exceeds the mean of the others, blurred, then its maximum.

    The weights are written down here; a trained network would load them.
    """

    def __init__(self):
        std = np.array(STD, np.float32)
        excess = (np.eye(3) * 1.5 - 0.5).astype(np.float32) * std  # undoes the normalisation
        self.excess = lbrx.tensor(excess.reshape(3, 3, 1, 1))
        self.bias = lbrx.tensor((np.eye(3) * 1.5 - 0.5).astype(np.float32) @ np.array(MEAN, "f4"))
        self.blur = lbrx.tensor(np.full((3, 1, 3, 3), 1 / 9, np.float32))

    def __call__(self, frames):
        hue = lbrx.conv2d(frames, self.excess, self.bias).relu()
        smooth = lbrx.conv2d(hue, self.blur, stride=2, padding=1, groups=3)
        return smooth.max(axis=(2, 3)).softmax(axis=-1)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clip", nargs="?")
    given = parser.parse_args().clip
    network, names = Network(), list(COLORS)
    with tempfile.TemporaryDirectory() as folder:
        path = given or f"{folder}/squares.mov"
        if given is None:
            made_clip(path)
        with lbrx.video.open(path) as clip:
            # One kernel reads 10-bit planes and writes what the network takes.
            batches = clip.batches(8, size=(60, 80), mean=MEAN, std=STD)
            for number, frames in enumerate(batches):
                scores = network(frames)
                best = [names[i] for i in scores.argmax(axis=-1).tolist()]
                print(f"batch {number} {frames.shape}: {', '.join(sorted(set(best)))}")


if __name__ == "__main__":
    main()
