"""Runs functions of MIL programs, with NumPy as the definition of every operation."""

from __future__ import annotations

from softcoreml.interpreter.control import StateCell
from softcoreml.interpreter.prepare import prepare
from softcoreml.interpreter.run import Prepared, Watch

__all__ = ["Prepared", "StateCell", "Watch", "prepare"]
