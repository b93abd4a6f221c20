"""`lbrx train`: language models fine-tuned on examples, over weights as they are stored."""

from __future__ import annotations

from lbrx.train.options import TrainOptions
from lbrx.train.run import train

__all__ = ["TrainOptions", "train"]
