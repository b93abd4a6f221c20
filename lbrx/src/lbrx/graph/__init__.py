"""The graph of operations that are not computed yet, and its structure."""
