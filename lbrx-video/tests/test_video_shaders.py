"""The generated kernels pass softmetal's strict check, as Apple's compiler will see them."""

from __future__ import annotations

import pytest
from strict_msl import findings
from test_conversion import conversion

from lbrx.arrays import dtype as dt
from lbrx.metal.library import SHADERS
from lbrx.metal.shader_files import shader_text
from lbrx_video.conversion import Samples, ToPlanes
from lbrx_video.kernels import frame_kernels, frame_source, plane_kernels, plane_source
from lbrx_video.pixel_formats import find

VARIANTS = ["threads", pytest.param("serial", marks=pytest.mark.full)]


def checked(text):
    return findings(shader_text(SHADERS, "video.metal", text))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [(19, 37), pytest.param((7, 11), marks=pytest.mark.full)])
def test_frames(variant, size):
    what = conversion("yuva444p12le", alpha=True, light="hlg", code="pq", clip=True, size=size)
    program = frame_kernels._program(what, variant == "serial")
    assert checked(frame_source.source(program, "frames")) == ""


@pytest.mark.parametrize("variant", VARIANTS)
def test_planes(variant):
    what = ToPlanes(
        Samples(find("p010le"), 20, 30, "bt2020", False, "left"), "srgb", "bt709", "NHWC"
    )
    problem = plane_kernels.PlaneProblem(what, 1, 4, dt.float16)
    program = plane_kernels._program(problem, 256 if variant == "serial" else 2)
    assert checked(plane_source.source(program, "planes")) == ""


def test_a_mistake_is_found():
    text = (
        '#include "video_planes.h"\nfloat f(device float* x) { thread float* y = x; return *y; }\n'
    )
    assert "cannot initialize a variable of type 'thread float *'" in checked(text)
