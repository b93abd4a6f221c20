"""Kernels of other projects that Apple's compiler accepts pass the strict check."""

from __future__ import annotations

from pathlib import Path

import pytest
from wheels import llama_kernels

from softmetal import compiler
from softmetal.types import CompileOptions

KERNELS = "mlx/backend/metal/kernels"
# Kernel templates of MLX with arguments for which it instantiates them, by the header.
INSTANCES = {
    "arange.h": ["arange, float", "arange, int32_t"],
    "binary.h": ["binary_vv, float, float, Add", "binary_g, half, half, Maximum, 4",
                 "binary_vs, complex64_t, complex64_t, Multiply"],
    "unary.h": ["unary_v, bfloat16_t, bfloat16_t, Exp", "unary_g, float, float, Sigmoid, 4"],
    "ternary.h": ["ternary_g_nd1, float, Select"],
    "copy.h": ["copy_v, float, bfloat16_t", "copy_g, half, float, 4", "copy_s, bool, int32_t"],
    "softmax.h": ["softmax_single_row, float, float", "softmax_looped, half, float"],
    "logsumexp.h": ["logsumexp, float", "logsumexp_looped, half"],
    "binary_two.h": ["binary_vv, float, float, DivMod"],
    "hadamard.h": ["hadamard_n, float, 64, 4, 4"],
    "fp_quantized.h": ["fp_qmv_fast, half, 32, 4, false", "fp_qmm_t, half, 32, 4, true, true"],
    "steel/conv/kernels/steel_conv.h": [
        "implicit_gemm_conv_2d, float, 32, 32, 16, 2, 2, 0, false",
        "implicit_gemm_conv_2d, half, 64, 32, 16, 2, 2, 1, true",
    ],
    "steel/gemm/kernels/steel_gemm_splitk.h": [
        "gemm_splitk, half, float, 32, 32, 16, 2, 2, false, false, true, true",
        "gemm_splitk_accum, float, half",
    ],
    "steel/gemm/kernels/steel_gemm_masked.h": [
        "block_masked_gemm, float, bool, bool, 32, 32, 16, 2, 2, false, false, true, true"
    ],
    "steel/gemm/kernels/steel_gemm_gather.h": [
        "gather_mm_rhs, half, 16, 64, 16, 1, 2, false, false"
    ],
    "steel/gemm/kernels/steel_gemm_segmented.h": [
        "segmented_mm, half, 32, 32, 16, 2, 2, false, false"
    ],
    "scan.h": ["contiguous_scan, float, float, CumSum<float>, 4, true, false"],
    "sort.h": ["block_sort, float, uint32_t, true, 64, 4", "mb_block_sort, float, uint32_t, true, 64, 4"],
    "gemv.h": ["gemv, float, 1, 8, 1, 32, 4, 4, 0, 0", "gemv_t, half, 1, 4, 8, 4, 4, 4, 0, 0"],
    "quantized.h": ["affine_qmv_fast, float, 64, 4, false", "affine_qmv, half, 32, 8, true",
                    "affine_qmm_t, half, 64, 4, true, true", "affine_qvm, float, 64, 4, true",
                    "affine_gather_qmv, float, 64, 4", "affine_quantize, half, 64, 4"],
    "sdpa_vector.h": ["sdpa_vector, float, 64", "sdpa_vector_2pass_1, half, 64"],
    "reduce.h": ["all_reduce, float, float, Max<float>", "row_reduce_simple, half, half, Sum<half>"],
    "steel/gemm/kernels/steel_gemm_fused.h": [
        "gemm, float, 64, 64, 16, 2, 2, false, false, float",
        "gemm, bfloat16_t, 32, 32, 16, 2, 2, true, true, float",
    ],
}  # fmt: skip
PRELUDES = {
    "steel/conv": ["steel/conv/conv.h", "steel/conv/params.h"],
    "steel": ["steel/gemm/gemm.h"],
    "fp_quantized.h": ["steel/gemm/gemm.h", "quantized_utils.h", "fp4.h", "fp8.h"],
    "quantized.h": ["steel/gemm/gemm.h", "quantized_utils.h"],
    "binary": ["binary_ops.h"],
    "unary.h": ["unary_ops.h"],
    "ternary.h": ["ternary_ops.h"],
    "reduce.h": ["atomic.h", "reduction/ops.h"],
    "": ["steel/utils.h"],
}
SAMPLE = ["binary.h", "softmax.h", "steel/gemm/kernels/steel_gemm_fused.h"]
LLAMA_SAMPLE = ["softmax.metal", "argsort.metal"]
LLAMA_FRAGMENTS = ("fa_common.metal", "fa_vec_common.metal")  # included by others


def sampled(names: list[str], sample: list[str]) -> list[object]:
    return [n if n in sample else pytest.param(n, marks=pytest.mark.full) for n in names]


@pytest.mark.parametrize("header", sampled(list(INSTANCES), SAMPLE))
def test_mlx(mlx_include: Path, header: str) -> None:
    prelude = next(p for start, p in PRELUDES.items() if header.startswith(start))
    text = "#include <metal_stdlib>\n"
    text += "".join(f'#include "{KERNELS}/{h}"\n' for h in ("utils.h", *prelude, header))
    for number, instance in enumerate(INSTANCES[header]):
        text += f'instantiate_kernel("k{number}", {instance})\n'
    options = CompileOptions(include_dirs=(str(mlx_include),), strict=True)
    program, _ = compiler.check(text, options)
    assert len(program.functions) >= len(INSTANCES[header])


def kernel_files() -> list[str]:
    """The files of llama.cpp 0.3.36's kernels; their list is pinned with the version."""
    fa = [f"fa{vec}_{kind}.metal" for vec in ("", "_vec")
          for kind in ("f16", "f32", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")]  # fmt: skip
    names = (
        "argsort binbcast conv fa_aux gated_delta_net misc mul_mm mul_mv norm pool quantize "
        "reduce rope softmax solve_tri ssm tri unary upscale wkv"
    )
    return [*fa, *(f"{name}.metal" for name in names.split())]


@pytest.mark.parametrize("name", sampled(kernel_files(), LLAMA_SAMPLE))
def test_llama(name: str) -> None:
    folder = llama_kernels()
    folders = (folder / "kernels", folder, folder.parent)
    options = CompileOptions(
        include_dirs=tuple(map(str, folders)),
        macros=(("GGML_METAL_HAS_BF16", "1"),),
        strict=True,
    )
    program, _ = compiler.check((folder / "kernels" / name).read_text(), options)
    assert program.functions


@pytest.mark.full
def test_every_file_of_llama_is_listed() -> None:
    found = {path.name for path in (llama_kernels() / "kernels").glob("*.metal")}
    assert found - set(LLAMA_FRAGMENTS) == set(kernel_files())
