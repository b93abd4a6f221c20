"""Events: the host goes on while the device works, and each can wait for the other."""

import time

import lbrx


def main():
    x = lbrx.random.normal((512, 512), device="metal")

    # The device does its work in its own time; an event is a point in it.
    y = x
    for _ in range(20):
        y = y @ x * 0.05
    done = lbrx.Event("metal")
    done.record(y)
    while not done.query():
        time.sleep(0.001)  # here the host has time for something else
    print("finished:", done.query(), "and finite:", bool(y.isfinite().all()))

    # wait() blocks; with a timeout it says whether the point was reached.
    done.record(y + 1)
    print("waited:", done.wait(timeout=60))

    # The other way round: the device holds until the host lets it go on.
    gate = lbrx.Event("metal")
    gate.hold()
    held = x + 1
    done.record(held)
    print("held back:", not done.query(), not done.wait(timeout=0.05))
    gate.release()
    print("released:", done.wait())

    # eval() runs what is pending for tensors, also in containers, and waits.
    lbrx.eval({"a": held * 2, "b": [held - 1]})
    print("right:", (held - 1 - x).abs().max().item() < 1e-6)


if __name__ == "__main__":
    main()
