"""`bus topics`, `bus config` and `bus views`."""
