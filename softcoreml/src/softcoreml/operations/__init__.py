"""MIL's operations in NumPy, by family."""
