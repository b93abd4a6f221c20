"""The Metal compute API in software."""
