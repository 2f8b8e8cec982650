"""`bus serve`, `bus cluster` and `bus transactions`."""
