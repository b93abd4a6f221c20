"""PyObjC's bridge, played: every call is judged as the bridge of a Mac would judge it.

softmetal's methods are Python methods and take what Python takes. On a Mac each call goes through
PyObjC, which knows selectors, types, structures, blocks and out-parameters, and refuses what does
not match. `SOFTMETAL_STRICT=bridge` makes softmetal refuse it too, with a BridgeError; blocks are
called with the arguments that PyObjC passes. `SOFTMETAL_MACOS=14` removes the selectors that this
version of macOS does not have.

    SOFTMETAL_STRICT=bridge SOFTMETAL_MACOS=14 python -m softmetal run program.py

The signatures are those in the metadata of PyObjC's wheels (`pyobjc.py`, generated), and for what
PyObjC takes from the Objective-C runtime a table of ours (`runtime.py`).
"""

from __future__ import annotations

from softmetal.bridge.judge import Judge, check_name, install, judging

__all__ = ["Judge", "check_name", "install", "judging"]
