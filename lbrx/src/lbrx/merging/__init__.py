"""Merging of models: a conversion whose tensors have several sources.

`plan` decides from headers what each tensor of the merged model is computed from, as recipes, and
`convert` writes these like any others. The package itself can be called: `lbrx.merge(config)`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from lbrx.merge.run import MergeOptions, PreparedMerge, merge, perform_merge, prepare

__all__ = ["MergeOptions", "PreparedMerge", "merge", "perform_merge", "prepare"]


class _CallableModule(ModuleType):
    """`lbrx.merge` is this package once it is imported, and a function to its users."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return merge(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
