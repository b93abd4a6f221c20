"""Answers to programs that ask which features of rendering a device has: none."""

from __future__ import annotations

from softmetal.api.objects import Explaining


class AbsentFeatures(Explaining):
    """What a device says of rendering and textures."""

    __slots__ = ()

    # MTL: -areBarycentricCoordsSupported
    def areBarycentricCoordsSupported(self) -> bool:
        return False

    # MTL: -areProgrammableSamplePositionsSupported
    def areProgrammableSamplePositionsSupported(self) -> bool:
        return False

    # MTL: -areRasterOrderGroupsSupported
    def areRasterOrderGroupsSupported(self) -> bool:
        return False

    # MTL: -isDepth24Stencil8PixelFormatSupported
    def isDepth24Stencil8PixelFormatSupported(self) -> bool:
        return False

    # MTL: -supports32BitFloatFiltering
    def supports32BitFloatFiltering(self) -> bool:
        return False

    # MTL: -supports32BitMSAA
    def supports32BitMSAA(self) -> bool:
        return False

    # MTL: -supportsBCTextureCompression
    def supportsBCTextureCompression(self) -> bool:
        return False

    # MTL: -supportsFunctionPointersFromRender
    def supportsFunctionPointersFromRender(self) -> bool:
        return False

    # MTL: -supportsPrimitiveMotionBlur
    def supportsPrimitiveMotionBlur(self) -> bool:
        return False

    # MTL: -supportsPullModelInterpolation
    def supportsPullModelInterpolation(self) -> bool:
        return False

    # MTL: -supportsQueryTextureLOD
    def supportsQueryTextureLOD(self) -> bool:
        return False

    # MTL: -supportsRaytracingFromRender
    def supportsRaytracingFromRender(self) -> bool:
        return False

    # MTL: -supportsRenderDynamicLibraries
    def supportsRenderDynamicLibraries(self) -> bool:
        return False

    # MTL: -supportsShaderBarycentricCoordinates
    def supportsShaderBarycentricCoordinates(self) -> bool:
        return False

    # MTL: -supportsRasterizationRateMapWithLayerCount:
    def supportsRasterizationRateMapWithLayerCount_(self, layers: int) -> bool:
        return False

    # MTL: -supportsTextureSampleCount:
    def supportsTextureSampleCount_(self, samples: int) -> bool:
        return False

    # MTL: -supportsVertexAmplificationCount:
    def supportsVertexAmplificationCount_(self, count: int) -> bool:
        return False

    # MTL: -maxArgumentBufferSamplerCount
    def maxArgumentBufferSamplerCount(self) -> int:
        return 0

    # MTL: -sparseTileSizeInBytes
    def sparseTileSizeInBytes(self) -> int:
        return 0
