"""Who gets which memory: the pool, the heaps and the rules of sharing, all without a device."""
