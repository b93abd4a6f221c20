"""`lbrx.video` for type checkers, which know nothing of entry points: the package of lbrx-video."""

from lbrx_video import *  # noqa: F403
from lbrx_video import __all__ as __all__
