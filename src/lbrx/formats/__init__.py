"""Model files: what is in them, without reading tensors, and how they are written."""
