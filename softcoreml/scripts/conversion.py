"""Conversion of the test networks to Core ML packages with coremltools, plain and compressed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import coremltools as ct
import coremltools.optimize.coreml as cto
import networks
import numpy as np
import torch

TARGETS = {
    "ios15": ct.target.iOS15,
    "ios16": ct.target.iOS16,
    "ios17": ct.target.iOS17,
    "ios18": ct.target.iOS18,
}


def convert(network: networks.Network, target: str = "ios18", half: bool = True) -> Any:
    """A network as an ML program; its outputs are named y0, y1 and so on."""
    call = network.calls[0]
    for name in network.states:
        getattr(network.module, name).zero_()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(
            network.module, tuple(torch.from_numpy(one) for one in call.values())
        )
        for name in network.states:
            getattr(traced, name).zero_()
        return ct.convert(
            traced,
            inputs=[ct.TensorType(key, one.shape, one.dtype) for key, one in call.items()],
            outputs=[
                ct.TensorType(f"y{number}") for number in range(len(networks.outputs(network)[0]))
            ],
            states=[
                ct.StateType(ct.TensorType(shape=shape, dtype=np.float16), name)
                for name, shape in network.states.items()
            ]
            or None,
            minimum_deployment_target=TARGETS[target],
            compute_precision=ct.precision.FLOAT16 if half else ct.precision.FLOAT32,
            skip_model_load=True,
        )


def _config(operation: Any) -> Any:
    return cto.OptimizationConfig(global_config=operation)


def _palettized(model: Any, **how: Any) -> Any:
    config = cto.OpPalettizerConfig(weight_threshold=0, **how)
    return cto.palettize_weights(model, _config(config))


def _quantized(model: Any, **how: Any) -> Any:
    config = cto.OpLinearQuantizerConfig(weight_threshold=0, **how)
    return cto.linear_quantize_weights(model, _config(config))


def _pruned(model: Any) -> Any:
    config = cto.OpMagnitudePrunerConfig(target_sparsity=0.6, weight_threshold=0)
    return cto.prune_weights(model, _config(config))


def _pruned_and(compress: Callable[..., Any], model: Any, **how: Any) -> Any:
    return compress(_pruned(model), joint_compression=True, **how)


def _joint_palettized(model: Any, joint_compression: bool) -> Any:
    config = cto.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=0)
    return cto.palettize_weights(model, _config(config), joint_compression=joint_compression)


def _joint_quantized(model: Any, joint_compression: bool) -> Any:
    config = cto.OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int8", weight_threshold=0)
    return cto.linear_quantize_weights(model, _config(config), joint_compression=joint_compression)


COMPRESSIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "palettized_4": ("ios16", lambda model: _palettized(model, mode="uniform", nbits=4)),
    "palettized_6": ("ios17", lambda model: _palettized(model, mode="uniform", nbits=6)),
    "palettized_3_grouped": (
        "ios18",
        lambda model: _palettized(
            model, mode="uniform", nbits=3, granularity="per_grouped_channel", group_size=4
        ),
    ),
    "palettized_vectors": (
        "ios18",
        lambda model: _palettized(model, mode="kmeans", nbits=2, cluster_dim=2),
    ),
    "palettized_scaled": (
        "ios18",
        lambda model: _palettized(model, mode="uniform", nbits=4, enable_per_channel_scale=True),
    ),
    "quantized_8": ("ios16", lambda model: _quantized(model, mode="linear", dtype="uint8")),
    "quantized_8_channels": (
        "ios18",
        lambda model: _quantized(model, mode="linear_symmetric", dtype="int8"),
    ),
    "quantized_4_blocks": (
        "ios18",
        lambda model: _quantized(
            model, mode="linear", dtype="uint4", granularity="per_block", block_size=4
        ),
    ),
    "pruned": ("ios16", _pruned),
    "pruned_18": ("ios18", _pruned),
    "pruned_palettized": ("ios18", lambda model: _pruned_and(_joint_palettized, model)),
    "pruned_quantized": ("ios18", lambda model: _pruned_and(_joint_quantized, model)),
}
"""Ways to compress weights, each with the target that it is made for."""


def decompressed(model: Any, network: networks.Network) -> networks.Network:
    """The network with the parameters that coremltools decompresses, told apart by their shapes."""
    plain = cto.decompress_weights(model)
    found = {}
    for one in cto.get_weights_metadata(plain, weight_threshold=0).values():
        found.setdefault(tuple(one.val.shape), []).append(np.array(one.val, dtype=np.float32))
    for name, parameter in network.module.named_parameters():
        candidates = found.get(tuple(parameter.shape), [])
        if parameter.ndim == 1 and not candidates:
            continue  # biases and norms are not compressed
        if len(candidates) != 1:
            raise ValueError(f"{len(candidates)} weights have the shape of {name}: make it unique")
        parameter.data.copy_(torch.from_numpy(candidates[0]))
    return network
