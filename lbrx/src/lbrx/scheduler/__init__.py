"""Lazy graphs on the Metal device: fusion, dispatch, replay and profiling."""

from lbrx.scheduler.graph import realise
from lbrx.scheduler.metal_device import MetalDevice

__all__ = ["MetalDevice", "realise"]
