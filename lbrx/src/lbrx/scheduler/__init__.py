"""Lazy graphs on the Metal device: fusion, dispatch, replay and profiling."""

from lbrx.scheduler.device import MetalDevice
from lbrx.scheduler.graph import realise

__all__ = ["MetalDevice", "realise"]
