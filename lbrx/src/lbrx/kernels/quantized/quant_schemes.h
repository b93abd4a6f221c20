// Every codec by its name in kernels: EACH_SCHEME(M) is M(name, codec) for all of them.
#pragma once
#include "quant_blocks.h"
#include "quant_tables.h"

#define EACH_BLOCK(M)                                                                       \
  M(q4_0, Q4_0) M(q4_1, Q4_1) M(q5_0, Q5_0) M(q5_1, Q5_1) M(q8_0, Q8_0) M(q1_0, Q1_0)       \
  M(q2_k, Q2_K) M(q3_k, Q3_K) M(q4_k, Q4_K) M(q5_k, Q5_K) M(q6_k, Q6_K) M(q8_k, Q8_K)       \
  M(iq4_nl, IQ4_NL) M(iq4_xs, IQ4_XS) M(mxfp4, MXFP4) M(nvfp4, NVFP4)                       \
  M(tq1_0, TQ1_0) M(tq2_0, TQ2_0)                                                           \
  M(iq2_xxs, IQ2_XXS) M(iq2_xs, IQ2_XS) M(iq2_s, IQ2_S) M(iq3_xxs, IQ3_XXS)                 \
  M(iq3_s, IQ3_S) M(iq1_s, IQ1_S) M(iq1_m, IQ1_M)

#define EACH_GROUP(M)                                                                       \
  M(q2, Asymmetric<2>) M(q3, Asymmetric<3>) M(q4, Asymmetric<4>) M(q5, Asymmetric<5>)       \
  M(q6, Asymmetric<6>) M(q7, Asymmetric<7>) M(q8, Asymmetric<8>)                            \
  M(q2_symmetric, Symmetric<2>) M(q3_symmetric, Symmetric<3>) M(q4_symmetric, Symmetric<4>) \
  M(q5_symmetric, Symmetric<5>) M(q6_symmetric, Symmetric<6>) M(q7_symmetric, Symmetric<7>) \
  M(q8_symmetric, Symmetric<8>)                                                             \
  M(mlx_2, Affine<2>) M(mlx_3, Affine<3>) M(mlx_4, Affine<4>) M(mlx_5, Affine<5>)           \
  M(mlx_6, Affine<6>) M(mlx_8, Affine<8>) M(mlx_mxfp4, MlxMxfp4) M(mlx_nvfp4, MlxNvfp4)  \
  M(e2m1, E2M1)

// Their codes are not integers.
#define EACH_FLOAT(M) M(mlx_mxfp8, MlxMxfp8) M(e4m3, E4M3) M(nf4, NF4) M(fp4, FP4)

#define EACH_SCHEME(M) EACH_BLOCK(M) EACH_GROUP(M) EACH_FLOAT(M)
