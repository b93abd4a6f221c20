"""Video as tensors: frames are decoded, converted and encoded without RGB images on the host."""
