"""Language models: networks, tokenizers, caches and text generation.

`lbrx.language_model(path_or_name)` in `loading.py` opens one; `LanguageModel` is what it returns.
"""

from lbrx.models.generation import FinishReason, Timing
from lbrx.models.language_model import Completion, LanguageModel, Stream

__all__ = ["Completion", "FinishReason", "LanguageModel", "Stream", "Timing"]
