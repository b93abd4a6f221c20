"""Take, gather and scatter."""
