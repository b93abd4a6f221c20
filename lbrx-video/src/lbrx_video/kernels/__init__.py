"""The kernels of conversions between planes and RGB, and what writes their text."""
