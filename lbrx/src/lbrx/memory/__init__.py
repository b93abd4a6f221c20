"""Device memory without a device: pool, heaps, arenas, and the rule for sharing host memory."""
