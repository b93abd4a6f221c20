"""A custom Metal kernel, called with tensors.

Runs on the GPU of a Mac, and elsewhere on softmetal.
"""

import numpy as np

import lbrx

SOURCE = """
// One threadgroup per row: the mean of its elements, weighted by w.
kernel void weighted_mean(device const T* x, device const float* w, constant uint& width,
                          constant float& bias, device float* out,
                          uint row [[threadgroup_position_in_grid]],
                          uint lane [[thread_index_in_simdgroup]]) {
  float total = 0, weight = 0;
  for (uint i = lane; i < width; i += 32) {
    total += float(x[row * width + i]) * w[i];
    weight += w[i];
  }
  total = simd_sum(total);
  weight = simd_sum(weight);
  if (lane == 0) out[row] = total / weight + bias;
}
"""


def main():
    weighted_mean = lbrx.kernel(SOURCE)
    x = lbrx.random.normal((1000, 300), device="metal")
    w = lbrx.arange(1, 301, dtype="float32", device="metal")

    # Tensors are passed as buffers and numbers as constants, by position or by name. The template
    # replaces T by a type.
    rows, width = x.shape
    for dtype in (lbrx.float32, lbrx.bfloat16):
        result = weighted_mean(
            x.astype(dtype), w, width, bias=0.5, template={"T": dtype},
            grid=(32 * rows, 1, 1), group=(32, 1, 1), shapes=[(rows,)],
        )  # fmt: skip
        expected = np.average(x.numpy().astype(float), axis=1, weights=w.numpy()) + 0.5
        error = np.abs(result.numpy() - expected).max()
        print(f"{dtype}: {result.shape} {result.dtype} on {result.device}, right: {error < 5e-3}")

    # An initial value can be given for an output. A tensor given so is copied, not changed.
    histogram = lbrx.kernel("""
    kernel void histogram(device const uchar* x, device atomic_uint* bins,
                          uint i [[thread_position_in_grid]]) {
      atomic_fetch_add_explicit(&bins[x[i]], 1, memory_order_relaxed);
    }
    """)
    letters = np.frombuffer(b"hello world", np.uint8)
    bins = histogram(letters, bins=0, shapes=[(256,)], grid=letters.size)
    print("letters l:", bins[ord("l")].item())

    counts = lbrx.metal.stats()["kernels"]
    print("dispatches:", counts["weighted_mean"], counts["histogram"])

    try:
        weighted_mean(x.astype(lbrx.int32), w, width, 0.5, template={"T": lbrx.float32})
    except lbrx.DtypeError as error:
        print("error:", error)


if __name__ == "__main__":
    main()
