"""What other CUDA code of the process needs to share memory with a device that is an NVIDIA GPU."""

from __future__ import annotations

from softmetal.api import enums
from softmetal.api.buffer import MTLBuffer
from softmetal.api.device import MTLDevice
from softmetal.api.memory import Foreign
from softmetal.api.queue import MTLCommandQueue
from softmetal.errors import ValidationError
from softmetal.executors.cuda import CudaExecutor


def cuda_device(device: MTLDevice) -> int | None:
    """The number of the GPU that CUDA knows a device by; None if it is not one of NVIDIA's."""
    executor = device._executor
    return executor.index if isinstance(executor, CudaExecutor) else None


def cuda_attribute(device: MTLDevice, attribute: int) -> int | None:
    """An attribute of the GPU, by its number in CUdevice_attribute; None for other devices."""
    executor = device._executor
    return executor.attribute(attribute) if isinstance(executor, CudaExecutor) else None


def cuda_stream(queue: MTLCommandQueue) -> int:
    """The CUstream that a queue's command buffers run in, in the order of their commits."""
    executor = queue._executor
    if not isinstance(executor, CudaExecutor):
        raise ValidationError(f"a queue of {queue.device().name()} has no CUDA stream")
    return executor.stream(queue._handle)


def buffer_over(device: MTLDevice, address: int, length: int, owner: object) -> MTLBuffer:
    """A private buffer over memory of the GPU, which `owner` keeps alive: in the primary context,
    which PyTorch and others use too."""
    if cuda_device(device) is None:
        raise ValidationError(f"{device.name()} does not share memory with CUDA")
    return MTLBuffer(
        device, Foreign(address, length, owner), length, enums.MTLResourceStorageModePrivate
    )
