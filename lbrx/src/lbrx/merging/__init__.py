"""Merging of models: a conversion whose tensors have several sources.

`plan` decides from headers what each tensor of the merged model is computed from, as recipes, and
`convert` writes these like any others.
"""

from __future__ import annotations

from lbrx.merging.run import MergeOptions, PreparedMerge, merge, perform_merge, prepare

__all__ = ["MergeOptions", "PreparedMerge", "merge", "perform_merge", "prepare"]
