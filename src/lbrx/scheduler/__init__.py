"""Lazy graphs on the Metal device: fusion, dispatch, replay and profiling."""

from lbrx.scheduler.device import MetalDevice

__all__ = ["MetalDevice"]
