"""`bus produce`, `bus consume` and `bus perf`."""
