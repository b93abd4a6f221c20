"""The file formats: one module reads or writes one of them."""
