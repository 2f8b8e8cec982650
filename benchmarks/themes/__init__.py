"""One module a theme: each function measures on brokers of its own and returns its figures."""
