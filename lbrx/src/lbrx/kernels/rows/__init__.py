"""What kernels that work on rows share."""
