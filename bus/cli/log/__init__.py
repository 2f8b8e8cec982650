"""`bus log`."""
