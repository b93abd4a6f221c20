"""What is done with command lists: graphs on the Metal device, replay, measuring and profiling."""

from lbrx.graph.graph import realise
from lbrx.scheduler import graph_plan as graph_plan  # computes graphs
from lbrx.scheduler.metal_device import MetalDevice

__all__ = ["MetalDevice", "realise"]
