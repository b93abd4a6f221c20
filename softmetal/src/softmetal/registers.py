"""A model of registers on Apple's GPUs, which limit a kernel's threadgroups.

Apple's compiler is not here, so the number of registers is estimated from the code for this
machine's processor. A program that runs with these limits has looked at
maxTotalThreadsPerThreadgroup, or declared what it launches.
"""

from __future__ import annotations

from softmetal.types import Mode

# (halves of 32-bit registers that a thread has at most, threads that then fit a core of an M1),
# as measured by the Asahi project.
OCCUPANCY = ((104, 1024), (112, 896), (128, 832), (136, 768), (144, 704), (160, 640), (184, 576),
             (208, 512), (232, 448), (256, 384))  # fmt: skip
BESIDE_STACK = 16  # 32-bit values in a processor's own registers


def modelled_registers(stack: int, mode: Mode) -> int:
    """32-bit registers of a thread, by the bytes of stack that its native code takes. Loops over
    threads that never meet keep many threads' values there, and little else."""
    return BESIDE_STACK if mode in (Mode.FLAT, Mode.GROUPS) else BESIDE_STACK + stack // 4


def most_threads(registers: int) -> int:
    """Threads of a threadgroup with so many registers each; what does not fit is spilled."""
    fitting = (threads for halves, threads in OCCUPANCY if 2 * registers <= halves)
    return next(fitting, OCCUPANCY[-1][1])
