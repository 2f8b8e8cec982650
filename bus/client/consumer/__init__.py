"""The consumer: positions, fetches, and records out of what was fetched."""
