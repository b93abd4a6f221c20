"""What is in model files, and what tensors are made of it."""
