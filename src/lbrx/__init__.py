"""An ML toolkit for Apple Silicon."""

__version__ = "0.1.0"
