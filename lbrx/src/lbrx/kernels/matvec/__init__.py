"""Matrix products of a few rows or columns."""
