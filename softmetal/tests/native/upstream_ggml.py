"""Every operation of llama.cpp's Metal back end, judged by its own program: `make test-native`."""

from __future__ import annotations

import os

import ggml_build
import pytest

# Kernels that read beyond a buffer, where NaN may be, and what softmetal says of them. ggml computes
# nothing more after such an error.
READS_OUT_OF_BOUNDS = {"SOLVE_TRI": "kernel 'kernel_solve_tri_f32' reads 4 bytes beyond buffer 1"}
OPERATIONS = """
ABS ACC ADD ADD1 ADD_ID ARANGE ARGMAX ARGSORT CEIL CLAMP CONCAT CONT CONV_2D CONV_3D CONV_TRANSPOSE_1D
CONV_TRANSPOSE_2D COS COUNT_EQUAL CPY CUMSUM DIAG DIV DUP ELU EXP EXPM1 FILL FLASH_ATTN_EXT FLOOR
GATED_DELTA_NET GEGLU GEGLU_ERF GEGLU_QUICK GELU GELU_ERF GELU_QUICK GET_ROWS GROUP_NORM HARDSIGMOID
HARDSWISH IM2COL L2_NORM LEAKY_RELU LOG MEAN MUL MUL_MAT MUL_MAT_ID NEG NORM OPT_STEP_ADAMW OPT_STEP_SGD
PAD PAD_REFLECT_1D POOL_1D POOL_2D REGLU RELU REPEAT RMS_NORM ROLL ROPE ROUND RWKV_WKV6 RWKV_WKV7 SCALE
SET SET_ROWS SGN SIGMOID SILU SIN SOFTPLUS SOFT_MAX SOLVE_TRI SQR SQRT SSM_CONV SSM_SCAN STEP SUB SUM
SUM_ROWS SWIGLU SWIGLU_OAI TANH TIMESTEP_EMBEDDING TOP_K TRI TRUNC UPSCALE XIELU
""".split()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation(operation, variables):
    program, settings = ggml_build.build(variables), {**os.environ, **variables}
    if known := READS_OUT_OF_BOUNDS.get(operation):
        assert (
            known
            in ggml_build.judge(program, operation, {**settings, "SOFTMETAL_CHECK": "bounds"}).log
        )
    else:
        assert ggml_build.judge(program, operation, settings).failures == []
