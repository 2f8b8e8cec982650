"""The `bus` command: what people type, and how they are answered. Nothing in the bus imports it."""
