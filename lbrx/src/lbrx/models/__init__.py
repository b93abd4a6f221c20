"""Language models: loaded from files of any format, and run."""

from lbrx.models.generation import Finish, Timing
from lbrx.models.language_model import Completion, LanguageModel, Stream
from lbrx.models.loading import load

__all__ = ["Completion", "Finish", "LanguageModel", "Stream", "Timing", "load"]
