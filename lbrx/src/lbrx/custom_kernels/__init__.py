"""Metal kernels that users write, called on tensors."""
