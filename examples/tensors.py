"""Tensors: creation, arithmetic, slices without copies, memory shared with numpy, errors."""

import numpy as np

import lbrx


def main():
    lbrx.random.seed(1)
    x = lbrx.random.normal((4, 8), dtype=lbrx.bfloat16)
    w = lbrx.tensor(np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3))

    hidden = (x @ w + 0.5).gelu().rms_norm()
    print("bfloat16 @ float32 is", hidden.dtype, hidden.shape)
    print("probabilities", hidden.softmax(axis=-1).sum(axis=-1).tolist())

    rows = hidden[1:3, ::2]
    print("a slice shares storage:", rows.storage is hidden.storage)
    print("positive elements:", hidden[hidden > 0].shape[0], "of", hidden.size)

    page = lbrx.empty_aligned((2, 3))
    page[:] = 1
    shared = lbrx.from_numpy(page)
    page[0] = 7
    print(shared)

    try:
        x @ x
    except lbrx.ShapeError as error:
        print("error:", error)


if __name__ == "__main__":
    main()
