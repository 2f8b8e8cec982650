"""The verifier: an independent reading of a table, which shares no code with the one that writes and opens it."""
