"""Arrays of other libraries, read and given without needing any of them."""
