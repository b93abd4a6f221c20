"""Grades a clip with a 3D lookup table in a Metal kernel, and writes ProRes 422 HQ.

    python examples/grade_video.py [CLIP OUT.mov]

Without arguments a small test clip is made.
Needs lbrx-video: pip install ./softmetal ./lbrx ./lbrx-video
"""

import argparse
import tempfile

import numpy as np

import lbrx

GRADE = """
// A thread grades a pixel: trilinear interpolation between the 8 entries around its color.
kernel void grade(device const float* frames, device const float* table, device float* graded,
                  constant uint& edge, constant uint& pixels,
                  uint2 at [[thread_position_in_grid]]) {
  const ulong first = ulong(at.y) * 3 * pixels + at.x;
  float3 color(frames[first], frames[first + pixels], frames[first + 2 * pixels]);
  const float3 place = clamp(color, 0.0f, 1.0f) * float(edge - 1);
  const uint3 low = min(uint3(place), uint3(edge - 2));
  const float3 part = place - float3(low);
  float3 sum = 0.0f;
  for (uint corner = 0; corner < 8; corner++) {
    const uint3 step(corner & 1, corner >> 1 & 1, corner >> 2);
    const float3 weights = select(1.0f - part, part, step == 1);
    const uint3 entry = low + step;
    device const float* found = table + ((entry.z * edge + entry.y) * edge + entry.x) * 3;
    sum += weights.x * weights.y * weights.z * float3(found[0], found[1], found[2]);
  }
  graded[first] = sum.x;
  graded[first + pixels] = sum.y;
  graded[first + 2 * pixels] = sum.z;
}
"""


def warm_shadows(edge=17):
    """A table (blue, green, red, channel): warmer shadows, and a little more contrast."""
    blue, green, red = np.meshgrid(*[np.linspace(0, 1, edge)] * 3, indexing="ij")
    color = np.stack([red, green, blue], axis=-1)
    curve = color + 0.1 * np.sin(2 * np.pi * (color - 0.5)) / np.pi
    warmth = np.array([0.06, 0.0, -0.05]) * (1 - color.max(axis=-1, keepdims=True))
    return (curve + warmth).astype(np.float32)


def made_clip(path):
    """A ramp that moves, two seconds of it."""
    across = np.linspace(0, 1, 160, dtype=np.float32)
    with lbrx.video.writer(path, profile="4444", rate=24) as out:
        for number in range(48):
            ramp = np.roll(across, number)
            frame = np.stack([np.tile(c, (90, 1)) for c in (ramp, ramp[::-1], ramp * ramp)])
            out.write(lbrx.tensor(frame))


def grade(source, target):
    kernel, table = lbrx.kernel(GRADE), lbrx.tensor(warm_shadows(), device="metal")
    with (
        lbrx.video.open(source) as clip,
        lbrx.video.writer(target, codec="prores", profile="hq", like=clip) as out,
    ):
        print(clip)
        for frames in clip.batches(8, device="metal"):
            pixels = frames.shape[2] * frames.shape[3]
            out.write(kernel(frames, table, len(table), pixels, grid=(pixels, len(frames))))
    return out.frames


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", nargs="*")
    given = parser.parse_args().clips
    if len(given) not in (0, 2):
        parser.error("give a clip and the file to write, or neither")
    with tempfile.TemporaryDirectory() as folder:
        source, target = given or (f"{folder}/ramp.mov", f"{folder}/graded.mov")
        if not given:
            made_clip(source)
        print("frames:", grade(source, target))
        with lbrx.video.open(source) as before, lbrx.video.open(target) as after:
            print(after.facts.codec, after.facts.profile, after.facts.pixel_format)
            dark, graded = (clip.frame(0).clip(0, 1) for clip in (before, after))
            shadows = dark.max(axis=0) < 0.6
            red, _, blue = lbrx.where(shadows, graded - dark, 0.0).sum(axis=(1, 2)).tolist()
            print("shadows are warmer:", red > 0 > blue)


if __name__ == "__main__":
    main()
