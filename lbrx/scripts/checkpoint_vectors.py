"""Record how other libraries decode the weights that they packed, for the tests to compare with.

    python lbrx/scripts/checkpoint_vectors.py SOURCES

Needs torch, transformers, compressed-tensors and bitsandbytes, and in the folder SOURCES the
unpacked source distributions of autoawq and gptqmodel from PyPI, whose decoders are used without
the rest. Writes lbrx/tests/formats/packed_weights.safetensors: for each case the stored tensors of
a layer, the values that the library decodes, and config.json's settings in the metadata.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

TARGET = Path(__file__).parents[1] / "tests" / "formats" / "packed_weights.safetensors"
ROWS, COLUMNS = 32, 128
Tensors = dict[str, torch.Tensor]
Case = tuple[Tensors, torch.Tensor, dict[str, Any]]
"""Stored tensors of a layer, the values, and the settings."""


def weights(seed: int, rows: int = ROWS, columns: int = COLUMNS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * 0.1


def fp8_blocks() -> Case:
    x, high, wide = weights(1), 8, 64
    tiles = x.reshape(ROWS // high, high, COLUMNS // wide, wide)
    scales = tiles.abs().amax(dim=(1, 3)) / 448
    codes = (tiles / scales[:, None, :, None]).reshape(ROWS, COLUMNS).to(torch.float8_e4m3fn)
    values = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32)
    settings = {"quant_method": "fp8", "weight_block_size": [high, wide]}
    return {"weight": codes, "weight_scale_inv": scales}, values, settings


def compressed(
    form: str, zero_point: bool = False, dtype: torch.dtype = torch.bfloat16, **arguments
):
    """A case of compressed-tensors: its own compressor packs and decodes."""

    def make() -> Case:
        args = QuantizationArgs(symmetric=not zero_point, **arguments)
        x = weights(len(form) + args.num_bits).to(dtype)
        size = args.group_size or COLUMNS
        grouped = x.float().reshape(ROWS, -1, size)
        state: Tensors = {"weight": x}
        if form.startswith("nvfp4"):
            whole = (448 * 6 / grouped.abs().max()).reshape(1)
            state["weight_scale"] = (
                (grouped.abs().amax(-1) / 6 * whole).to(torch.float8_e4m3fn).float()
            )
            state["weight_global_scale"] = whole
        elif form.startswith("mx"):
            top = 6 if args.num_bits == 4 else 448
            state["weight_scale"] = torch.exp2((grouped.abs().amax(-1) / top).log2().ceil())
        elif zero_point:
            low, high = grouped.amin(-1), grouped.amax(-1)
            scales = ((high - low) / 15).to(dtype)
            state["weight_scale"] = scales
            state["weight_zero_point"] = torch.round(-low / scales - 8).clamp(-8, 7).to(torch.int8)
        else:
            top = 448.0 if args.type == "float" else 2 ** (args.num_bits - 1) - 0.5
            state["weight_scale"] = (grouped.abs().amax(-1) / top).to(dtype)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        compressor = BaseCompressor.get_value_from_registry(form)
        stored = compressor.compress(state, scheme)
        decoded = decode(compressor, dict(stored), scheme)
        settings = {"quant_method": "compressed-tensors", "format": form}
        return stored, decoded.float(), settings

    return make


def decode(compressor: type, stored: Tensors, scheme: QuantizationScheme) -> torch.Tensor:
    """The values; of four-bit floats in float32, where the compressor would round to bfloat16."""
    if "weight_global_scale" not in stored:
        return compressor.decompress(stored, scheme)["weight"]
    codes = unpack_fp4_from_uint8(stored["weight_packed"], ROWS, COLUMNS, dtype=torch.float32)
    scales, whole = stored["weight_scale"].float(), stored["weight_global_scale"]
    return dequantize(codes, scales, args=scheme.weights, global_scale=whole, dtype=torch.float32)


def bits4(kind: str, nested: bool, columns: int = COLUMNS) -> Callable[[], Case]:
    def make() -> Case:
        x = weights(7, columns=columns)
        packed, state = bnb.quantize_4bit(
            x, blocksize=64, compress_statistics=nested, quant_type=kind
        )
        beside = {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
        # Blocks are those of the flat tensor. On processors 0.50 decodes rows as if each began one.
        state.shape = torch.Size([1, x.numel()])
        values = bnb.dequantize_4bit(packed, state).reshape(x.shape)
        settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
        return {"weight": packed, **beside}, values.float(), settings

    return make


def int8() -> Case:
    x = weights(8).half()
    codes, sizes, _ = bnb.int8_vectorwise_quant(x)
    values = bnb.int8_vectorwise_dequant(codes, sizes)
    settings = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    return {"weight": codes, "SCB": sizes}, values.float(), settings


def gptq(bits: int, ordered: bool, form: str = "gptq", size: int = 32) -> Callable[[], Case]:
    def make() -> Case:
        library = importlib.import_module("gptqmodel.utils.model_dequant")
        generator = torch.Generator().manual_seed(bits)
        codes = torch.randint(0, 1 << bits, (COLUMNS, ROWS), generator=generator)
        zeros = torch.randint(0, 1 << bits, (COLUMNS // size, ROWS), generator=generator)
        scales = (torch.rand(COLUMNS // size, ROWS, generator=generator) * 0.01).half()
        order = torch.arange(COLUMNS, dtype=torch.int32) // size
        if ordered:
            order = order[torch.randperm(COLUMNS, generator=generator)]
        shift = -1 if form == "gptq" else 0
        packed = library.pack_cols(
            codes.T.contiguous(), bits, pack_dtype=torch.int32
        ).T.contiguous()
        stored = library.pack_cols(
            (zeros + shift) & ((1 << bits) - 1), bits, pack_dtype=torch.int32
        )
        corrected = library._correct_gptq_v1_qzeros(stored, bits) if shift else stored
        at = order.long()
        unpacked = library.unpack_rows(packed, bits).float()
        values = (unpacked - library.unpack_cols(corrected, bits).float()[at]) * scales.float()[at]
        tensors = {"qweight": packed, "qzeros": stored, "scales": scales, "g_idx": order}
        settings = {"quant_method": "gptq", "bits": bits, "desc_act": ordered}
        return tensors, values.T, {**settings, "checkpoint_format": form, "group_size": size}

    return make


def awq() -> Case:
    library = importlib.import_module("awq.utils.packing_utils")
    generator = torch.Generator().manual_seed(5)
    packed = torch.randint(-(1 << 31), 1 << 31, (COLUMNS, ROWS // 8), generator=generator).int()
    zeros = torch.randint(
        -(1 << 31), 1 << 31, (COLUMNS // 64, ROWS // 8), generator=generator
    ).int()
    scales = (torch.rand(COLUMNS // 64, ROWS, generator=generator) * 0.01).half()
    values = library.dequantize_gemm(packed, zeros, scales.float(), 4, 64).T
    settings = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}
    return {"qweight": packed, "qzeros": zeros, "scales": scales}, values, settings


CASES: dict[str, Callable[[], Case]] = {
    "fp8 blocks": fp8_blocks,
    "fp8 channels": compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
    "int8 channels": compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
    "packed 4": compressed(
        "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32
    ),
    "packed 4 zero points": compressed(
        "pack-quantized",
        True,
        torch.float16,
        num_bits=4,
        type="int",
        strategy="group",
        group_size=64,
    ),
    "packed 8 channels": compressed("pack-quantized", num_bits=8, type="int", strategy="channel"),
    "packed 3": compressed(
        "pack-quantized", num_bits=3, type="int", strategy="group", group_size=64
    ),
    "nvfp4": compressed(
        "nvfp4-pack-quantized",
        num_bits=4,
        type="float",
        strategy="tensor_group",
        group_size=16,
        dtype=torch.float32,
    ),
    "mxfp4": compressed(
        "mxfp4-pack-quantized",
        num_bits=4,
        type="float",
        strategy="group",
        group_size=32,
        scale_dtype=torch.uint8,
    ),
    "mxfp8": compressed(
        "mxfp8-quantized",
        num_bits=8,
        type="float",
        strategy="group",
        group_size=32,
        scale_dtype=torch.uint8,
    ),
    "nf4": bits4("nf4", nested=False),
    "nf4 nested": bits4("nf4", nested=True),
    "nf4 across rows": bits4("nf4", nested=True, columns=80),
    "fp4": bits4("fp4", nested=False),
    "int8": int8,
    "gptq 4": gptq(4, ordered=False),
    "gptq 4 ordered": gptq(4, ordered=True),
    "gptq 3": gptq(3, ordered=False),
    "gptq 8 v2": gptq(8, ordered=False, form="gptq_v2", size=128),
    "awq": awq,
}


def without_initialisation(name: str, folder: Path) -> None:
    """Make a package's modules importable without its `__init__.py` and what that imports."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


def main(sources: Path) -> None:
    for name in ("awq", "awq.utils", "gptqmodel", "gptqmodel.utils", "gptqmodel.quantization"):
        (found,) = sources.glob(f"*/{name.replace('.', '/')}")
        without_initialisation(name, found)
    for name in ("gptqmodel.utils.logger", "gptqmodel.quantization.dtype"):
        unused: Any = types.ModuleType(name)  # the real one needs more packages
        unused.__getattr__ = lambda attribute: lambda *given: ()
        sys.modules[name] = unused
    tensors, settings = {}, {}
    for name, make in CASES.items():
        stored, values, settings[name] = make()
        tensors |= {f"{name}/{key}": value.contiguous().clone() for key, value in stored.items()}
        tensors[f"{name}/values"] = values.float().contiguous()
    save_file(tensors, TARGET, {"settings": json.dumps(settings)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
