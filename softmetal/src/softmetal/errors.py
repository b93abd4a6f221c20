"""Everything softmetal raises.

SoftmetalError
├── CompileError        the shader was refused; `diagnostics` is clang's text with the user's lines
├── ToolchainError      clang could not be started, or failed for a reason other than the shader
├── ExecutionError      a submitted command list failed on the device
├── ValidationError     what Apple's debug layer would refuse (also a ValueError)
├── BridgeError         what PyObjC's bridge would refuse (also a TypeError and a ValueError)
└── SettingError        a SOFTMETAL_* variable has an invalid value (also a ValueError)
"""


class SoftmetalError(Exception):
    """The root of this package's exceptions."""


class CompileError(SoftmetalError):
    """A shader was refused."""

    def __init__(self, diagnostics: str) -> None:
        super().__init__(diagnostics)
        self.diagnostics = diagnostics


class ToolchainError(SoftmetalError):
    """The compiler itself failed."""


class ExecutionError(SoftmetalError):
    """A command list failed while it ran."""


# DEVIATION: calls for which Apple's debug layer ends the process always raise this error; without
# that layer such calls have undefined behaviour on Apple's devices.
class ValidationError(SoftmetalError, ValueError):
    """A call that Apple's debug layer would refuse."""


class BridgeError(SoftmetalError, TypeError, ValueError):
    """A call that PyObjC would refuse, and softmetal would not; see `softmetal.bridge`."""


class SettingError(SoftmetalError, ValueError):
    """An environment variable has an invalid value."""


def shown_path(path: str) -> str:
    """A path for a message: one line of at most 300 characters."""
    return f"{path!r:.301}".strip("'\"")
