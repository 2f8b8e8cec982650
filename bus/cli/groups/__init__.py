"""`bus groups`."""
