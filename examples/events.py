"""Events: host and device work at the same time, and each can wait for the other."""

import time

import lbrx


def main():
    x = lbrx.random.normal((512, 512), device="metal")

    # The device works asynchronously; an event marks a point in its work.
    y = x
    for _ in range(20):
        y = y @ x * 0.05
    done = lbrx.Event("metal")
    done.record(y)
    while not done.query():
        time.sleep(0.001)  # the host could do something else here
    print("finished:", done.query(), "and finite:", bool(y.isfinite().all()))

    # wait() blocks. With a timeout, it returns whether the point was reached.
    done.record(y + 1)
    print("waited:", done.wait(timeout=60))

    # The device can wait for the host, too: it stops at the gate until release().
    gate = lbrx.Event("metal")
    gate.hold()
    held = x + 1
    done.record(held)
    print("held back:", not done.query(), not done.wait(timeout=0.05))
    gate.release()
    print("released:", done.wait())

    # eval() computes tensors, also in containers, and waits for them.
    lbrx.eval({"a": held * 2, "b": [held - 1]})
    print("right:", (held - 1 - x).abs().max().item() < 1e-6)


if __name__ == "__main__":
    main()
