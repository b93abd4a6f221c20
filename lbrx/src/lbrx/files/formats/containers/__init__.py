"""The file formats: each module reads or writes one of them."""
